"""What each kind of process sets first: threads of torch that wait sleep, and output that cannot be
shown is written otherwise.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.settings import NEEDED
from tests.support.nights import small_market
from tests.support.places import ROOT
from translation.environment import VARIABLES

DTML = Path(sys.executable).with_name("dtml")


def test_served_runs_and_workers_have_what_a_command_sets() -> None:
    assert all(NEEDED.fullmatch(name) for name in VARIABLES)
    file = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    assert file["definitions"]["pool"]["job_variables"]["env"] == VARIABLES


@pytest.mark.soak
def test_a_command_starts_no_temporary_server_of_prefect() -> None:
    """One would run what any page of a browser sends."""
    names = ("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "PREFECT_SERVER_EPHEMERAL_ENABLED")
    program = (
        "from flows.settings import prepare_prefect; prepare_prefect(quiet=True); "
        "from prefect.settings import get_current_settings; "
        "print(get_current_settings().server.ephemeral.enabled)"
    )
    others = {name: value for name, value in os.environ.items() if name not in names}
    asked = [sys.executable, "-c", program]
    ended = subprocess.run(asked, cwd=ROOT, env=others, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False"]


@pytest.mark.soak
def test_what_a_terminal_cannot_show_ends_no_command(tmp_path: Path) -> None:
    title = "\ucf54\uc2a4\ud53c \u2013 \u20ac \U0001f4c8"
    (tmp_path / "my.toml").write_text(small_market(title=title), encoding="utf-8")
    told = {**os.environ, "PYTHONIOENCODING": "euc_kr", "DTML_DATA": str(tmp_path / "data")}
    for command in (
        ["fetch", "--market-file", "my.toml", "--as-of", "2024-07-01"],
        ["markets"],
        ["query", f"select '{title}' as title", "--csv"],
        ["query", f"select '{title}' as title"],
    ):
        done = subprocess.run(
            [DTML, *command], cwd=tmp_path, env=told, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert b"\\U0001f4c8" in done.stdout or command[0] == "fetch"
