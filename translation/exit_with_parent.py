"""Exit together with the process that started this one, even if that one is killed."""

import os
import time
from threading import Thread


def exit_with_parent(parent: int) -> None:
    """Start a thread that exits with code 1 once `parent` is not the parent of this process."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
