"""Processes beside this one that share the work of a study."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import Any

from dtml.errors import DtmlError

WORKER_GONE = (
    "a process that trained was killed, perhaps because the machine ran out of memory: run the "
    "same command again with fewer --workers; it goes on where this one stopped"
)


@contextmanager
def worker_pool(
    workers: int, begin: Callable[..., None], *inputs: Any
) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool, each of whose processes first calls `begin` with `inputs`.

    They are killed when the block raises, and when this process ends, however it ends. Raises
    DtmlError if one of them was killed from outside.
    """
    pool = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(begin, inputs),
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


def _begin(begin: Callable[..., None], inputs: tuple[Any, ...]) -> None:
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    begin(*inputs)
