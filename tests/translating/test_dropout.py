"""Laws of the quick dropout: torch's, but for the numbers that are drawn."""

import pytest
import torch
from torch import nn

from tests.support.bounds import assert_close_in_float32
from tests.support.translations import drawn
from translation.training.dropout import FastDropout
from translation.transformer import replace_dropout


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.9, 1.0])
def test_a_share_is_dropped_and_the_rest_is_larger(share):
    x, found = torch.rand(300, 1000) + 1, list[torch.Tensor]()
    x.requires_grad_()
    for _ in range(2):
        torch.manual_seed(0)
        found.append(FastDropout(share)(x))
    assert torch.equal(*found)  # of one seed
    kept = found[0] != 0
    assert abs(kept.float().mean().item() - (1 - share)) < 0.005
    assert_close_in_float32(found[0][kept] * (1 - share), x[kept])
    found[0].sum().backward()
    assert x.grad is not None
    assert_close_in_float32(x.grad * (1 - share), kept.float())  # what was dropped learns nothing
    assert FastDropout(share).eval()(x) is x


def test_every_dropout_of_a_network_becomes_one():
    network = drawn(dropout=0.25)
    replace_dropout(network, FastDropout)
    dropouts = [each for each in network.modules() if isinstance(each, nn.Dropout)]
    assert len(dropouts) > 5
    assert {type(each) for each in dropouts} == {FastDropout}
    assert 0.25 in {each.p for each in dropouts}
