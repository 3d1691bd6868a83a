"""The parts of networks that draw random numbers, from a generator of their training's own."""

import torch
from torch import Tensor, nn


class RandomLayer(nn.Module):
    """A module that draws random numbers from its `generator`: that of its training, or torch's.

    None is torch's own generator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None


class Dropout(RandomLayer):
    """Inverted dropout (Srivastava et al., JMLR 2014)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate must lie in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability `rate` while training.

        The others are scaled, so that the mean stays the same.
        """
        if not self.training or self.rate == 0:
            return x
        # Contiguous, so that the same elements get the same numbers whatever the layout of `x`.
        drawn = torch.empty_like(x, memory_format=torch.contiguous_format)
        drawn.uniform_(generator=self.generator)
        return x * (drawn >= self.rate) / (1 - self.rate)


class Gaussian(RandomLayer):
    """Standard normal random numbers for latent variables; zeros outside of training."""

    def forward(self, like: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of `like` while training, else zeros."""
        drawn = torch.zeros_like(like, memory_format=torch.contiguous_format)
        return drawn.normal_(generator=self.generator) if self.training else drawn


def use_generator(model: nn.Module, generator: torch.Generator) -> None:
    """Make all random parts of `model`, torch's own dropout included, draw from this generator."""
    # torch's own dropout cannot be given a generator, so it is replaced. The list is made first, as
    # the modules change meanwhile.
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p).train(child.training))
    for module in model.modules():
        if isinstance(module, RandomLayer):
            module.generator = generator
