"""Processes beside this one that share the work of a study."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any

from dtml.errors import DtmlError
from translation.environment import exit_with_parent

WORKER_GONE = (
    "a process that trained was killed, perhaps because the machine ran out of memory: run the "
    "same command again with fewer --workers; it goes on where this one stopped"
)


@contextmanager
def worker_pool(
    workers: int, begin: Callable[..., None], *inputs: Any
) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool, each of whose processes first calls `begin` with `inputs`.

    They are killed when the block raises or this process ends. Raises DtmlError if one was killed.
    """
    pool = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(), begin, inputs),
    )
    try:
        yield pool
    except BaseException as error:
        # They ignore SIGINT, and the pool would wait for the training that each is at.
        for process in active_children():
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise DtmlError(WORKER_GONE) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int, begin: Callable[..., None], inputs: tuple[Any, ...]) -> None:
    exit_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    begin(*inputs)
