"""Set the environment variables that torch reads when loaded, unless the user has set them."""

import os
from collections.abc import Mapping

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


def prepare_torch() -> None:
    """Set the variables for this process and its children; call it before torch is loaded."""
    has_policy = "OMP_WAIT_POLICY" in os.environ
    for name, value in VARIABLES.items():
        if name == "GOMP_SPINCOUNT" and has_policy:
            continue  # a count would override the policy that the user has set
        os.environ.setdefault(name, value)
