"""The processes of this machine that train folds side by side."""

import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from threading import Thread

from prefect.task_runners import ProcessPoolTaskRunner

KILL_EVERY_S = 0.2


class WorkerPool(ProcessPoolTaskRunner):
    """Run tasks on Prefect's pool of processes, and end when one of its workers was ended from outside.

    By default a pool that lost a worker asks the others to end and waits for them. It waits for ever for a worker that
    was just starting, for one in whose task Prefect turns that request into an exception, and, when this process ends,
    for a pipe's lock that the lost worker held.
    """

    def cancel_all(self) -> None:
        """End the pool: calmly, or at once when it lost a worker."""
        if self._executor is not None and self._executor._broken:
            Thread(target=_kill, args=(self._executor._processes,), daemon=True).start()
            if self._subprocess_message_queue is not None:
                self._subprocess_message_queue.cancel_join_thread()
        super().cancel_all()


def _kill(workers: Mapping[int, BaseProcess]) -> None:
    """Kill workers until this process ends: the pool may start another one meanwhile."""
    while True:
        for worker in list(workers.values()):
            worker.kill()
        time.sleep(KILL_EVERY_S)
