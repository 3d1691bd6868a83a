"""Prefect's own database stays small: what ended long ago goes, and its file shrinks."""

import os
import sqlite3
import subprocess
import sys
import time
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from flows.service.prefect_database import DATABASE, TIDIED, old_runs, tidy_apart
from flows.settings import PREFECT_DEFAULTS, prepare_prefect
from tests.support.prefect_runs import add_runs, counts
from tests.support.prefect_server import give_tables

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(days=31)
LATELY = NOW - timedelta(days=29)
OLD, RECENT = 211, 7


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prefect's folder, with its tables, as the processes of a command find it."""
    folder = tmp_path / "data" / "prefect"
    give_tables(folder)
    for name, value in (PREFECT_DEFAULTS | {"PREFECT_HOME": str(folder)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DTML_DATA", str(folder.parent))
    return folder


@pytest.mark.soak
def test_runs_that_ended_long_ago_go_with_all_that_is_theirs_and_others_stay(home: Path) -> None:
    database = home / DATABASE
    empty = database.stat().st_size
    add_runs(database, OLD, LONG_AGO)
    add_runs(database, RECENT, LATELY)
    grown = database.stat().st_size
    assert old_runs(home) == OLD
    tidy_apart(home)
    # Prefect keeps events for 7 days only.
    assert counts(database) == {
        "flow_run": RECENT,
        "flow_run_state": 4 * RECENT,
        "task_run": RECENT,
        "log": 10 * RECENT,
        "events": 0,
        "event_resources": 0,
    }
    assert old_runs(home) == 0
    assert database.stat().st_size - empty < 0.25 * (grown - empty)


@pytest.mark.soak
def test_events_and_orphans_go_only_where_the_settings_of_prefect_let_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = home / DATABASE
    add_runs(database, RECENT, LONG_AGO)
    with closing(sqlite3.connect(database)) as conn, conn:
        conn.execute("update log set flow_run_id = ?", (str(uuid.uuid4()),))
    before = counts(database)
    assert before["log"] > 0
    assert before["events"] > 0
    enabled = "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"
    monkeypatch.setenv(enabled, "events")
    monkeypatch.setenv("PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED", "false")
    tidy_apart(home)
    assert counts(database) == before
    monkeypatch.delenv("PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED")
    monkeypatch.setenv(enabled, "orphans")
    tidy_apart(home)
    assert counts(database) == before | {"log": 0}


@pytest.mark.soak
def test_a_database_with_the_tables_of_another_prefect_is_left_to_its_server(home: Path) -> None:
    database = home / DATABASE
    add_runs(database, RECENT, LONG_AGO)
    with closing(sqlite3.connect(database)) as conn:
        conn.execute("alter table events rename to events_of_another")
    tidy_apart(home)
    assert not (home / TIDIED).exists()
    with closing(sqlite3.connect(database)) as conn:
        conn.execute("alter table events_of_another rename to events")
    assert counts(database)["flow_run"] == RECENT
    tidy_apart(home)
    assert (home / TIDIED).exists()
    assert counts(database)["flow_run"] == 0


def test_the_runs_in_a_folder_of_the_users_own_stay(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other programs may have made them."""
    add_runs(home / DATABASE, OLD, LONG_AGO)
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "elsewhere"))
    tidy_apart(home)
    assert counts(home / DATABASE)["flow_run"] == OLD
    assert not (home / TIDIED).exists()
    name = "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"
    with patch.dict(os.environ):
        del os.environ[name]
        prepare_prefect(quiet=True)
        assert name not in os.environ
        del os.environ["PREFECT_HOME"]
        prepare_prefect(quiet=True)
        assert "flow_runs" in os.environ[name]


def test_a_folder_without_a_database_of_prefect_has_no_old_runs(tmp_path: Path) -> None:
    assert old_runs(tmp_path) == 0
    (tmp_path / DATABASE).touch()  # a server is about to make its tables
    assert old_runs(tmp_path) == 0


@pytest.mark.soak
def test_a_server_of_ours_tidies_once_a_day_before_it_serves(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.service.prefect_server import own_server

    monkeypatch.setenv("DTML_DATA", str(home.parent))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    add_runs(home / DATABASE, OLD, LONG_AGO)
    home.chmod(0o700)
    with own_server(home):
        assert counts(home / DATABASE)["flow_run"] == 0
    stamped = (home / TIDIED).stat().st_mtime
    assert time.time() - stamped < 600
    add_runs(home / DATABASE, RECENT, LONG_AGO)
    # In a process with the settings of a server, as this one has others: what it does next.
    code = "import sys; from pathlib import Path; from flows.service.prefect_database import tidy; "
    code += "tidy(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(home)], check=True)
    assert (home / TIDIED).stat().st_mtime == stamped
    assert counts(home / DATABASE)["flow_run"] == RECENT
