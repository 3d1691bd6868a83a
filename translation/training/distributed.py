"""Several processes that train one network: those of one machine, or torchrun's GPUs and machines."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from translation.errors import TranslationError, UsageError
from translation.exit_with_parent import exit_with_parent

PATIENCE = timedelta(hours=12)  # of a process for the others: the first prepares the corpus while they wait
LOOK, FAREWELL = 0.2, 10  # seconds between looks at the processes, and for the first to end by itself
STARTED_BY = "DTML_TRAINING_STARTED_BY"  # the process that a member of a group ends with
MEETING = "DTML_TRAINING_MEETING"  # a file that nobody else may open: a port could be another training's
LOST = "another process of the training ended: the same command goes on from the last check"


@dataclass(frozen=True)
class ProcessGroup:
    """`rank` of `size` processes, each with its own share of every update's batches."""

    rank: int = 0
    world_size: int = 1

    def reduce_gradients(self, network: nn.Module, figures: tuple[float, int, bool]) -> tuple[float, int, bool]:
        """Sum the gradients, in place, with an update's loss, its tokens, and whether any calls it the last."""
        if self.world_size == 1:
            return figures
        gradients = [each.grad for each in network.parameters() if each.grad is not None]
        told = torch.tensor(figures, dtype=torch.float32, device=gradients[0].device)
        flat = torch.cat([told, *(each.flatten() for each in gradients)])
        with _others_there():
            dist.all_reduce(flat)
        start = len(figures)
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()
        return flat[0].item(), int(flat[1].item()), flat[2].item() > 0

    def all_reduce(self, figures: Tensor) -> Tensor:
        """The sum of every process's figures, of the same shape and type, on the processor."""
        if self.world_size == 1:
            return figures
        told = _where_told(figures)
        with _others_there():
            dist.all_reduce(told)
        return told.cpu()

    def broadcast(self, figure: float) -> float:
        """The first process's figure, for all: clocks differ, and a training must end everywhere at once."""
        if self.world_size == 1:
            return figure
        told = _where_told(torch.tensor([figure], dtype=torch.float64))
        with _others_there():
            dist.broadcast(told, 0)
        return told.item()


def _where_told(figures: Tensor) -> Tensor:
    return figures.cuda() if dist.get_backend() == "nccl" else figures.clone()


@contextmanager
def _others_there() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo has no other, whatever befell the process on the other side
        raise TranslationError(LOST) from error


SINGLE_PROCESS = ProcessGroup()


def join_process_group(device: str) -> tuple[ProcessGroup, torch.device]:
    """Take the place that torchrun or `launch_processes` gives by the environment; alone where there is none.

    Raises UsageError for a CUDA device that is not there, and for more processes of a machine than it has of them.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device is to be had: choose the device cpu")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return SINGLE_PROCESS, torch.device(device)
    if started_by := os.environ.get(STARTED_BY):
        exit_with_parent(int(started_by))
    local = int(os.environ["LOCAL_RANK"])
    if device == "cuda" and local >= (count := torch.cuda.device_count()):
        raise UsageError(f"process {local + 1} finds {count} CUDA devices here: start one a device, or choose cpu")
    meeting: dict[str, Any] = {}
    if place := os.environ.get(MEETING):
        size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        meeting = {"init_method": f"file://{place}", "world_size": size, "rank": rank}
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=PATIENCE, **meeting)
    process_group = ProcessGroup(dist.get_rank(), dist.get_world_size())
    if device != "cuda":
        return process_group, torch.device(device)
    own = torch.device("cuda", local)
    torch.cuda.set_device(own)
    return process_group, own


def launch_processes(command: Sequence[str], size: int) -> int:
    """Run a command in `size` processes of this machine, a group; the exit code of the first that fails, or 0.

    They share the threads of this process, by default its cores. The first is told of the signals that this process
    gets; when it ends or one fails, all end.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _launch_processes(command, size, Path(folder) / "meeting")


def _launch_processes(command: Sequence[str], size: int, meeting: Path) -> int:
    threads = max(1, torch.get_num_threads() // size)
    place = {MEETING: str(meeting), STARTED_BY: str(os.getpid()), "WORLD_SIZE": str(size)}
    members: list[subprocess.Popen[bytes]] = []
    for rank in range(size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": str(threads)}
        members.append(subprocess.Popen(command, env=os.environ | place | own, start_new_session=True))  # noqa: S603
    before = {
        number: signal.signal(number, lambda told, _: members[0].send_signal(told))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    while members[0].poll() is None and not any(each.poll() for each in members):
        time.sleep(LOOK)
    with suppress(subprocess.TimeoutExpired):
        members[0].wait(FAREWELL)  # it notices that another is lost, and says so
    for number, handler in before.items():
        signal.signal(number, handler)
    failed = next((each.returncode for each in members if each.returncode), 0)
    for each in members:
        each.terminate()
        each.wait()
    return failed
