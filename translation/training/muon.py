"""Move matrices by their orthogonalised momentum, many at a time: Muon (Jordan et al., 2024)."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

# The coefficients of the polynomial that brings singular values near 1, and the number of its
# iterations: Jordan et al., 2024.
LINEAR = 3.4445
CUBIC = -4.775
QUINTIC = 2.0315
ITERATIONS = 5
MOMENTUM = 0.95
# The root mean square of an update at a learning rate of 1, which makes it as large as one of Adam:
# Liu et al., 2025.
RMS = 0.2


class Muon(Optimizer):
    """The update of `torch.optim.Muon`, without weight decay.

    Its `adjust_lr_fn` is "match_rms_adamw". Matrices of one shape are orthogonalised together,
    which takes a little more than half of the time for the forty small ones of a Transformer.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 0.001,
        *,
        product_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Multiply matrices in the type `product_dtype`, on any device.

        bfloat16 is precise enough.
        """
        super().__init__(parameters, {"lr": lr})
        self.product_dtype = product_dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - as torch asks
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, matrices in by_shape.items():
                directions = orthogonal(self._momenta(matrices), self.product_dtype)
                directions = directions.to(matrices[0].dtype)
                # An orthogonal matrix has the root mean square 1 / sqrt(max(shape)).
                rate = group["lr"] * RMS * math.sqrt(max(shape))
                torch._foreach_add_(matrices, list(directions), alpha=-rate)

    def _momenta(self, matrices: list[Tensor]) -> Tensor:
        """Update the momentum of each matrix, and return Nesterov's momenta.

        The matrices have one shape, and each has a gradient. The result is `[matrices, rows,
        columns]`.
        """
        buffers: list[Tensor] = []
        gradients: list[Tensor] = []
        for matrix in matrices:
            state = self.state[matrix]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(matrix)
            buffers.append(state["momentum_buffer"])
            if matrix.grad is not None:  # always so; a type checker cannot know it
                gradients.append(matrix.grad)
        # The momenta move towards the gradients, in place. Nesterov's momenta are new tensors: the
        # gradients, moved towards the momenta.
        torch._foreach_lerp_(buffers, gradients, 1 - MOMENTUM)
        return torch.stack(torch._foreach_lerp(gradients, buffers, MOMENTUM))


def orthogonal(matrices: Tensor, product_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return matrices with the same singular vectors, and with singular values near 1.

    Both are `[matrices, rows, columns]`. The result has the type `product_dtype`, in which matrices
    are multiplied.
    """
    rows, columns = matrices.shape[-2:]
    if rows > columns:  # the smaller of the two possible Gram matrices is cheaper
        return orthogonal(matrices.mT, product_dtype).mT
    x = matrices.to(product_dtype)
    # The iteration needs singular values of at most 1, and the norm is at least the largest one.
    # The least norm keeps a matrix of zeros at zero, which would become NaN.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=CUBIC, alpha=QUINTIC)
        x = torch.baddbmm(x, polynomial, x, beta=LINEAR)
    return x
