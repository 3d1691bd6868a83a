"""Dropout from fewer random bits: on a CPU, torch draws 64 bits for each element."""

import math

import torch
from torch import Tensor, nn


class FastDropout(nn.Dropout):
    """`nn.Dropout` with 16 random bits for each element, to which `p` is rounded."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch names it
        """Set a share `p` of the elements to 0 and multiply the others by 1 / (1 - p)."""
        if not self.training or self.p == 0 or input.is_cuda:
            return super().forward(input)
        elements = input.numel()
        word_count = math.ceil(elements / 4)  # of 64 bits, each enough for four elements
        words = torch.empty(word_count, dtype=torch.int64, device=input.device)
        words.random_(-(2**63), None)  # any 64 bits
        bits = words.view(torch.int16)[:elements].view_as(input)  # from -2^15 to 2^15 - 1
        threshold = round(self.p * 2**16) - 2**15  # a share `p` of the numbers lies below it
        survives = bits >= threshold
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return input * survives.to(input.dtype).mul_(scale)
