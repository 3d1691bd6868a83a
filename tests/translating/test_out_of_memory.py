"""Laws of memory: without enough of it, a training says how many tokens a batch
may have, and these fit.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.places import ROOT
from translation.out_of_memory import fitting_tokens, is_out_of_memory, out_of_memory


def attempt(most: int) -> object:
    def tried(tokens: int) -> None:
        if tokens > most:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return tried


def test_what_fits_is_found_by_halves() -> None:
    assert fitting_tokens(25_000, 100, attempt(7000)) == 6250  # type: ignore[arg-type]
    assert fitting_tokens(25_000, 7000, attempt(7000)) == 7000  # type: ignore[arg-type]
    assert fitting_tokens(25_000, 7001, attempt(7000)) is None  # type: ignore[arg-type]
    assert fitting_tokens(100, 200, attempt(10**9)) is None  # type: ignore[arg-type]


def test_it_is_told_in_a_line() -> None:
    told = str(out_of_memory(25_000, 100, attempt(7000)))  # type: ignore[arg-type]
    assert re.match("out of memory .*= 25000:.*batch_tokens = 6250, ", told)
    assert ("smaller size under [network]") in str(out_of_memory(25_000, 100, attempt(1)))  # type: ignore[arg-type]


def test_other_errors_are_no_want_of_memory() -> None:
    def broken(_: int) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        fitting_tokens(100, 1, broken)
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError) as told:
        torch.empty(2**55)
    assert is_out_of_memory(told.value)


# A feed-forward layer as wide as that takes some 100 MiB for each thousand positions.
LIMITED = """
import resource, re, sys
from dataclasses import replace
from pathlib import Path
from tests.support.translations import CONFIG, trained
from translation.errors import TranslationError
folder, wide = Path(sys.argv[1]), {"d_ff": 16384}
config = replace(CONFIG, updates=1, check_every=1, batch_tokens=64)
trained(folder / "small", config, **wide)
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 96 * 2**20,) * 2)
try:
    trained(folder / "large", replace(config, batch_tokens=4096), **wide)
except TranslationError as error:
    print(error)
    fits = int(re.search(r"= 4096: set batch_tokens = (\\d+), which fits", str(error))[1])
_, progress = trained(folder / "fitting", replace(config, batch_tokens=fits), **wide)
print("trained", progress.step)
"""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux's RLIMIT_AS")
def test_what_a_limited_process_is_told_fits_it(tmp_path: Path) -> None:
    root = ROOT
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    ended = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.search("out of memory .*= 4096", ended.stdout)
    assert "trained 1" in ended.stdout
