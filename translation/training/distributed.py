"""Train one network in several processes: of this machine, or of torchrun's GPUs and machines."""

import atexit
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from translation.errors import TranslationError, UsageError
from translation.exit_with_parent import exit_with_parent

# for the others to answer: they wait while rank 0 prepares the corpus
TIMEOUT = timedelta(hours=12)
POLL_S, EXIT_S = 0.2, 10  # between looks at the processes, and for rank 0 to end by itself
PARENT = "DTML_TRAINING_PARENT"  # the process id of the launcher, with which a process exits
# a file that nobody else may open: a port could be another training's
RENDEZVOUS = "DTML_TRAINING_RENDEZVOUS"
LOST = (
    "another process of the training run ended: run the same command again to resume from the "
    "last check"
)


@dataclass(frozen=True)
class ProcessGroup:
    """Process `rank` of `world_size`, each of which computes its own share of
    every update's pairs.
    """

    rank: int = 0
    world_size: int = 1

    def reduce_gradients(
        self, network: nn.Module, figures: tuple[float, int, bool]
    ) -> tuple[float, int, bool]:
        """Sum the gradients over all processes, in place; return `figures`
        summed: loss, tokens, whether any asks.
        """
        if self.world_size == 1:
            return figures
        parameters = list(network.parameters())
        for each in parameters:  # of a process that had no batch
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        gradients = [each.grad for each in parameters if each.grad is not None]
        summed = torch.tensor(figures, dtype=torch.float32, device=gradients[0].device)
        flat = torch.cat([summed, *(each.flatten() for each in gradients)])
        with _loss_of_others_reported():
            dist.all_reduce(flat)
        start = len(figures)
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()
        return flat[0].item(), int(flat[1].item()), flat[2].item() > 0

    def all_reduce(self, figures: Tensor) -> Tensor:
        """Return the sum of all processes' `figures`, of the same shape and type, on the CPU."""
        if self.world_size == 1:
            return figures
        shared = figures.cuda() if dist.get_backend() == "nccl" else figures.clone()
        with _loss_of_others_reported():
            dist.all_reduce(shared)
        return shared.cpu()

    def broadcast(self, figure: float) -> float:
        """Return rank 0's `figure` to all: clocks differ, and a training must
        end everywhere at the same step.
        """
        return self.all_reduce(
            torch.tensor([figure if self.rank == 0 else 0.0], dtype=torch.float64)
        ).item()


@contextmanager
def _loss_of_others_reported() -> Iterator[None]:
    try:
        yield
    except (
        RuntimeError
    ) as error:  # the only one that gloo raises, whatever happened to the other process
        raise TranslationError(LOST) from error


SINGLE_PROCESS = ProcessGroup()


def join_process_group(device: str) -> tuple[ProcessGroup, torch.device]:
    """Join the processes that torchrun or `launch_processes` started, and return the device of this
    one.

    Returns `SINGLE_PROCESS` if the environment names no others. Raises UsageError if there is no
    CUDA device, or fewer than there are processes on this machine.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device is available: choose the device cpu")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return SINGLE_PROCESS, torch.device(device)
    if parent := os.environ.get(PARENT):
        exit_with_parent(int(parent))
    local = int(os.environ["LOCAL_RANK"])
    if device == "cuda" and local >= (count := torch.cuda.device_count()):
        found = f"process {local + 1} finds {count} CUDA devices here"
        raise UsageError(f"{found}: start one process per device, or choose cpu")
    rendezvous: dict[str, Any] = {}
    if file := os.environ.get(RENDEZVOUS):
        world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        rendezvous = {"init_method": f"file://{file}", "world_size": world_size, "rank": rank}
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=TIMEOUT, **rendezvous)
    atexit.register(dist.destroy_process_group)  # whose threads may abort a process that ends
    process_group = ProcessGroup(dist.get_rank(), dist.get_world_size())
    if device != "cuda":
        return process_group, torch.device(device)
    own = torch.device("cuda", local)
    torch.cuda.set_device(own)
    return process_group, own


def launch_processes(command: Sequence[str], world_size: int) -> int:
    """Run a command in `world_size` processes of this machine; return the exit code of one that
    fails, or 0.

    They share the threads of this process, by default its cores. Signals to this process are passed
    on to rank 0; when it ends or any process fails, all end.
    """
    with tempfile.TemporaryDirectory() as folder:
        threads = max(1, torch.get_num_threads() // world_size)
        shared = {
            RENDEZVOUS: f"{folder}/rendezvous",
            PARENT: str(os.getpid()),
            "WORLD_SIZE": str(world_size),
        }
        processes: list[subprocess.Popen[bytes]] = []
        for rank in range(world_size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": str(threads)}
            environment = os.environ | shared | own
            processes.append(
                subprocess.Popen(command, env=environment, start_new_session=True)  # noqa: S603
            )
        ends = (signal.SIGINT, signal.SIGTERM)
        before = {
            each: signal.signal(each, lambda received, _: processes[0].send_signal(received))
            for each in ends
        }
        while processes[0].poll() is None and not any(each.poll() for each in processes):
            time.sleep(POLL_S)
        with suppress(subprocess.TimeoutExpired):
            processes[0].wait(EXIT_S)  # it notices that another is lost, and says so
        for number, handler in before.items():
            signal.signal(number, handler)
        failed = next((each.returncode for each in processes if each.returncode), 0)
        for each in processes:
            each.terminate()
            each.wait()
        return failed
