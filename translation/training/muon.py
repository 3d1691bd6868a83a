"""Move matrices by their orthogonalised momentum: Muon (Jordan et al., 2024),
many matrices at a time.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# Of the quintic iteration that brings singular values near 1, and how often it is made: Jordan et
# al., 2024.
LINEAR, CUBIC, QUINTIC = 3.4445, -4.775, 2.0315
ITERATIONS = 5
MOMENTUM, RMS = 0.95, 0.2  # an update is as large as Adam's: Liu et al., 2025


class Muon(Optimizer):
    """The update of `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` and without weight
    decay.

    Matrices of one shape are orthogonalised together, which takes a little more than half of the
    time for the forty small ones of a Transformer.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 0.001,
        *,
        products: torch.dtype = torch.bfloat16,
    ) -> None:
        """Multiply matrices in the type `products`; no more than bfloat16 is needed."""
        super().__init__(parameters, {"lr": lr})
        self.products = products

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - as torch asks
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, matrices in by_shape.items():
                moved = orthogonal(self._momenta(matrices), self.products)
                rate = group["lr"] * RMS * math.sqrt(max(shape))
                torch._foreach_add_(matrices, list(moved.to(matrices[0].dtype)), alpha=-rate)

    def _momenta(self, matrices: list[Tensor]) -> Tensor:
        """Return the momenta of Nesterov, `[matrices, rows, columns]`."""
        states: list[dict[str, Any]] = [self.state[each] for each in matrices]
        for state, matrix in zip(states, matrices, strict=True):
            state.setdefault("momentum_buffer", torch.zeros_like(matrix))
        kept = [state["momentum_buffer"] for state in states]
        gradients = [each.grad for each in matrices if each.grad is not None]
        torch._foreach_lerp_(kept, gradients, 1 - MOMENTUM)
        return torch.stack(torch._foreach_lerp(gradients, kept, MOMENTUM))


def orthogonal(matrices: Tensor, products: torch.dtype = torch.bfloat16) -> Tensor:
    """Return matrices of the same singular vectors and singular values near 1.

    Both are `[matrices, rows, columns]`; the result has the type `products`, in which matrices are
    multiplied.
    """
    x = matrices.to(products)
    if x.shape[-2] > x.shape[-1]:
        return orthogonal(matrices.mT, products).mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(gram, gram, gram, beta=CUBIC, alpha=QUINTIC), x, beta=LINEAR
        )
    return x
