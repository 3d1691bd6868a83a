"""A store on a read-only mount: every command that only reads works, and says why where it cannot
write.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from db.engine import open_engine, transaction
from db.rows import nights
from tests.support.commands import Command, whole_command
from tests.support.filled_folder import fill_folder
from tests.support.places import ROOT

AUDIT = "audit simulated --as-of 2024-07-01"
READ = (
    AUDIT,
    "db backup {}/backup",
    "db check",
    "db dictionary",
    "db export {}/exported",
    "db prune",
    "freeze simulated --check",
    "history L01",
    "markets",
    "orders simulated --capital 100000",
    "query SELECT",
    "questions 1 --market simulated",
    "replay simulated",
    "report simulated",
    "runs",
    "status",
    "status --check",
    "translate jobs",
    "translate models",
    "translate text xa --device cpu",
)
# They write to the store or beside it, ask a source, or show the pages, which other tests do.
OTHERS = {
    "backtest",
    "benchmark",
    "dashboard",
    "db copy",
    "db grant-reader",
    "db restore",
    "db upgrade",
    "doctor",
    "fetch",
    "nightly",
    "predict",
    "ranking",
    "score",
    "serve",
    "train",
    "translate demo",
    "translate file",
    "translate queue",
    "translate score",
    "translate train",
    "translate work",
}


def commands(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def test_every_command_is_known_to_read_or_to_write() -> None:
    found = set(commands(whole_command()))
    read = {name for name in found if any(f"{line} ".startswith(f"{name} ") for line in READ)}
    assert found == read | OTHERS
    assert not read & OTHERS


def leave_a_running_night(url: str) -> None:
    """A night that was killed: whether it runs is seen by its market's lock."""
    engine = open_engine(url)
    begun = datetime(2024, 7, 4, 1, tzinfo=UTC)
    with transaction(engine) as conn:
        nights.start_night(
            conn,
            "simulated",
            date(2024, 7, 3),
            target=date(2024, 7, 5),
            source="simulated",
            started_at=begun,
        )
    engine.dispose()


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with frozen nights and a killed night, mounted read only."""
    data = tmp_path_factory.mktemp("data")
    fill_folder(data)
    folder = tmp_path_factory.mktemp("mount")
    environment = os.environ | {"DTML_DATA": str(data), "DTML_REPORTS": str(data / "reports")}
    freeze = [sys.executable, "-c", "from flows.cli import main; main()", "freeze", "simulated"]
    subprocess.run(freeze, check=True, cwd=ROOT, env=environment)
    leave_a_running_night(f"sqlite:///{data}/dtml.sqlite")
    try:
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this user or machine cannot mount: {error}")
    try:
        shutil.copytree(data, folder / "data")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder / "data"
    finally:
        # Lazily: connections of the commands to the store are still open.
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.soak if line == AUDIT else ()) for line in READ]
)
def test_a_command_that_only_reads_works(
    mounted: Path, command: Command, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTML_DATA", str(mounted))
    monkeypatch.delenv("DTML_DATABASE_URL", raising=False)
    writes_pages = not line.startswith("freeze")  # which reads the chain below the reports
    reports = tmp_path if writes_pages else mounted
    monkeypatch.setenv("DTML_REPORTS", str(reports / "reports"))
    arguments = [
        "select count(*) from night_log" if word == "SELECT" else word.format(tmp_path)
        for word in line.split()
    ]
    code, said, complaint = command(*arguments)
    assert (code, bool(said)) == (0, True), complaint
    assert "error" not in complaint
    if line == "status --check":
        assert "warning: no alert is" in complaint
    if line.startswith("status"):
        assert "interrupted" in said
