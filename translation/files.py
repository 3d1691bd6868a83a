"""Files that are there whole or not at all."""

from collections.abc import Callable
from pathlib import Path


def write_alone(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file, which is then there whole or not at all, for one process at a time.

    What a killed process left of it the next one writes over: checkpoints are large, and must not pile up.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    try:
        write(partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)  # it is there after a failure alone, such as a full disk
