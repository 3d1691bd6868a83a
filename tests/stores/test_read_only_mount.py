"""A store on a read-only mount: every command that only reads works, and says why where it cannot
write.
"""

import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from db.engine import transaction
from db.rows import nights
from dtml.experiments import vary
from dtml.prices.sessions import next_session
from flows.freezing import begin
from flows.settings import data_folder, reports_folder
from tests.support.commands import options_of_commands, shorten_audits
from tests.support.kinds import sqlite_alone
from tests.support.nights import AS_OF, after_nights

READ = (
    "audit simulated --as-of 2024-07-01",
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
)
# They write to the store or beside it, ask a source, need a model of their own, or show the pages,
# which other tests do.
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
    "translate text",
    "translate train",
    "translate work",
}


def test_every_command_is_known_to_read_or_to_write():
    found = set(options_of_commands())
    read = {name for name in found if any(f"{line} ".startswith(f"{name} ") for line in READ)}
    assert found == read | OTHERS
    assert not read & OTHERS


@contextmanager
def mounted(folder):
    """The data folder and the store of this test, mounted read only."""
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this user or machine cannot mount: {error}")
    try:
        shutil.copytree(data_folder(), folder / "data")
        shutil.copytree(reports_folder(), folder / "data" / "reports")
        shutil.copy(folder.parent / "store.sqlite", folder / "data" / "dtml.sqlite")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder / "data"
    finally:
        # Lazily: connections of the commands to the store are still open.
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.soak
@sqlite_alone
def test_a_command_that_only_reads_works(context, command, tmp_path, monkeypatch):
    shorten_audits(monkeypatch)
    # The rankers need a year of outcomes.
    context = replace(context, experiment=vary(context.experiment, {"train_sessions": 220}))
    after_nights(context, AS_OF, next_session("XNYS", AS_OF))
    begin(context.engine, context.name, None)
    with transaction(context.engine) as conn:  # whether it runs is seen by its market's lock
        killed = {"target": date(2024, 7, 5), "source": "simulated"}
        begun = datetime(2024, 7, 4, 1, tzinfo=UTC)
        nights.start_night(conn, context.name, date(2024, 7, 3), started_at=begun, **killed)
    context.engine.dispose()  # which leaves one file
    with mounted(tmp_path / "mount") as data:
        monkeypatch.setenv("DTML_DATA", str(data))
        monkeypatch.delenv("DTML_DATABASE_URL")
        for line in READ:
            is_reading_pages = line.startswith("freeze")  # the chain lies below the reports
            reports = data if is_reading_pages else tmp_path / "elsewhere"
            monkeypatch.setenv("DTML_REPORTS", str(reports / "reports"))
            sql = "select count(*) from night_log"
            words = [sql if word == "SELECT" else word.format(tmp_path) for word in line.split()]
            code, said, complaint = command(*words)
            assert (line, code, bool(said)) == (line, 0, True), complaint
            assert "error" not in complaint, line
            if line.startswith("status"):
                assert "interrupted" in said
            assert "warning: no alert is" in complaint or line != "status --check"
