"""The LSTM over windows is torch's own with the same weights, forward and backward."""

import torch
from torch import nn

from dtml.model import LSTM
from tests.support.bounds import assert_close_in_float64

SESSIONS, SYMBOLS, INPUTS, HIDDEN, DAYS, WINDOW = 43, 5, 7, 13, 37, 3


def test_states_and_gradients_are_those_of_torchs_lstm_with_the_gates_in_our_order():
    torch.manual_seed(3)
    ours, theirs = LSTM(HIDDEN, INPUTS).double(), nn.LSTM(INPUTS, HIDDEN).double()
    # torch: input, forget, candidate, output
    order = torch.arange(4 * HIDDEN).view(4, HIDDEN)[[0, 1, 3, 2]].flatten()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.from_input.weight[order])
        theirs.weight_hh_l0.copy_(ours.from_state.weight[order])
        theirs.bias_ih_l0.copy_(ours.from_input.bias[order])
        theirs.bias_hh_l0.zero_()
    rows = torch.randn(SESSIONS, SYMBOLS, INPUTS, dtype=torch.float64, requires_grad=True)
    windows = torch.randint(0, SESSIONS, (DAYS, WINDOW))
    found = ours(rows, windows)
    expected = theirs(rows[windows.mT].flatten(1, 2))[0].unflatten(1, (DAYS, SYMBOLS))
    assert_close_in_float64(found, expected)

    weight = torch.randn_like(found)
    own = [rows, ours.from_input.weight, ours.from_state.weight, ours.from_input.bias]
    of_torch = [rows, theirs.weight_ih_l0, theirs.weight_hh_l0, theirs.bias_ih_l0]
    of_rows, *of_weights = torch.autograd.grad((found * weight).sum(), own)
    expected_of_rows, *expected_of_weights = torch.autograd.grad(
        (expected * weight).sum(), of_torch
    )
    assert_close_in_float64(of_rows, expected_of_rows)
    for mine, wanted in zip(of_weights, expected_of_weights, strict=True):
        assert_close_in_float64(mine[order], wanted)
