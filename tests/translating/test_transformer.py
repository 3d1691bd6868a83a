"""Laws of the shared attention block."""

import pytest
import torch
from torch import nn

from dtml.network import Dropout, use_generator
from tests.support.bounds import as_drawn, assert_close_in_float64, in_float32
from translation.transformer import EncoderLayer, FeedForward, MultiHeadAttention, attend

BATCH, POSITIONS, D_MODEL, HEADS = 3, 7, 22, 2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator(), dtype=torch.float64)


def test_our_attention_equals_torch_multihead_attention_with_copied_weights() -> None:
    ours = MultiHeadAttention(D_MODEL, HEADS).double()
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_bias.normal_(generator=generator(1))
        ours.project_qkv.weight.copy_(theirs.in_proj_weight)
        ours.project_qkv.bias.copy_(theirs.in_proj_bias)
    ours.project_output.load_state_dict(theirs.out_proj.state_dict())
    x = inputs(BATCH, POSITIONS, D_MODEL)
    mask = torch.rand(POSITIONS, POSITIONS, generator=generator()) < 0.5
    mask.fill_diagonal_(True)
    expected, expected_weights = theirs(x, x, x, attn_mask=~mask, average_attn_weights=False)
    found, none = ours(x, mask)
    found_again, weights = ours(x, mask, need_weights=True)
    assert_close_in_float64(found, expected)
    assert_close_in_float64(found_again, expected)
    assert_close_in_float64(weights, expected_weights)
    assert none is None


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_our_encoder_layer_equals_torch_encoder_layer_with_copied_weights(norm: str) -> None:
    ours = EncoderLayer(D_MODEL, HEADS, 5 * D_MODEL, norm=norm).double()
    theirs = nn.TransformerEncoderLayer(
        D_MODEL, HEADS, 5 * D_MODEL, dropout=0.0, batch_first=True, norm_first=norm == "pre"
    ).double()
    copies = {
        "attention.project_qkv.weight": theirs.self_attn.in_proj_weight,
        "attention.project_qkv.bias": theirs.self_attn.in_proj_bias,
        "attention.project_output": theirs.self_attn.out_proj,
        "feed_forward.expand": theirs.linear1,
        "feed_forward.contract": theirs.linear2,
        "around_attention.layer_norm": theirs.norm1,
        "around_feed_forward.layer_norm": theirs.norm2,
    }
    for name, value in copies.items():
        if isinstance(value, nn.Module):
            ours.get_submodule(name).load_state_dict(value.state_dict())
        else:
            ours.get_parameter(name).data.copy_(value)
    x = inputs(BATCH, POSITIONS, D_MODEL)
    assert_close_in_float64(ours(x)[0], theirs(x))


def test_rows_of_weights_sum_to_one_and_a_masked_key_weighs_nothing() -> None:
    x = inputs(BATCH, POSITIONS, D_MODEL)
    mask = torch.ones(POSITIONS, dtype=torch.bool)
    mask[4] = False
    _, weights = attend(x, x, x, mask, need_weights=True)
    assert_close_in_float64(weights.sum(-1), torch.ones(BATCH, POSITIONS, dtype=torch.float64))
    assert (weights[..., 4] == 0).all()


def test_an_encoder_layer_without_positions_commutes_with_permutations() -> None:
    layer = EncoderLayer(D_MODEL, HEADS, 5, norm="none", output_projection=False).double()
    x = inputs(BATCH, POSITIONS, D_MODEL)
    order = torch.randperm(POSITIONS, generator=generator())
    assert_close_in_float64(layer(x[:, order])[0], layer(x)[0][:, order])


def test_dropout_draws_from_its_own_generator_and_keeps_the_mean() -> None:
    layer = nn.Sequential(Dropout(0.3))
    x = torch.ones(100_003)
    use_generator(layer, generator(5))
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(2)
    use_generator(layer, generator(5))
    assert torch.equal(layer(x), first)
    assert first.unique().tolist() == in_float32([0.0, 1 / 0.7])
    assert first.mean().item() == as_drawn(1.0, within=0.02)
    assert (layer.eval()(x) == x).all()


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        MultiHeadAttention(10, 3)


def test_the_feed_forward_layer_is_two_convolutions_of_kernel_1() -> None:
    torch.manual_seed(0)
    layer, x = FeedForward(6, 9).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    first, second = torch.nn.Conv1d(6, 9, kernel_size=1), torch.nn.Conv1d(9, 6, kernel_size=1)
    for convolution, linear in ((first, layer.expand), (second, layer.contract)):
        convolution.weight.data, convolution.bias.data = linear.weight.unsqueeze(-1), linear.bias
    assert_close_in_float64(second(first(x.mT).relu()).mT, layer(x))
