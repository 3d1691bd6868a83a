"""The recurrence equals the lines it stands for, forward and backward, alone and stacked."""

import pytest
import torch
from torch import Tensor

from dtml.layers.lstm import recur

SESSIONS, SYMBOLS, INPUTS, HIDDEN, DAYS, WINDOW, MEMBERS = 43, 5, 7, 13, 37, 3, 2
SHAPES = ((SESSIONS, SYMBOLS, INPUTS), (4 * HIDDEN, INPUTS), (4 * HIDDEN,), (4 * HIDDEN, HIDDEN))


def written_out(x: Tensor, windows: Tensor, from_input: Tensor, bias: Tensor, from_state: Tensor) -> Tensor:
    state = memory = torch.zeros(len(windows), x.shape[1], from_state.shape[1], dtype=x.dtype)
    states = []
    for t in range(windows.shape[1]):
        gates = x[windows[:, t]] @ from_input.T + bias + state @ from_state.T
        enter, keep, leave, candidate = gates.chunk(4, dim=-1)
        memory = keep.sigmoid() * memory + enter.sigmoid() * candidate.tanh()
        state = leave.sigmoid() * memory.tanh()
        states.append(state)
    return torch.stack(states)


@pytest.fixture
def inputs() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(MEMBERS, *shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    windows = torch.randint(0, SESSIONS, (MEMBERS, DAYS, WINDOW), generator=generator)
    x, from_input, bias, from_state = (value.requires_grad_() for value in made)
    return x, windows, from_input, bias, from_state


def gradients(states: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.autograd.grad((states * weight).sum(), [value for value in inputs if value.requires_grad])


def test_states_and_gradients_are_those_of_the_equations_for_each_member(inputs: tuple[Tensor, ...]) -> None:
    """37 days are two whole chunks of 16 and a part."""
    for member in range(MEMBERS):
        alone = tuple(value[member] for value in inputs)
        ours, expected = recur(*alone), written_out(*alone)
        torch.testing.assert_close(ours, expected)
        for mine, theirs in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_stacked_members_equal_members_alone(inputs: tuple[Tensor, ...]) -> None:
    stacked = torch.vmap(recur)(*inputs)
    alone = torch.stack([recur(*(value[member] for value in inputs)) for member in range(MEMBERS)])
    torch.testing.assert_close(stacked, alone)
    for mine, theirs in zip(gradients(stacked, inputs), gradients(alone, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_second_backward_pass_is_refused(inputs: tuple[Tensor, ...]) -> None:
    """The buffers of the first have been given to other steps: what it computed would be wrong."""
    for states, given in ((recur(*(value[0] for value in inputs)), inputs), (torch.vmap(recur)(*inputs), inputs)):
        states.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="goes backward once"):
            torch.autograd.grad(states.sum(), given[0])


def test_memory_used_again_changes_no_earlier_answer(inputs: tuple[Tensor, ...]) -> None:
    """Buffers go from step to step; what a step returned stays, and one forward pass may come between two others."""
    alone = tuple(value[0] for value in inputs)
    first = recur(*alone)
    kept = first.detach().clone()
    with torch.no_grad():
        recur(*(2 * value if value.is_floating_point() else value for value in alone))
    found = gradients(first, inputs)
    for _ in range(2):
        gradients(recur(*alone), inputs)
    assert torch.equal(first.detach(), kept)
    for mine, theirs in zip(found, gradients(written_out(*alone), inputs), strict=True):
        torch.testing.assert_close(mine, theirs)
