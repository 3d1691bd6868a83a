"""The facts that were seen once, and how those of today differ from them."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.acceptance.life import HERE
from tests.acceptance.seen import Fact, Facts, seen
from tests.support.places import ROOT

RECORD = HERE / "seen.json"
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pandas", "sentencepiece")

# The instructions that every processor of the kind has, so that last bits depend on it as little as
# can be. What the caller has set stays: so other instructions are tried.
PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "NEHALEM",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
}
# Elsewhere, numbers may differ by this share of their standard deviation. A rounding of float32 is
# 2 ** -24 of a number, and 2 ** 10 of them in a row, about as many as a training here has, are
# 2 ** -14. Figures on a page have few digits: one of them may be rounded to the other side.
BOUND = 2.0**-14
# Muon divides by the size of a gradient in bfloat16, whose rounding is 2 ** -9.
BOUND_OF_TRANSLATION = 2.0**-5
GONE = "not there"
SHOWN = 4  # columns, keys or tensors of one thing


def live(folder: Path, prefect_api: str) -> Facts:
    """Live the life of `life.py` in a process of its own, and return what is seen of it."""
    environment = {name: value for name, value in os.environ.items() if name[:5] != "DTML_"}
    subprocess.run(
        [sys.executable, "-m", "tests.acceptance.life", str(folder)],
        cwd=ROOT,
        env=PLAIN | environment | {"OMP_NUM_THREADS": "1", "PREFECT_API_URL": prefect_api},
        check=True,
    )
    return seen(folder)


def here() -> dict[str, str]:
    """Return what decides the last bits of a number: processor, instructions, packages."""
    found = {name: version(name) for name in PACKAGES}
    found["Python"] = ".".join(platform.python_version_tuple()[:2])
    found["processor"] = processor()
    return found | {name: os.environ.get(name, value) for name, value in PLAIN.items()}


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def differences(before: Facts, now: Facts, *, is_exact: bool) -> Iterator[str]:
    """Yield a line for each thing that differs: what it was and what it is.

    Where it is not `is_exact`, numbers may differ by the bounds above.
    """
    for name in sorted(before.keys() | now.keys()):
        if name not in now or name not in before:
            yield f"{name} {'is new' if name in now else 'is gone'}"
            continue
        bound = BOUND_OF_TRANSLATION if "translat" in name else BOUND
        changed = [
            f"{part} was {before[name].get(part, GONE)}, is {now[name].get(part, GONE)}"
            for part in before[name] | now[name]
            if before[name].get(part, GONE) != now[name].get(part, GONE)
            and (is_exact or not is_near(before[name].get(part), now[name].get(part), bound))
        ]
        if changed:
            more = len(changed) - SHOWN
            yield f"{name}: {'; '.join(changed[:SHOWN])}" + (f"; {more} more" if more > 0 else "")


def is_near(old: Fact, new: Fact, bound: float) -> bool:
    """Return whether two facts of as many numbers have moments within the bound."""
    if not (isinstance(old, list) and isinstance(new, list) and len(old) == len(new) == 5):
        return False
    allowed = bound * max(abs(old[3]), abs(old[2]))
    return old[0] == new[0] and all(
        abs(a - b) <= allowed for a, b in zip(old[2:], new[2:], strict=True)
    )


def read() -> tuple[dict[str, str], Facts]:
    """Return where the record was made, and its facts."""
    record = json.loads(RECORD.read_text())
    return record["made_with"], record["facts"]


def write(facts: Facts) -> None:
    """Replace the record, a line for each fact."""
    lines = (
        f"{json.dumps(name)}: {{\n{_lines(parts)}\n}}" for name, parts in sorted(facts.items())
    )
    body = ",\n".join(lines)
    RECORD.write_text(f'{{"made_with": {json.dumps(here())},\n"facts": {{\n{body}\n}}}}\n')


def _lines(parts: dict[str, Any]) -> str:
    return ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in parts.items())
