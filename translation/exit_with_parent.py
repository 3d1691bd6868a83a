"""Exit together with the process that started this one, even if that one is killed."""

import os
import time
from threading import Thread


def exit_with_parent(parent: int) -> None:
    """Start a thread that ends this process with code 1 once its parent is not process `parent`."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # sys.exit would end this thread alone

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
