"""What a test run leaves behind is found: a process that has lost its parent too."""

import os
import subprocess
import sys
import time

import pytest

from tests.support.leftovers import RUN, processes_of

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT = f"""
import subprocess
quiet = subprocess.DEVNULL
print(subprocess.Popen({SLEEPER}, stdin=quiet, stdout=quiet, stderr=quiet).pid)
"""


@pytest.mark.slow
def test_a_process_that_outlives_its_parent_is_named_with_its_command() -> None:
    run = os.getpid() + 10_000_000  # of no process
    assert list(processes_of(run)) == []
    environment = os.environ | {RUN: str(run)}
    command = [sys.executable, "-c", PARENT]
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    orphan = int(told.stdout)
    try:
        (found,) = processes_of(run)
        assert found.startswith(f"process {orphan}: {sys.executable} -c import time")
    finally:
        os.kill(orphan, 9)
    while list(processes_of(run)):
        time.sleep(0.02)
