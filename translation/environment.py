"""Prepare a process: its output, and the variables that torch reads when loaded."""

import os
import sys
from collections.abc import Mapping
from io import TextIOWrapper

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
    """Write as `\\u20ac` what the encoding of standard output and error lacks; call it first.

    By default it would end the program.
    """
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
