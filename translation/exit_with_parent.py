"""Processes that end with the one that started them, however that ends."""

import os
import time
from threading import Thread

LOOK_S = 0.5


def exit_with_parent(parent: int) -> None:
    """End this process, at once, when its parent is no longer the process of this number."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
