"""Laws of the encoder-decoders and of the shared attention block: equal to torch's own, blind to
padding and to the future, the same step by step.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dtml.network import Dropout, use_generator
from tests.support.bounds import (
    as_drawn,
    assert_close_in_float32,
    assert_close_in_float64,
    in_float32,
)
from translation import transformer
from translation.seq2seq import RecurrentConfig
from translation.transformer import (
    MultiHeadAttention,
    TransformerConfig,
    sinusoids,
)

SENTENCES, SOURCE, TARGET, VOCABULARY = 3, 7, 5, 23
WIDTH, HEADS = 22, 2
SMALL = TransformerConfig(
    VOCABULARY,
    VOCABULARY,
    d_model=WIDTH,
    heads=HEADS,
    d_ff=31,
    encoder_layers=2,
    decoder_layers=3,
    dropout=0.0,
)
RNN = RecurrentConfig(VOCABULARY, VOCABULARY, d_model=12, dropout=0.0)
TWO_VOCABULARIES = {"source_vocabulary": 29, "shared_embeddings": False}
DEEP = {"layers": 2, **TWO_VOCABULARIES}
KINDS = {
    "as published": SMALL,
    "pre-norm": replace(SMALL, norm="pre"),
    "learned positions": replace(SMALL, learned_positions=13),
    "two vocabularies": replace(SMALL, **TWO_VOCABULARIES),
    "none": replace(RNN, attention="none"),
    "additive": RNN,
    "additive, structured": replace(RNN, structured=True),
    "dot": replace(RNN, attention="dot"),
    "dot, structured": replace(RNN, attention="dot", structured=True),
    "none, two layers": replace(RNN, attention="none", **DEEP),
    "additive, two layers": replace(RNN, **DEEP),
    "dot, two layers": replace(RNN, attention="dot", **DEEP),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def build_network(kind):
    torch.manual_seed(0)
    network = KINDS[kind].build().double().eval()
    for parameter in network.parameters():  # no bias and no potential is zero
        nn.init.normal_(parameter, std=0.4)
    return network


def tokens(length, seed):
    return torch.randint(
        4, VOCABULARY, (SENTENCES, length), generator=torch.Generator().manual_seed(seed)
    )


@every_kind
def test_padding_on_either_side_changes_nothing_and_is_not_attended_to(kind):
    network, source, target = build_network(kind), tokens(SOURCE, 1), tokens(TARGET, 2)
    source[0, 4:], source[1, :2], target[0, :2], target[1, 4:] = 0, 0, 0, 0
    found, weights = network(source, target, need_weights=True)
    for row in range(SENTENCES):
        real, said = source[row] != 0, target[row] != 0
        alone, weights_alone = network(
            source[row : row + 1, real], target[row : row + 1, said], need_weights=True
        )
        assert_close_in_float64(found[row, said], alone[0])
        if weights is None:
            assert kind.startswith("none")
            continue
        assert_close_in_float64(weights[row, said][:, real], weights_alone[0])
        assert (weights[row, said][:, ~real] == 0).all()
        if "structured" not in kind:
            assert_close_in_float64(weights_alone.sum(dim=-1), torch.ones(1, said.sum()).double())


@every_kind
def test_a_later_token_changes_nothing_before_it(kind):
    network, source, target = build_network(kind), tokens(SOURCE, 1), tokens(TARGET, 2)
    changed = target.clone()
    changed[:, 3:] = tokens(TARGET, 9)[:, 3:]
    before, none = network(source, target)
    assert_close_in_float64(network(source, changed)[0][:, :3], before[:, :3])
    assert none is None  # weights that were not asked for


@pytest.mark.slow
@every_kind
def test_every_token_of_the_source_and_every_earlier_one_is_seen(kind):
    network, sides = build_network(kind), [tokens(SOURCE, 1), tokens(TARGET, 2)]
    before = network(*sides)[0][:, -1]
    for side, row in enumerate(sides):
        for position in range(row.shape[-1]):
            changed = [each.clone() for each in sides]
            changed[side][:, position] = 4 + (row[:, position] - 3) % (VOCABULARY - 4)
            assert ((network(*changed)[0][:, -1] - before).abs().amax(dim=-1) > 1e-6).all()


@every_kind
def test_steps_give_the_rows_of_whole_passes_also_when_beams_move_and_sentences_leave(kind):
    network, source = build_network(kind), tokens(SOURCE, 1)
    source[1, :2] = 0
    pasts = [tokens(TARGET, 2), tokens(TARGET, 3)]  # of each beam
    state = network.start(source, beams=2, limit=TARGET)
    for position in range(2):
        newest = torch.stack([past[:, position] for past in pasts], dim=-1)
        scores, weights = network.step(state, newest, need_weights=True)
        for beam, past in enumerate(pasts):
            decoded, attention = network(source, past, need_weights=True)
            assert_close_in_float64(scores[:, beam], network.logits(decoded)[:, position])
            if attention is None:
                assert weights is None
            else:
                assert weights is not None
                assert_close_in_float64(weights[:, beam], attention[:, position])
    state.reorder(torch.tensor([[1, 0], [1, 1], [0, 0]]))
    kept = torch.tensor([2, 0])
    state.keep(kept)
    newest = torch.stack([pasts[1][:, 2], pasts[0][:, 2]], dim=-1)[kept]
    scores, none = network.step(state, newest)
    assert none is None
    for sentence, beam, origin in ((0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 0)):
        row = torch.cat([pasts[origin][:, :2], pasts[1 - beam][:, 2:3]], dim=-1)
        expected = network.logits(network(source, row)[0])[kept[sentence], -1]
        assert_close_in_float64(scores[sentence, beam], expected)


def test_steps_find_room_for_a_long_translation(monkeypatch):
    monkeypatch.setattr(transformer, "FIRST_CAPACITY", 2)
    network, source, target = build_network("as published"), tokens(SOURCE, 1), tokens(9, 2)
    expected = network.logits(network(source, target)[0])
    state = network.start(source, beams=1, limit=target.shape[1])
    for position, row in enumerate(expected.unbind(dim=1)):
        assert_close_in_float64(network.step(state, target[:, [position]])[0].squeeze(1), row)


def copy_parts(ours, theirs, names):
    """Copy our parts into those of torch, by name."""
    for mine, other in names.items():
        part, whole = ours.get_submodule(mine), theirs.get_submodule(other)
        if isinstance(part, MultiHeadAttention):
            whole.in_proj_weight.data.copy_(part.project_qkv.weight)
            whole.in_proj_bias.data.copy_(part.project_qkv.bias)
            part, whole = part.project_output, whole.get_submodule("out_proj")
        whole.load_state_dict(part.state_dict())


OF_A_LAYER = {"feed_forward.expand": "linear1", "feed_forward.contract": "linear2"}
OF_EACH_SIDE = {
    "encoder": OF_A_LAYER
    | {
        "attention": "self_attn",
        "around_attention.layer_norm": "norm1",
        "around_feed_forward.layer_norm": "norm2",
    },
    "decoder": OF_A_LAYER
    | {
        "attention": "self_attn",
        "memory_attention": "multihead_attn",
        "around_attention.layer_norm": "norm1",
        "around_memory_attention.layer_norm": "norm2",
        "around_feed_forward.layer_norm": "norm3",
    },
}


@pytest.mark.parametrize("kind", ["as published", "pre-norm"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # torch's, of its own encoder
def test_it_equals_torch_transformer_with_copied_weights(kind):
    ours = build_network(kind)
    theirs = nn.Transformer(
        WIDTH, HEADS, 2, 3, 31, dropout=0.0, batch_first=True, norm_first=kind == "pre-norm"
    )
    theirs = theirs.double().eval()
    if kind == "as published":
        theirs.encoder.norm = theirs.decoder.norm = None
    else:
        copy_parts(ours, theirs, {"encoder_norm": "encoder.norm", "decoder_norm": "decoder.norm"})
    for side, names in OF_EACH_SIDE.items():
        for number, layer in enumerate(ours.get_submodule(side).children()):
            copy_parts(layer, theirs.get_submodule(f"{side}.layers.{number}"), names)
    source, target = tokens(SOURCE, 1), tokens(TARGET, 2)
    expected = theirs(
        ours.embed_source(source, torch.arange(SOURCE)),
        ours.embed_target(target, torch.arange(TARGET)),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(TARGET, dtype=torch.float64),
        tgt_is_causal=True,
    )
    assert_close_in_float64(ours(source, target)[0], expected)


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SENTENCES, SOURCE, WIDTH, generator=generator, dtype=torch.float64)


def test_our_attention_equals_torch_multihead_attention_with_copied_weights():
    ours = MultiHeadAttention(WIDTH, HEADS).double()
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    nn.init.normal_(ours.project_qkv.bias)
    copy_parts(ours, theirs, {"": ""})
    x, mask = inputs(), torch.ones(SOURCE, SOURCE).tril().bool()
    mask[3, 1] = False
    expected, expected_weights = theirs(x, x, x, attn_mask=~mask, average_attn_weights=False)
    found, none = ours(x, mask)
    found_again, weights = ours(x, mask, need_weights=True)
    assert_close_in_float64(found, expected)
    assert_close_in_float64(found_again, expected)
    assert_close_in_float64(weights, expected_weights)
    assert none is None
    with pytest.raises(ValueError, match="not a multiple"):
        MultiHeadAttention(10, 3)


def test_dropout_draws_from_its_own_generator_and_keeps_the_mean():
    layer, found = nn.Sequential(nn.Dropout(0.3)), list[Tensor]()
    for seed in (1, 2):
        torch.manual_seed(seed)  # which decides nothing
        use_generator(layer, torch.Generator().manual_seed(5))
        found.append(layer(torch.ones(100_003)))
    assert isinstance(layer[0], Dropout)
    assert torch.equal(*found)
    assert found[0].unique().tolist() == in_float32([0.0, 1 / 0.7])
    assert found[0].mean().item() == as_drawn(1.0, within=0.02)
    assert (layer.eval()(torch.ones(5)) == 1).all()


def test_sinusoids_are_those_of_the_paper():
    position, pair = torch.meshgrid(torch.arange(5.0), torch.arange(3.0), indexing="ij")
    angle = position / 10000 ** (2 * pair / 6)
    found = sinusoids(torch.arange(5), 6)
    assert_close_in_float32(found[:, 0::2], angle.sin())
    assert_close_in_float32(found[:, 1::2], angle.cos())
