"""A folder that a stranger filled runs nothing and sets nothing: no process of
ours opens a file of his.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dtml.own import process
from dtml.own.code import OwnCode
from dtml.own.process import IsolatedCode
from flows.settings import prepare_prefect
from tests.support.backtest_market import MARKET
from tests.support.foreign_folder import fill_as_a_stranger
from tests.support.opened_files import needs_inotify, opened_files
from tests.support.panels import made_panel
from tests.support.prefect_server import give_tables, plain_environment
from tests.support.service import serving

pytestmark = needs_inotify

BIN = Path(sys.executable).parent
TO_BE_BACKTESTED = (
    "--market-file",
    "past.toml",
    "--workers",
    "2",
    "--from",
    "2024-03-04",
    "--to",
    "2024-03-13",
    "--retrain-every",
    "8",
    "--source",
    "simulated",
)


def run(folder, *command):
    """As its user does: with none of the variables that tests share."""
    return subprocess.run(
        command,
        cwd=folder,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


def fill(folder):
    """A stranger's files in the working folder, and in Prefect's, which was made here."""
    home = folder / "data" / "prefect"
    give_tables(home)
    return fill_as_a_stranger(folder) | fill_as_a_stranger(home)


@pytest.mark.by_quarters
@pytest.mark.soak
def test_a_command_its_server_and_its_workers_open_no_file_of_a_stranger(tmp_path):
    """A backtest: a night has no process of another kind, and a service below runs a whole one."""
    theirs = fill(tmp_path)
    market = tmp_path / "past.toml"
    market.write_text(MARKET.format(normalisation="shared"))
    with opened_files(tmp_path, tmp_path / "data" / "prefect") as opened:
        ended = run(tmp_path, BIN / "dtml", "backtest", *TO_BE_BACKTESTED)
    assert ended.returncode == 0, ended.stderr
    assert market in opened
    assert {str(file) for file in opened & theirs} == set()


@pytest.mark.soak
def test_a_service_its_server_and_its_runs_open_no_file_of_a_stranger(tmp_path):
    theirs = fill(tmp_path)
    with (
        opened_files(tmp_path, tmp_path / "data" / "prefect") as opened,
        serving(tmp_path) as service,
    ):
        service.wait_for(re.compile("small night done"))
    assert {str(file) for file in opened & theirs} == set()


def test_the_process_of_own_code_opens_no_file_of_a_stranger(tmp_path, monkeypatch):
    theirs = fill_as_a_stranger(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process, "SANDBOX", replace(process.SANDBOX, idle=[]))
    with opened_files(tmp_path) as opened:
        own = IsolatedCode(OwnCode("own.py", "def f(bars):\n    return bars.close"))
        values = own.values(made_panel(), [300])
    assert np.isfinite(values).any()
    assert {str(file) for file in opened & theirs} == set()


@pytest.mark.parametrize(
    "name",
    [
        "PREFECT_LOGGING_CONFIG_PATH",
        "PREFECT_LOGGING_SETTINGS_PATH",
        "PREFECT_PROFILES_PATH",
        "PREFECT_HOME",
    ],
)
def test_what_a_users_own_environment_names_stands(name, monkeypatch, tmp_path):
    others = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    monkeypatch.setattr(os, "environ", others | {name: str(tmp_path / "mine")})
    prepare_prefect(quiet=True)
    assert os.environ[name] == str(tmp_path / "mine")
    # The older name of the same setting would lose to the newer one.
    both = ("PREFECT_LOGGING_CONFIG_PATH", "PREFECT_LOGGING_SETTINGS_PATH")
    assert sum(variable in os.environ for variable in both) == 1
