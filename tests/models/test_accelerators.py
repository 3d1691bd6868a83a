"""The laws of tests/models/accelerator_laws.py, in a process of their own.

torch counts its devices at the first backward pass of a process, so the stand-in has to be there
before it; and a process that has one cannot fork and go on with backward passes, as other tests do.
"""

import subprocess
import sys
from pathlib import Path

import pytest

LAWS = Path(__file__).with_name("accelerator_laws.py")


@pytest.mark.soak
def test_what_an_accelerator_runs_a_stand_in_runs():
    options = "-q -n 0 -rs -p no:cacheprovider"
    command = [sys.executable, "-m", "pytest", *options.split(), str(LAWS)]
    ended = subprocess.run(
        command, cwd=LAWS.parents[2], capture_output=True, text=True, timeout=550, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if "back end in Python" in ended.stdout:
        pytest.skip(ended.stdout)
    assert "[100%]" in ended.stdout
