"""Laws of the quick dropout: torch's, but for the numbers that are drawn."""

import pytest
import torch
from torch import nn

from tests.support.bounds import assert_close_in_float32
from tests.support.translations import drawn
from translation.training.dropout import FastDropout, use_fast_dropout


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_a_share_is_dropped_and_the_rest_is_larger(share: float) -> None:
    torch.manual_seed(0)
    x = torch.rand(300, 1000) + 1
    x.requires_grad_()
    found = FastDropout(share)(x)
    kept = found != 0
    assert abs(kept.float().mean().item() - (1 - share)) < 0.005
    assert_close_in_float32(found[kept], x[kept] / (1 - share))
    found.sum().backward()
    assert x.grad is not None
    assert_close_in_float32(x.grad, kept / (1 - share))  # what was dropped learns nothing


@pytest.mark.parametrize(("share", "training"), [(0.5, False), (0.0, True)])
def test_it_does_nothing_where_nothing_is_to_be_dropped(share: float, training: bool) -> None:
    x = torch.randn(5, 7)
    assert torch.equal(FastDropout(share).train(training)(x), x)
    assert torch.equal(FastDropout(1.0)(x), torch.zeros_like(x))


def test_one_seed_drops_the_same() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(FastDropout(0.5)(torch.ones(11, 13)))
    assert torch.equal(*found)


def test_every_dropout_of_a_network_becomes_one_and_its_weights_stay() -> None:
    network = drawn(dropout=0.25)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    use_fast_dropout(network)
    dropouts = [each for each in network.modules() if isinstance(each, nn.Dropout)]
    assert len(dropouts) > 5
    assert {type(each) for each in dropouts} == {FastDropout}
    assert 0.25 in {each.p for each in dropouts}
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
