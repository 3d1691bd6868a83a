"""Random numbers for networks, from generators that the caller owns.

Concurrent trainings race for torch's one global generator. With generators of its own, a training draws the same
numbers on any number of workers, alone or in a stack.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Generators = Sequence[torch.Generator | None]


class _Draw(torch.autograd.Function):
    """Random numbers in the shape of a tensor, uniform in [0, 1) or normal; a member draws from its own generator."""

    @staticmethod
    def forward(like: Tensor, generators: Generators, normal: bool) -> Tensor:
        """Draw with the first generator."""
        drawn = torch.empty_like(like, memory_format=torch.contiguous_format)
        return drawn.normal_(generator=generators[0]) if normal else drawn.uniform_(generator=generators[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Mark the draw as having no gradient."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None, None]:  # noqa: ARG004
        """Return no gradient."""
        return None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], like: Tensor, generators: Generators, normal: bool
    ) -> tuple[Tensor, int]:
        """Draw for each member with its own generator."""
        assert len(generators) == info.batch_size, "a generator for each member"
        assert in_dims[0] is not None
        members = like.movedim(in_dims[0], 0)
        pairs = zip(members, generators, strict=True)
        return torch.stack([_Draw.forward(member, (generator,), normal) for member, generator in pairs]), 0


class RandomLayer(nn.Module):
    """A module that draws random numbers, from one generator a member of a stacked training."""

    def __init__(self) -> None:
        super().__init__()
        self.generators: Generators = (None,)

    def drawn(self, like: Tensor, *, normal: bool) -> Tensor:
        """Draw numbers in the shape of `like`: standard normal, or uniform in [0, 1)."""
        found: Tensor = _Draw.apply(like.detach(), self.generators, normal)  # type: ignore[no-untyped-call]
        return found


class Dropout(RandomLayer):
    """Inverted dropout (Srivastava et al., JMLR 2014)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate must lie in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability `rate` while training, and scale the rest to keep the mean."""
        if not self.training or self.rate == 0:
            return x
        return x * (self.drawn(x, normal=False) >= self.rate) / (1 - self.rate)


class Gaussian(RandomLayer):
    """Standard normal random numbers for latent variables; zero outside of training."""

    def forward(self, like: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of `like` while training, else zeros."""
        return self.drawn(like, normal=True) if self.training else torch.zeros_like(like)


def use_generators(model: nn.Module, *generators: torch.Generator) -> None:
    """Make all random parts of `model`, torch's own dropout included, draw from these generators, one a member."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p).train(child.training))
    for module in model.modules():
        if isinstance(module, RandomLayer):
            module.generators = generators
