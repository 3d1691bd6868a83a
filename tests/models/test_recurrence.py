"""The LSTM over windows is the equations', forward and backward, and torch's
own with the same weights.
"""

import pytest
import torch
from torch import Tensor, nn

from dtml.model import LSTM
from tests.support.bounds import assert_close_in_float64

SESSIONS, SYMBOLS, INPUTS, HIDDEN, DAYS, WINDOW = 43, 5, 7, 13, 37, 3


@pytest.fixture
def lstm() -> LSTM:
    torch.manual_seed(3)
    return LSTM(HIDDEN, INPUTS).double()


@pytest.fixture
def seen() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(
        SESSIONS, SYMBOLS, INPUTS, generator=generator, dtype=torch.float64, requires_grad=True
    )
    return rows, torch.randint(0, SESSIONS, (DAYS, WINDOW), generator=generator)


def written_out(lstm: LSTM, rows: Tensor, windows: Tensor) -> Tensor:
    """gates_t = W x_t + b + U h_(t-1), c_t = forget c_(t-1) + input candidate,
    h_t = output tanh(c_t).
    """
    state = memory = rows.new_zeros(len(windows), SYMBOLS, HIDDEN)
    states = []
    for t in range(WINDOW):
        gates = lstm.from_input(rows[windows[:, t]]) + lstm.from_state(state)
        enter, keep, leave, candidate = gates.chunk(4, dim=-1)
        memory = keep.sigmoid() * memory + enter.sigmoid() * candidate.tanh()
        state = leave.sigmoid() * memory.tanh()
        states.append(state)
    return torch.stack(states)


def test_states_and_gradients_are_those_of_the_equations(
    lstm: LSTM, seen: tuple[Tensor, Tensor]
) -> None:
    weight = torch.randn(
        WINDOW,
        DAYS,
        SYMBOLS,
        HIDDEN,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    ours, expected = lstm(*seen), written_out(lstm, *seen)
    assert_close_in_float64(ours, expected)
    wanted = [seen[0], *lstm.parameters()]
    found, right = (
        torch.autograd.grad((states * weight).sum(), wanted) for states in (ours, expected)
    )
    for mine, theirs in zip(found, right, strict=True):
        assert_close_in_float64(mine, theirs)


def test_it_is_torchs_lstm_with_the_gates_in_our_order(
    lstm: LSTM, seen: tuple[Tensor, Tensor]
) -> None:
    theirs = nn.LSTM(INPUTS, HIDDEN).double()
    # torch: input, forget, candidate, output
    order = torch.arange(4 * HIDDEN).view(4, HIDDEN)[[0, 1, 3, 2]].flatten()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(lstm.from_input.weight[order])
        theirs.weight_hh_l0.copy_(lstm.from_state.weight[order])
        theirs.bias_ih_l0.copy_(lstm.from_input.bias[order])
        theirs.bias_hh_l0.zero_()
    rows, windows = seen
    expected = theirs(rows[windows.mT].flatten(1, 2))[0].unflatten(1, (DAYS, SYMBOLS))
    assert_close_in_float64(lstm(rows, windows), expected)
