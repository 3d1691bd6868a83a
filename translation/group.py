"""Several processes that train one network: processors or GPUs, on one machine or many, started by torchrun."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from translation.errors import UsageError


@dataclass(frozen=True)
class Group:
    """`rank` of `size` processes, each with its own share of every update's batches."""

    rank: int = 0
    size: int = 1

    def sum_up(self, network: nn.Module, loss: float, tokens: int) -> tuple[float, int]:
        """Sum the gradients over the group, in place, and the figures of an update."""
        if self.size == 1:
            return loss, tokens
        gradients = [each.grad for each in network.parameters() if each.grad is not None]
        figures = torch.tensor([loss, tokens], dtype=torch.float32, device=gradients[0].device)
        flat = torch.cat([figures, *(each.flatten() for each in gradients)])
        dist.all_reduce(flat)
        start = 2
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()
        return flat[0].item(), int(flat[1].item())

    def agree(self, figure: float) -> float:
        """The first process's figure, for all: clocks differ, and a training must end everywhere at once."""
        if self.size == 1:
            return figure
        told = torch.tensor([figure], dtype=torch.float64)
        if dist.get_backend() == "nccl":
            told = told.cuda()
        dist.broadcast(told, 0)
        return told.item()


ALONE = Group()


def join_group(device: str) -> tuple[Group, torch.device]:
    """Take the place that torchrun gives by the environment; alone where it gives none.

    Raises UsageError for a CUDA device that is not there.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device is to be had: choose the device cpu")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ALONE, torch.device(device)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    group = Group(dist.get_rank(), dist.get_world_size())
    if device != "cuda":
        return group, torch.device(device)
    own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(own)
    return group, own
