"""Prepare a process: its system, its output, its end, and what torch reads when loaded."""

import os
import sys
import time
from collections.abc import Mapping
from io import TextIOWrapper
from threading import Thread

VARIABLES: Mapping[str, str] = {
    # An idle thread sleeps. By default it spins, and so occupies a core for which a thread of
    # another process may wait.
    "OMP_WAIT_POLICY": "passive",
    # Before it sleeps, an idle thread spins for some microseconds. The next small product mostly
    # begins within them: without spinning, a small network takes half as long again with two
    # threads on a quiet machine.
    "GOMP_SPINCOUNT": "5000",
    # Large tensors have pages of 2 MB: a training writes hundreds of MB a second, and with pages of
    # 4 KB a sixth of its time goes into clearing them.
    "THP_MEM_ALLOC_ENABLE": "1",
}


def prepare_output() -> None:
    """Write as `\u20ac` what the encoding of standard output and error lacks, instead of ending."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # not where a test has replaced it
            stream.reconfigure(errors="backslashreplace")


def prepare_torch() -> None:
    """Set the variables for this process and its children; call it before torch is loaded."""
    has_policy = "OMP_WAIT_POLICY" in os.environ
    for name, value in VARIABLES.items():
        if name == "GOMP_SPINCOUNT" and has_policy:
            continue  # a count would override the policy that the user has set
        os.environ.setdefault(name, value)


WINDOWS = (
    "error: dtml-nightshift needs fork and fcntl, which Python on Windows lacks: "
    "install it in WSL (Windows Subsystem for Linux) and run it there"
)


def exit_on_windows() -> None:
    """Exit with code 1 and one line on Windows, before a module that imports fcntl."""
    if sys.platform == "win32":
        sys.exit(WINDOWS)


def exit_with_parent(parent: int) -> None:
    """Start a thread that ends this process with code 1 once its parent is not process `parent`."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # sys.exit would end this thread alone

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
