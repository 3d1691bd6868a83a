"""Laws of the recurrent encoder-decoders: their formulas, blind to padding and
the future, the same step by step.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.bounds import assert_close_in_float64
from translation.errors import UsageError
from translation.seq2seq import (
    Attention,
    EncodedSource,
    IncrementalRnn,
    RecurrentClassifier,
    RecurrentConfig,
    RecurrentTranslator,
    chain_marginals,
)

SENTENCES, SOURCE, TARGET, VOCABULARY = 3, 7, 5, 23
SMALL = RecurrentConfig(VOCABULARY, VOCABULARY, d_model=12, dropout=0.0)
SCORES = {
    "none": replace(SMALL, attention="none"),
    "additive": SMALL,
    "additive, structured": replace(SMALL, structured=True),
    "dot": replace(SMALL, attention="dot"),
    "dot, structured": replace(SMALL, attention="dot", structured=True),
}
DEEP = {
    f"{name}, two layers": replace(
        SCORES[name], layers=2, source_vocabulary=29, shared_embeddings=False
    )
    for name in ("none", "additive", "dot")
}
KINDS = SCORES | DEEP


def build_network(kind: str) -> RecurrentTranslator:
    torch.manual_seed(0)
    network = KINDS[kind].build().double().eval()
    for parameter in network.parameters():  # no bias and no potential is zero
        nn.init.normal_(parameter, std=0.5)
    return network


def tokens(length: int, seed: int, sentences: int = SENTENCES) -> Tensor:
    return torch.randint(
        4, VOCABULARY, (sentences, length), generator=torch.Generator().manual_seed(seed)
    )


@pytest.fixture(params=KINDS)
def network(request: pytest.FixtureRequest) -> RecurrentTranslator:
    return build_network(request.param)


def close(found: Tensor, expected: Tensor) -> None:
    assert_close_in_float64(found, expected)


@pytest.mark.parametrize("side", ["behind", "in front"])
def test_padding_on_either_side_changes_nothing(network: RecurrentTranslator, side: str) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)

    def padded(row: Tensor, count: int) -> Tensor:
        padding = row.new_zeros(SENTENCES, count)
        return torch.cat([row, padding] if side == "behind" else [padding, row], dim=-1)

    expected, weights = network(source, target, need_weights=True)
    found, found_weights = network(padded(source, 3), padded(target, 2), need_weights=True)
    there = slice(0, TARGET) if side == "behind" else slice(2, None)
    close(found[:, there], expected)
    if weights is not None:
        close(
            found_weights[:, there][..., :SOURCE]
            if side == "behind"
            else found_weights[:, there, 3:],
            weights,
        )


def test_sentences_of_several_lengths_are_each_as_alone(network: RecurrentTranslator) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    source[0, 4:], source[1, :2], target[0, :2], target[1, 4:] = 0, 0, 0, 0
    found = network(source, target)[0]
    for row in range(SENTENCES):
        there = target[row] != 0
        alone = network(source[row : row + 1, source[row] != 0], target[row : row + 1, there])[0]
        close(found[row, there], alone[0])


def test_a_later_token_changes_nothing_before_it(network: RecurrentTranslator) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    changed = target.clone()
    changed[:, 3:] = tokens(TARGET, 9)[:, 3:]
    close(network(source, changed)[0][:, :3], network(source, target)[0][:, :3])


@pytest.mark.slow
def test_every_token_of_the_source_and_every_earlier_one_is_seen(
    network: RecurrentTranslator,
) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    before = network(source, target)[0][:, -1]
    for side, row in ((0, source), (1, target)):
        for position in range(row.shape[-1]):
            changed = [source, target]
            changed[side] = row.clone()
            changed[side][:, position] = 4 + (row[:, position] - 3) % (VOCABULARY - 4)
            assert ((network(*changed)[0][:, -1] - before).abs().amax(dim=-1) > 1e-6).all()


def test_a_step_gives_the_row_of_a_whole_pass(network: RecurrentTranslator) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    source[1, :2] = 0
    decoded, attention = network(source, target, need_weights=True)
    expected, decoder = network.logits(decoded), IncrementalRnn(network)
    state = decoder.start(source, beams=2, limit=TARGET)
    for position in range(TARGET):
        scores, weights = decoder.step(state, target[:, [position, position]], need_weights=True)
        for beam in range(2):
            close(scores[:, beam], expected[:, position])
            if attention is None:
                assert weights is None
            else:
                assert weights is not None
                close(weights[:, beam], attention[:, position])


def test_beams_go_on_from_the_beam_they_are_told_and_sentences_leave(
    network: RecurrentTranslator,
) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    other, decoder = tokens(TARGET, 3), IncrementalRnn(network)
    state = decoder.start(source, beams=2, limit=TARGET)
    for position in range(2):
        decoder.step(state, torch.stack([target[:, position], other[:, position]], dim=-1))
    state.reorder(torch.tensor([[1, 0], [1, 1], [0, 0]]))
    kept = torch.tensor([2, 0])
    state.keep(kept)
    scores, _ = decoder.step(state, torch.stack([other[:, 2], target[:, 2]], dim=-1)[kept])
    for sentence, beam, past in ((0, 0, target), (0, 1, target), (1, 0, other), (1, 1, target)):
        row = torch.cat([past[:, :2], (other, target)[beam][:, 2:3]], dim=-1)
        expected = network.logits(network(source, row)[0])[kept[sentence], -1]
        close(scores[sentence, beam], expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "none" not in kind])
def test_weights_are_on_what_is_there_and_those_of_softmax_sum_to_one(kind: str) -> None:
    source = tokens(SOURCE, 1)
    source[0, 4:] = 0
    weights = build_network(kind)(source, tokens(TARGET, 2), need_weights=True)[1]
    assert (weights[0, :, 4:] == 0).all()
    assert ((weights >= 0) & (weights <= 1)).all()
    if not KINDS[kind].structured:
        close(weights.sum(dim=-1), torch.ones(SENTENCES, TARGET, dtype=torch.float64))


@pytest.mark.parametrize("score", ["additive", "dot"])
@pytest.mark.parametrize("structured", [False, True])
def test_scores_and_contexts_are_those_of_the_papers(score: Any, structured: bool) -> None:
    attention = Attention(score, 6, structured=structured).double()
    parts = {name.removesuffix(".weight"): part for name, part in attention.named_parameters()}
    for part in parts.values():
        nn.init.normal_(part)
    memory, query = (
        torch.randn(2, 4, 6, dtype=torch.float64),
        torch.randn(2, 3, 6, dtype=torch.float64),
    )
    source = EncodedSource(memory, attention.keys(memory), torch.ones(2, 1, 4, dtype=torch.bool))
    contexts, _ = attention(query, source)
    for sentence in range(2):
        for s, context in zip(query[sentence], contexts[sentence], strict=True):
            scores = [s @ h for h in memory[sentence]]
            if score == "additive":
                w_a, w_b, w_c = (
                    parts[name] for name in ("weigh", "project_query", "project_memory")
                )
                scores = [w_a[0] @ torch.tanh(w_b @ s + w_c @ h) for h in memory[sentence]]
            row, there = torch.stack(scores), torch.ones(4, dtype=torch.bool)
            weights = (
                chain_marginals(row, there, parts["pairwise"]) if structured else row.softmax(dim=0)
            )
            close(context, weights @ memory[sentence])


def test_bahdanau_attends_from_the_state_before_the_token() -> None:
    network, source = build_network("additive"), tokens(SOURCE, 1)
    first, other = (network(source, tokens(1, seed), need_weights=True)[1] for seed in (2, 3))
    close(first, other)


def test_luong_attends_from_the_state_after_the_token() -> None:
    network, source = build_network("dot"), tokens(SOURCE, 1)
    first, other = (network(source, tokens(1, seed), need_weights=True)[1] for seed in (2, 3))
    assert (first - other).abs().max() > 1e-3


def test_without_attention_or_unasked_there_are_no_weights() -> None:
    source = tokens(SOURCE, 1)
    for kind in KINDS:
        network = build_network(kind)
        decoder = IncrementalRnn(network)
        assert network(source, tokens(TARGET, 2))[1] is None
        assert decoder.step(decoder.start(source, 2, TARGET), source[:, :2])[1] is None
    assert build_network("none")(tokens(SOURCE, 1), tokens(TARGET, 2), need_weights=True)[1] is None


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter_of_a_new_network(kind: str) -> None:
    torch.manual_seed(0)
    network, target = KINDS[kind].build(), tokens(TARGET, 2)
    scores = network.logits(network(tokens(SOURCE, 1), target)[0])
    nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), target[:, 1:].flatten()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_a_new_network_forgets_little_and_shares_one_embedding() -> None:
    network = SMALL.build()
    for name, parameter in network.named_parameters():
        if "bias" in name:
            gates = parameter.unflatten(0, (4, -1)).detach()
            assert (gates[1] == ("bias_ih" in name)).all()
            assert (gates[[0, 2, 3]] == 0).all()
    assert network.embed_source is network.embed_target


@pytest.mark.one_case
@pytest.mark.slow
@pytest.mark.parametrize("kind", SCORES)
def test_it_learns_to_reverse_eight_sentences(kind: str) -> None:
    torch.manual_seed(0)
    network, source = replace(SCORES[kind], d_model=32).build(), tokens(5, 1, sentences=8)
    source[:3, 4] = 0
    target = torch.cat(
        [source.new_full((8, 1), 2), source.flip(-1), source.new_full((8, 1), 3)], dim=-1
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    counted = target[:, 1:] != 0
    for _ in range(150):
        scores = network.logits(network(source, target[:, :-1])[0])
        loss = nn.functional.cross_entropy(scores[counted], target[:, 1:][counted])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1  # at most .04, deviation .008, of six seeds of every kind


def test_a_structure_needs_an_attention() -> None:
    with pytest.raises(UsageError, match="structured"):
        replace(SMALL, attention="none", structured=True)


@pytest.mark.parametrize("masked", [True, False])
def test_a_classifier_that_is_masked_reads_no_padding_on_either_side(masked: bool) -> None:
    torch.manual_seed(0)
    classify = (
        RecurrentClassifier(RecurrentConfig(20, 20, 8, layers=2, dropout=0.0), 3, masked=masked)
        .double()
        .eval()
    )
    bare = classify(torch.tensor([[5, 9, 7]]))
    for padded in ([[0, 0, 5, 9, 7]], [[5, 9, 7, 0, 0, 0]]):
        found = classify(torch.tensor(padded))
        assert found.shape == (1, 3)
        assert torch.allclose(found, bare, rtol=0, atol=1e-9) == masked
