"""The trainings of a walk: each is done once, its scores kept in a file; some run side by side."""

import io
import logging
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from dtml.errors import DtmlError
from dtml.ranking.panel import Grid
from dtml.ranking.rankers import RankersConfig, Training
from dtml.ranking.relative import NETWORKS
from dtml.ranking.walk import History
from flows.progress import rankings_progress
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)

WORKER_GONE = (
    "a process that trained rankers was killed, perhaps because the machine ran out of memory: run "
    "the same command again with fewer --workers; it goes on where this one stopped"
)


def _scores_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


def train_once(folder: Path, name: str, train: Callable[[], Grid]) -> Grid:
    """Return the scores of a training from its file in the folder; train and write it if missing.

    So an interrupted walk resumes where it stopped, and finds what other processes trained.
    """
    file = _scores_file(folder, name)
    if not file.exists():
        trained_scores = train()
        # The array is written to memory first: given a path, `np.save` adds .npy to the name.
        with io.BytesIO() as buffer:
            np.save(buffer, trained_scores, allow_pickle=False)
            data = buffer.getvalue()
        write_whole(file, lambda path: path.write_bytes(data))
        log.info("%s: trained and scored %s", folder.name, name)
    scores: Grid = np.load(file, allow_pickle=False)
    return scores


def train_side_by_side(
    trainings: Iterable[Training],
    history: History,
    config: RankersConfig,
    *,
    market: str,
    folder: Path,
    workers: int,
) -> None:
    """Run, in `workers` processes, the trainings whose scores the folder lacks; the slowest first.

    Each process writes the scores of its trainings into the folder. The progress shows the market.
    If one training fails, all processes are killed. Raises DtmlError if a process was killed from
    outside.
    """
    missing = [each for each in trainings if not _scores_file(folder, each.name).exists()]
    pool = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=get_context("spawn"),
        initializer=_begin_worker,
        initargs=(folder, history, config),
    )
    try:
        ordered = sorted(missing, key=_speed)
        futures = [pool.submit(_train_one, training) for training in ordered]
        with rankings_progress(market, len(futures)) as on_training:
            for training, future in zip(ordered, futures, strict=True):
                future.result()
                on_training(training.name)
    except BaseException as error:
        # A worker ignores SIGINT, and the pool would wait for the training that it is at.
        for process in list(pool._processes.values()):
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise DtmlError(WORKER_GONE) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _speed(training: Training) -> int:
    """Return a number that sorts the slowest kind of training first."""
    if training.predictor in NETWORKS:
        return 0
    if training.predictor == "boosting":
        return 1
    return 2


# In a worker process it has one entry, which `_begin_worker` adds: the history is sent only once.
_worker_inputs: list[tuple[Path, History, RankersConfig]] = []


def _begin_worker(folder: Path, history: History, config: RankersConfig) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    # One thread for each worker: together they use the cores.
    torch.set_num_threads(1)
    threadpool_limits(1)
    _worker_inputs.append((folder, history, config))


def _train_one(training: Training) -> None:
    folder, history, config = _worker_inputs[0]
    train_once(folder, training.name, partial(training.run, history, config))
