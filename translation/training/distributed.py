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

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from translation.environment import exit_with_parent
from translation.errors import TranslationError, UsageError
from translation.transformer import prepare_cuda

# The longest that a process waits for the others: while rank 0 prepares the corpus, they all do.
TIMEOUT = timedelta(hours=12)
POLL_S = 0.2  # between checks of the processes
EXIT_S = 10  # for rank 0 to end by itself
# The variables of the environment that `launch_processes` sets. With the first, the process id of
# the launcher, a process ends when the launcher does. The second is a file by which the processes
# find each other. Only this user may open it, while a port could belong to another training.
PARENT = "DTML_TRAINING_PARENT"
RENDEZVOUS = "DTML_TRAINING_RENDEZVOUS"
LOST = (
    "another process of the training run has ended: read its error message, if any, remove the "
    "cause, and run the same command again to resume from the last check"
)


@dataclass(frozen=True)
class ProcessGroup:
    """Process `rank` of `world_size` processes, which share the pairs of every update."""

    rank: int = 0
    world_size: int = 1

    def reduce_gradients(self, network: nn.Module, loss: Tensor, tokens: int) -> tuple[float, int]:
        """Sum the gradients over all processes, in place, and return the sums of the figures.

        Raises TranslationError if another process has ended.
        """
        if self.world_size == 1:
            return loss.item(), tokens
        gradients: list[Tensor] = []
        for parameter in network.parameters():
            if parameter.grad is None:  # of a process that had no batch
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        figures = torch.zeros(2, device=loss.device, dtype=torch.float32)
        figures[0] = loss  # no number, for which a GPU would be waited for
        figures[1] = tokens
        # Figures and gradients in one tensor: one exchange is faster than many.
        flat = torch.cat([figures, parameters_to_vector(gradients)])
        with _lost_process_reported():
            dist.all_reduce(flat)
        totals = flat[len(figures) :].split([gradient.numel() for gradient in gradients])
        for gradient, total in zip(gradients, totals, strict=True):
            gradient.copy_(total.view_as(gradient))  # where recorded work adds to it
        total_loss, total_tokens = flat[: len(figures)].tolist()
        return total_loss, int(total_tokens)

    def all_reduce(self, figures: Tensor) -> Tensor:
        """Return the sum of `figures`, alike in shape and type, over all processes, on the CPU."""
        if self.world_size == 1:
            return figures
        shared = figures.cuda() if dist.get_backend() == "nccl" else figures.clone()
        with _lost_process_reported():
            dist.all_reduce(shared)
        return shared.cpu()

    def broadcast(self, figure: float) -> float:
        """Return the `figure` of rank 0 in every process, whose clocks differ."""
        addend = figure if self.rank == 0 else 0.0
        return self.all_reduce(torch.tensor([addend], dtype=torch.float64)).item()


@contextmanager
def _lost_process_reported() -> Iterator[None]:
    """Turn the error of an exchange with a process that has ended into a TranslationError."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises no other exception, whatever happened to the other process.
        raise TranslationError(LOST) from error


SINGLE_PROCESS = ProcessGroup()


def require_device(device: str) -> None:
    """Raise UsageError for the device cuda on a machine without one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("this machine has no CUDA device: use --device cpu")


def join_process_group(device: str) -> tuple[ProcessGroup, torch.device]:
    """Join the processes that torchrun or `launch_processes` started; return group and device.

    The group is `SINGLE_PROCESS` if there is no other process. One that `launch_processes` started
    ends when its launcher does. With cuda, calls `prepare_cuda`, and raises UsageError if there are
    fewer devices than processes.
    """
    require_device(device)
    if device == "cuda":
        prepare_cuda()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return SINGLE_PROCESS, torch.device(device)
    parent = os.environ.get(PARENT)
    if parent:
        exit_with_parent(int(parent))
    local_rank = int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UsageError(
                f"process {local_rank + 1} has no CUDA device, because this machine has {count}: "
                "start at most one process per device, or use --device cpu"
            )
    file = os.environ.get(RENDEZVOUS)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        timeout=TIMEOUT,
        init_method=f"file://{file}" if file else "env://",
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=int(os.environ["RANK"]),
    )
    # Without this, the group's threads may abort the process when it ends.
    atexit.register(dist.destroy_process_group)
    process_group = ProcessGroup(rank=dist.get_rank(), world_size=dist.get_world_size())
    if device != "cuda":
        return process_group, torch.device(device)
    local_device = torch.device("cuda", local_rank)
    torch.cuda.set_device(local_device)
    return process_group, local_device


def launch_processes(command: Sequence[str], world_size: int) -> int:
    """Run a command in several processes; return the exit code of one that fails, or 0.

    If a signal killed it, the code is minus the signal's number. The processes share the threads of
    this one. SIGINT and SIGTERM are passed on to rank 0; when rank 0 ends or any process fails, all
    are ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"{folder}/rendezvous"
        processes = [_launch(command, rank, world_size, rendezvous) for rank in range(world_size)]
        first = processes[0]
        with _signals_passed_on(first):
            # poll() is None while a process runs, and 0 after its success.
            while first.poll() is None and not any(process.poll() for process in processes):
                time.sleep(POLL_S)
            with suppress(subprocess.TimeoutExpired):
                first.wait(EXIT_S)  # rank 0 notices that another process is lost, and says so
        # Collected before the others are terminated, as these would count as failures too.
        failures = [process.returncode for process in processes if process.returncode]
        for process in processes:
            process.terminate()
            process.wait()
        return failures[0] if failures else 0


def _launch(
    command: Sequence[str], rank: int, world_size: int, rendezvous: str
) -> subprocess.Popen[bytes]:
    threads = max(1, torch.get_num_threads() // world_size)
    environment = {
        **os.environ,
        RENDEZVOUS: rendezvous,
        PARENT: str(os.getpid()),
        "WORLD_SIZE": str(world_size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "OMP_NUM_THREADS": str(threads),
    }
    # In a session of its own, Ctrl-C in a terminal reaches the launcher alone, which passes it on.
    return subprocess.Popen(command, env=environment, start_new_session=True)  # noqa: S603


@contextmanager
def _signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(number: int, _: object) -> None:
        process.send_signal(number)

    handler_of_interrupt = signal.signal(signal.SIGINT, pass_on)
    handler_of_termination = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler_of_interrupt)
        signal.signal(signal.SIGTERM, handler_of_termination)
