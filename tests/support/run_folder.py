"""One folder for all processes of a test run: what is costly to make is made
there once, by whoever asks first.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
PLACE = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
RUN_FOLDER = Path(PLACE) / f"dtml-tests-{os.getppid() if IS_WORKER else os.getpid()}"


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of that name, which `make` filled the first time that a
    process of this run asked for it.
    """
    made = RUN_FOLDER / name
    with FileLock(f"{made}.lock"):
        if not made.exists():
            making = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=RUN_FOLDER))
            make(making)
            making.rename(made)
    return made


def remove_run_folder() -> None:
    """Remove what the processes of this run shared; the first of them calls it,
    when all others have ended.
    """
    shutil.rmtree(RUN_FOLDER, ignore_errors=True)
