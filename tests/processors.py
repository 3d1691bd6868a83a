"""Run the numerical tests as other processors would: `python -m tests.processors` prints a line for
each kind.

The libraries choose their instructions when they are loaded, so each kind is a process of its own
in which they are told of fewer than there are. This machine must have what is left: a setting never
adds an instruction.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.support.numerical import ALSO, NUMERICAL, THREADED
from tests.support.places import ROOT

Setting = Mapping[str, str]

ATEN, ONEDNN, MKL, THREADS = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "OMP_NUM_THREADS",
)
BLAS = "OPENBLAS_CORETYPE"
FAST = ("-m", "not slow and not soak")
# A thread that waits for others sleeps: more threads than cores would otherwise spin most of the
# time away.
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
PROCESSORS: Mapping[str, Setting] = {
    "AVX2, 1 thread": {ATEN: "avx2", ONEDNN: "AVX2", MKL: "AVX2", BLAS: "Haswell", THREADS: "1"},
    "SSE4, 1 thread": {
        ATEN: "default",
        ONEDNN: "SSE41",
        MKL: "SSE4_2",
        BLAS: "Nehalem",
        THREADS: "1",
    },
    "AVX2 in torch alone, 2 threads": {ATEN: "avx2", THREADS: "2"},
    "as it is, 4 threads": {THREADS: "4"},
}


def main() -> int:
    """Run them all, as many at a time as there are cores.

    Return 1 when any test failed, whose name and message is printed.
    """
    with ThreadPoolExecutor(os.cpu_count()) as runs:
        passed = list(runs.map(is_passed, PROCESSORS, PROCESSORS.values()))
    return 0 if all(passed) else 1


def is_passed(name: str, setting: Setting) -> bool:
    """Run the numerical tests in processes with this setting and print how many passed."""
    if setting[THREADS] == "1":
        runs = [run([*NUMERICAL, *FAST], setting), run(list(ALSO), setting)]
    else:
        runs = [run([*THREADED, *FAST], setting)]
    counts = {
        word: sum(counted(ended.stdout, word) for ended in runs)
        for word in ("passed", "failed", "error")
    }
    failed = counts["failed"] + counts["error"]
    print(f"{name}: {counts['passed']} passed, {failed} failed", flush=True)  # noqa: T201
    for ended in runs:
        if ended.returncode != 0:
            print(ended.stdout + ended.stderr, flush=True)  # noqa: T201
    return all(ended.returncode == 0 for ended in runs)


def run(chosen: list[str], setting: Setting) -> subprocess.CompletedProcess[str]:
    """Run tests in a process of their own, with no setting of the caller's own processor."""
    env = {
        name: value for name, value in os.environ.items() if name not in {ATEN, ONEDNN, MKL, BLAS}
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        *chosen,
    ]
    return subprocess.run(
        command, cwd=ROOT, env=env | WAITING | setting, capture_output=True, text=True, check=False
    )


def counted(said: str, word: str) -> int:
    """Return how many tests the last line of pytest counts under a word."""
    found = re.findall(rf"(\d+) {word}", said.strip().rpartition("\n")[2])
    return int(found[0]) if found else 0


if __name__ == "__main__":
    sys.exit(main())
