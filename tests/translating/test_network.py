"""Laws of the encoder-decoder: equal to torch's own, blind to padding and to
the future, the same step by step.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.support.bounds import assert_close_in_float32, assert_close_in_float64
from translation.decoding import incremental
from translation.decoding.incremental import IncrementalTransformer
from translation.transformer import Transformer, TransformerConfig, sinusoids

SENTENCES, SOURCE, TARGET, VOCABULARY = 3, 7, 5, 23
SMALL = TransformerConfig(
    VOCABULARY,
    VOCABULARY,
    d_model=22,
    heads=2,
    d_ff=31,
    encoder_layers=2,
    decoder_layers=3,
    dropout=0.0,
)
KINDS = {
    "as published": SMALL,
    "pre-norm": replace(SMALL, norm="pre"),
    "learned positions": replace(SMALL, learned_positions=13),
    "two vocabularies": replace(SMALL, source_vocabulary=29, shared_embeddings=False),
}


def build_network(kind: str) -> Transformer:
    torch.manual_seed(0)
    network = KINDS[kind].build().double().eval()
    for parameter in network.parameters():  # no bias is zero
        nn.init.normal_(parameter, std=0.3)
    return network


def tokens(length: int, seed: int) -> Tensor:
    return torch.randint(
        4, VOCABULARY, (SENTENCES, length), generator=torch.Generator().manual_seed(seed)
    )


@pytest.fixture(params=KINDS)
def network(request: pytest.FixtureRequest) -> Transformer:
    return build_network(request.param)


def copied(ours: nn.Module, theirs: nn.Module, *names: tuple[str, str]) -> None:
    """Copy our parts into those of torch, by name."""
    for mine, other in names:
        part = theirs.get_submodule(other)
        part.load_state_dict(ours.get_submodule(mine).state_dict())


@pytest.mark.parametrize("kind", ["as published", "pre-norm"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # torch's, of its own encoder
def test_it_equals_torch_transformer_with_copied_weights(kind: str) -> None:
    ours, config = build_network(kind), KINDS[kind]
    theirs = (
        nn.Transformer(
            config.d_model,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            dropout=0.0,
            batch_first=True,
            norm_first=kind == "pre-norm",
        )
        .double()
        .eval()
    )
    if kind == "as published":
        theirs.encoder.norm = theirs.decoder.norm = None
    else:
        copied(ours, theirs, ("encoder_norm", "encoder.norm"), ("decoder_norm", "decoder.norm"))
    for side, own, layers in (("encoder", 2, 2), ("decoder", 3, 3)):
        for layer in range(layers):
            mine, other = f"{side}.{layer}", f"{side}.layers.{layer}"
            pairs = [("attention", "self_attn"), ("memory_attention", "multihead_attn")][: own - 1]
            norms = ["around_attention", "around_memory_attention", "around_feed_forward"]
            if side == "encoder":
                norms.remove("around_memory_attention")
            for index, norm in enumerate(norms, start=1):
                copied(ours, theirs, (f"{mine}.{norm}.layer_norm", f"{other}.norm{index}"))
            for here, there in pairs:
                packed = theirs.get_submodule(f"{other}.{there}")
                packed.in_proj_weight.data.copy_(
                    ours.get_parameter(f"{mine}.{here}.project_qkv.weight")
                )
                packed.in_proj_bias.data.copy_(
                    ours.get_parameter(f"{mine}.{here}.project_qkv.bias")
                )
                copied(ours, theirs, (f"{mine}.{here}.project_output", f"{other}.{there}.out_proj"))
            for here, there in (
                ("feed_forward.expand", "linear1"),
                ("feed_forward.contract", "linear2"),
            ):
                copied(ours, theirs, (f"{mine}.{here}", f"{other}.{there}"))
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    embedded = (
        ours.embed_source(source, torch.arange(SOURCE)),
        ours.embed_target(target, torch.arange(TARGET)),
    )
    causal = nn.Transformer.generate_square_subsequent_mask(TARGET, dtype=torch.float64)
    expected = theirs(*embedded, tgt_mask=causal, tgt_is_causal=True)
    assert_close_in_float64(ours(source, target)[0], expected)


@pytest.mark.parametrize("side", ["behind", "in front"])
def test_padding_on_either_side_changes_nothing(network: Transformer, side: str) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)

    def padded(row: Tensor, count: int) -> Tensor:
        padding = row.new_zeros(SENTENCES, count)
        return torch.cat([row, padding] if side == "behind" else [padding, row], dim=-1)

    expected = network(source, target)[0]
    found = network(padded(source, 3), padded(target, 2))[0]
    assert_close_in_float64(found[:, :TARGET] if side == "behind" else found[:, 2:], expected)


def test_a_later_token_changes_nothing_before_it(network: Transformer) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    changed = target.clone()
    changed[:, 3:] = tokens(TARGET, 9)[:, 3:]
    assert_close_in_float64(network(source, changed)[0][:, :3], network(source, target)[0][:, :3])


def test_a_step_gives_the_row_of_a_whole_pass(network: Transformer) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    source[1, :2] = 0
    decoded, attention = network(source, target, need_weights=True)
    expected, decoder = network.logits(decoded), IncrementalTransformer(network)
    state = decoder.start(source, beams=2, limit=TARGET)
    for position in range(TARGET):
        scores, weights = decoder.step(state, target[:, [position, position]], need_weights=True)
        for beam in range(2):
            assert_close_in_float64(scores[:, beam], expected[:, position])
            assert_close_in_float64(weights[:, beam], attention[:, position])


@pytest.mark.slow
def test_steps_find_room_for_a_long_translation(
    network: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental, "FIRST_CAPACITY", 2)
    network, source, target = network.float(), tokens(SOURCE, 1), tokens(9, 2)
    expected, decoder = network.logits(network(source, target)[0]), IncrementalTransformer(network)
    state = decoder.start(source, beams=1, limit=target.shape[1])
    for position, row in enumerate(expected.unbind(dim=1)):
        assert_close_in_float32(decoder.step(state, target[:, [position]])[0].squeeze(1), row)


def test_beams_go_on_from_the_beam_they_are_told_and_sentences_leave(network: Transformer) -> None:
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    other, decoder = tokens(TARGET, 3), IncrementalTransformer(network)
    state = decoder.start(source, beams=2, limit=TARGET)
    for position in range(2):
        decoder.step(state, torch.stack([target[:, position], other[:, position]], dim=-1))
    state.reorder(torch.tensor([[1, 0]] * SENTENCES))
    kept = torch.tensor([2, 0])
    state.keep(kept)
    scores, _ = decoder.step(state, torch.stack([other[:, 2], target[:, 2]], dim=-1)[kept])
    for beam, row in enumerate((other, target)):
        expected = network.logits(network(source, row[:, :3])[0])[:, -1]
        assert_close_in_float64(scores[:, beam], expected[kept])


def test_rows_of_attention_sum_to_one_over_what_is_there(network: Transformer) -> None:
    source = tokens(SOURCE, 1)
    source[0, 4:] = 0
    weights = network(source, tokens(TARGET, 2), need_weights=True)[1]
    assert_close_in_float64(weights.sum(dim=-1), torch.ones(SENTENCES, TARGET, dtype=torch.float64))
    assert (weights[0, :, 4:] == 0).all()


def test_sinusoids_are_those_of_the_paper() -> None:
    found = sinusoids(torch.arange(5), 6)
    for position in range(5):
        for pair in range(3):
            angle = torch.tensor(position / 10000 ** (2 * pair / 6))
            assert_close_in_float32(found[position, 2 * pair], angle.sin())
            assert_close_in_float32(found[position, 2 * pair + 1], angle.cos())
