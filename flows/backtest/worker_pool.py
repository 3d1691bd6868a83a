"""The processes of this machine that train folds side by side."""

import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from threading import Thread

from prefect.task_runners import ProcessPoolTaskRunner

KILL_EVERY_S = 0.2


class WorkerPool(ProcessPoolTaskRunner):
    """Run tasks on Prefect's pool of processes, and end when one of its workers was ended from outside.

    Left to itself, a pool that lost a worker asks the others to end and waits until they have. It waits for ever for
    one that was just being started, for one in whose task Prefect makes that request an exception, and, at the end of
    this process, for the right to write into a pipe that the lost worker took with it.
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
