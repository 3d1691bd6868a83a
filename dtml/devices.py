"""Choose what computes: the CPU, or a GPU where a training is long enough to be sooner there."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dtml.errors import DtmlError
from dtml.network import NetworkConfig
from dtml.training import TrainingConfig
from translation.transformer import prepare_cuda

# Measured seconds: benchmarks/README.md, "On a GPU". A unit is a hidden unit of a stock in a
# session of its window, forward and backward.
CPU_UNIT_S = 1e-7  # of one core, which trains one seed at a time
GPU_UNIT_S = 5.6e-10
GPU_STEP_S = 0.008  # of a DTML, however small
GPU_START_S = 15.0


@dataclass(frozen=True)
class Load:
    """How long a training would take: on one core, on a GPU that has started, and on how many cores
    it can be at once.
    """

    core_seconds: float
    cores: int
    gpu_seconds: float

    @classmethod
    def of(
        cls,
        model: NetworkConfig,
        training: TrainingConfig,
        *,
        seeds: int,
        days: int,
        stocks: int,
        window: int,
    ) -> "Load":
        """Return the load of all seeds of one configuration, on so many days."""
        stocks = min(stocks, training.stocks_a_step or stocks)
        steps = training.epochs * math.ceil(days / training.batch_days)
        units = seeds * training.epochs * days * stocks * window * model.hidden
        return cls(
            core_seconds=units * CPU_UNIT_S,
            cores=seeds,
            gpu_seconds=steps * GPU_STEP_S + units * GPU_UNIT_S,
        )


def choose_device(name: str, loads: Sequence[Load] | None = None) -> torch.device:
    """Return the device "cpu" or "cuda", with deterministic operations.

    "auto" is the one that trains `loads`, one after the other, sooner; where they are unknown, a
    GPU that there is. Raises DtmlError for CUDA on a machine without it.
    """
    has_gpu = torch.cuda.is_available()
    if name == "auto":
        is_for_gpu = has_gpu and (loads is None or not is_sooner_on_cpu(loads))
        name = "cuda" if is_for_gpu else "cpu"
    if name == "cuda":
        if not has_gpu:
            raise DtmlError("torch finds no CUDA device here: use --device auto or cpu")
        prepare_cuda()
    return torch.device(name)


def is_sooner_on_cpu(loads: Sequence[Load]) -> bool:
    """Return whether this machine's CPU trains `loads`, one after the other, before a GPU would."""
    cores = os.cpu_count() or 1  # the same in every process, whose threads may differ
    on_cpu = sum(load.core_seconds / min(load.cores, cores) for load in loads)
    on_gpu = GPU_START_S + sum(load.gpu_seconds for load in loads)
    return on_cpu < on_gpu


def name_of(device: torch.device) -> str:
    """Return the name of a device; a GPU's includes its model and its UUID."""
    if device.type != "cuda":
        return str(device)
    gpu = torch.cuda.get_device_properties(device)
    return f"{device}, {gpu.name}, {gpu.uuid}"
