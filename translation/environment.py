"""Set variables of the environment that torch reads when it is loaded; the user's own stay."""

import os
from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    # A thread that has nothing to do sleeps. By default it spins: beside other busy processes each
    # then waits for a core that another one's waiting thread holds.
    "OMP_WAIT_POLICY": "passive",
    # It spins for microseconds first, in which the next small product mostly comes: without that,
    # two threads of a small network take half as long again on a quiet machine.
    "GOMP_SPINCOUNT": "5000",
    # Large tensors in pages of 2 MB: a training writes hundreds of MB a second, and the system
    # clears pages of 4 KB in a sixth of its time.
    "THP_MEM_ALLOC_ENABLE": "1",
}


def prepare_torch() -> None:
    """Set them for this process and those that it starts; call it before torch is loaded."""
    has_policy = "OMP_WAIT_POLICY" in os.environ
    for name, value in VARIABLES.items():
        if name == "GOMP_SPINCOUNT" and has_policy:
            continue  # it would override the user's policy
        os.environ.setdefault(name, value)
