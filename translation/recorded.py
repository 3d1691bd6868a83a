"""Repeat the same work on a GPU as a CUDA graph, whose kernels start without Python."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from translation.errors import TranslationError

WARM_UP = 3  # runs before work is recorded, in which libraries choose kernels and take memory
_recording = threading.Lock()  # torch records one graph of a process at a time


class RecordingError(TranslationError):
    """Work cannot be recorded; the message says why and what to do."""


class Recorder:
    """Where a device does work that it repeats: recorded work is called inside `with stream`.

    Recorded work must neither wait for the GPU nor keep a tensor that it made, whose memory other
    work will use. Its random numbers come from `generators` or torch's.
    """

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
        self.generators = generators
        self.is_able = device.type == "cuda" and os.environ.get("DTML_CUDA_GRAPHS") != "0"
        self.stream: AbstractContextManager[object] = nullcontext()
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what the stream reads is there
            self.stream = torch.cuda.stream(_stream_of(device))
            self.memory = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record work without running it, for `replay`; raises RecordingError."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.current_blas_handle()  # of this thread, which cannot make it while it records
        recording = torch.cuda.graph(
            graph,
            pool=self.memory,
            stream=torch.cuda.current_stream(),
            capture_error_mode="thread_local",  # other threads may work on other GPUs
        )
        try:
            with _recording, recording:
                work()
        except RuntimeError as error:
            first = error.__context__ or error  # the recording may fail to end, too
            if isinstance(first, torch.OutOfMemoryError):
                raise first from None
            raise RecordingError(
                f"torch cannot record a step on this GPU ({first}): set DTML_CUDA_GRAPHS=0, which "
                "starts each step anew, or use --device cpu"
            ) from error
        return graph


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of a GPU on which work is recorded, which libraries prepare only once."""
    return torch.cuda.Stream(device)


class Recorded:
    """Work of fixed shapes, which reads and writes the same tensors each time.

    A GPU runs it `WARM_UP` times, then records and replays it; other devices run it each time.
    """

    def __init__(self, recorder: Recorder, work: Callable[[], None]) -> None:
        self.recorder = recorder
        self.work = work
        self.runs = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the work once."""
        if self.graph is None and self.recorder.is_able and self.runs >= WARM_UP:
            self.graph = self.recorder.record(self.work)
        if self.graph is None:
            self.work()
        else:
            self.graph.replay()
        self.runs += 1
