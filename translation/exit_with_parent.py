"""Exit together with the process that started this one, even if that one is killed."""

import os
import time
from threading import Thread


def exit_with_parent(parent: int) -> None:
    """Exit at once with code 1 when process `parent` is no longer the parent of this one.

    A thread watches.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
