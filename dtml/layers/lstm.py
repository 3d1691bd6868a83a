"""An LSTM over windows of sessions, forward and backward, for many members at once.

Axes: `members` of a stacked training, `sessions` projected once, `days` whose `window` names sessions by position,
`symbols`, `hidden` units; `gates` are 4 x hidden, in the order input, forget, output, candidate.

It is written out because autograd would keep five more tensors a session and add up a gradient as large as all
projections after each of them. Here every gate is activated in place, days go through in chunks that stay in a core's
cache, one buffer takes the gradient of the projections, and on CPU the buffers of a step serve the next one: fresh
memory costs more than the sums that fill it. `tests/test_dtml_recurrence.py` compares it with the four lines that it
replaces.
"""

import threading
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

DAYS_AT_ONCE = 16  # a chunk of days: their gates of one session fit the second-level cache of a core
KEPT_BUFFERS = 6  # what one step borrows

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def recur(
    x: Float[Tensor, "sessions symbols inputs"],
    windows: Int[Tensor, "days window"],
    from_input: Float[Tensor, "gates inputs"],
    bias: Float[Tensor, " gates"],
    from_state: Float[Tensor, "gates hidden"],
) -> Float[Tensor, "window days symbols hidden"]:
    """Return the hidden states after each session of each day's window, from states and memories of zero.

    gates_t = from_input x_t + bias + from_state h_(t-1), c_t = forget c_(t-1) + input candidate,
    h_t = output tanh(c_t).
    """
    inputs = (value.unsqueeze(0) for value in (x, windows, from_input, bias, from_state))
    states: Tensor = _Recurrence.apply(*inputs)[0]  # type: ignore[no-untyped-call]
    return states.squeeze(1)


class _Recurrence(torch.autograd.Function):
    """Takes a leading axis of members; under `torch.vmap` the mapped axis joins it."""

    @staticmethod
    def forward(x: Tensor, windows: Tensor, from_input: Tensor, bias: Tensor, from_state: Tensor) -> tuple[Tensor, ...]:
        """Return states, and for the backward pass activated gates, memories and their tanh; all time first."""
        members, sessions, symbols, _ = x.shape
        days, window = windows.shape[1:]
        width, hidden = from_state.shape[1:]
        projected = _borrow((members, sessions * symbols, width), x)
        torch.baddbmm(bias.unsqueeze(1), x.flatten(1, 2), from_input.mT, out=projected)
        table, at = _table(projected, windows, symbols)
        gates = _borrow((window, members, days, symbols, width), x)
        cells, tanhs = (_borrow((window, members, days, symbols, hidden), x) for _ in range(2))
        states = x.new_empty(window, members, days, symbols, hidden)
        for part in _chunks(members, days, x.device):
            for t in range(window):
                gate = gates[t, :, part]
                torch.index_select(table, 0, at[t, :, part].flatten(), out=gate.view(-1, symbols * width))
                if t:
                    gate.flatten(1, 2).baddbmm_(states[t - 1, :, part].flatten(1, 2), from_state.mT)
                gate[..., : 3 * hidden].sigmoid_()
                gate[..., 3 * hidden :].tanh_()
                enter, keep, leave, candidate = gate.split(hidden, dim=-1)
                cell = torch.mul(enter, candidate, out=cells[t, :, part])
                if t:
                    cell.addcmul_(keep, cells[t - 1, :, part])
                tanh = torch.tanh(cell, out=tanhs[t, :, part])
                torch.mul(leave, tanh, out=states[t, :, part])
        _give_back(projected)
        return states, gates, cells, tanhs

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Save what the backward pass reads; only the states have a gradient."""
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        if any(value.requires_grad for value in inputs):
            ctx.save_for_backward(*inputs, *output)
        else:
            _give_back(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of inputs, weights and bias; only once, as the buffers then serve other steps."""
        if getattr(ctx, "spent", False):
            raise RuntimeError("the recurrence goes backward once: its buffers serve other steps now; run it anew")
        ctx.spent = True
        x, windows, from_input, _, from_state, states, gates, cells, tanhs = ctx.saved_tensors
        members, sessions, symbols, inputs = x.shape
        grad_projected = _borrow((members, sessions * symbols, from_state.shape[1]), x).zero_()
        grad_from_state = _through_time(grad, windows, from_state, (states, gates, cells, tanhs), grad_projected)
        grad_x = torch.bmm(grad_projected, from_input).view(members, sessions, symbols, inputs)
        grad_from_input = torch.bmm(grad_projected.mT, x.flatten(1, 2))
        grad_bias = grad_projected.sum(dim=1)
        _give_back(gates, cells, tanhs, grad_projected)
        return grad_x, None, grad_from_input, grad_bias, grad_from_state

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Fold the mapped axis into the axis of members."""
        size, pairs = info.batch_size, zip(inputs, in_dims, strict=True)
        spread = (x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs)
        found = _Recurrence.apply(*(x.flatten(0, 1) for x in spread))  # type: ignore[no-untyped-call]
        return tuple(x.unflatten(1, (size, -1)) for x in found), (1,) * len(found)


def _through_time(
    grad: Tensor, windows: Tensor, from_state: Tensor, kept: tuple[Tensor, Tensor, Tensor, Tensor], projected: Tensor
) -> Tensor:
    """Add the gradient of each session's projection to `projected`; return the gradient of `from_state`."""
    states, gates, cells, tanhs = kept
    window, members, days, symbols, width = gates.shape
    hidden = width // 4
    table, at = _table(projected, windows, symbols)
    chunks = _chunks(members, days, grad.device)
    buffer = _borrow(gates[:, :, chunks[0]].shape, grad)
    grad_from_state = torch.zeros_like(from_state)
    for part in chunks:
        grad_gates = buffer[:, :, : part.stop - part.start]
        grad_cell = grad_state = None
        for t in reversed(range(window)):
            gate, grad_gate, tanh = gates[t, :, part], grad_gates[t], tanhs[t, :, part]
            before = cells[t - 1, :, part] if t else None
            grad_state = grad[t, :, part] if grad_state is None else grad_state.add_(grad[t, :, part])
            grad_cell = _through_cell(grad_state, grad_cell, gate, grad_gate, tanh, before)
            table.index_add_(0, at[t, :, part].flatten(), grad_gate.view(-1, symbols * width))
            if t:
                grad_cell = grad_cell.mul_(gate[..., hidden : 2 * hidden])
                grad_state = torch.bmm(grad_gate.flatten(1, 2), from_state).view_as(tanh)
        for member in range(members):
            rows = grad_gates[1:, member].reshape(-1, width)
            grad_from_state[member].addmm_(rows.mT, states[:-1, member, part].reshape(-1, hidden))
    _give_back(buffer)
    return grad_from_state


def _through_cell(
    grad_state: Tensor, grad_cell: Tensor | None, gate: Tensor, grad_gate: Tensor, tanh: Tensor, before: Tensor | None
) -> Tensor:
    """Fill the gradient of one session's gates, before their activation, and return that of its memory."""
    hidden = tanh.shape[-1]
    enter, _, leave, candidate = gate.split(hidden, dim=-1)
    grad_enter, grad_keep, grad_leave, grad_candidate = grad_gate.split(hidden, dim=-1)
    torch.mul(grad_state, tanh, out=grad_leave)
    through_tanh = grad_state * leave
    _tanh_backward(through_tanh, tanh, grad_input=through_tanh)
    grad_cell = through_tanh if grad_cell is None else grad_cell.add_(through_tanh)
    torch.mul(grad_cell, candidate, out=grad_enter)
    torch.mul(grad_cell, enter, out=grad_candidate)
    if before is None:
        grad_keep.zero_()
    else:
        torch.mul(grad_cell, before, out=grad_keep)
    sigmoids = slice(0, 3 * hidden)
    _sigmoid_backward(grad_gate[..., sigmoids], gate[..., sigmoids], grad_input=grad_gate[..., sigmoids])
    _tanh_backward(grad_candidate, candidate, grad_input=grad_candidate)
    return grad_cell


def _table(projected: Tensor, windows: Tensor, symbols: int) -> tuple[Tensor, Tensor]:
    """Return all members' sessions as rows of one table, and the row of each member's day at each step."""
    members, rows, width = projected.shape
    first = rows // symbols * torch.arange(members, device=windows.device)
    return projected.view(-1, symbols * width), (windows + first.view(-1, 1, 1)).movedim(2, 0)


def _chunks(members: int, days: int, device: torch.device) -> list[slice]:
    """Return the days that go through together: a few on CPU; all on an accelerator, or where members are stacked."""
    step = DAYS_AT_ONCE if members == 1 and device.type == "cpu" else days
    return [slice(first, min(first + step, days)) for first in range(0, days, step)]


class _Workspace(threading.local):
    """A thread's free buffers, for the next step; an accelerator's allocator does this by itself."""

    def __init__(self) -> None:
        self.free: list[Tensor] = []


_workspace = _Workspace()


def _borrow(shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
    """Return an uninitialised tensor, in memory that an earlier step gave back where some is large enough."""
    size = torch.Size(shape).numel()
    fitting = [i for i, flat in enumerate(_workspace.free) if flat.dtype == like.dtype and flat.numel() >= size]
    if like.device.type != "cpu" or not fitting:
        return like.new_empty(shape)
    smallest = min(fitting, key=lambda i: _workspace.free[i].numel())
    return _workspace.free.pop(smallest)[:size].view(shape)


def _give_back(*buffers: Tensor) -> None:
    """Free these buffers for the next step; nobody may read them any more. The largest few are kept."""
    if buffers[0].device.type == "cpu":
        flat = [buffer.new_empty(0).set_(buffer.untyped_storage()) for buffer in buffers]
        waiting = sorted([*_workspace.free, *flat], key=Tensor.numel)
        _workspace.free = waiting[-KEPT_BUFFERS:]
