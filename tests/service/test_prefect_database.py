"""Prefect's servers delete what ended long ago, in the folder that is ours alone."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from flows.service import prefect_server
from flows.settings import PREFECT_DEFAULTS, prepare_prefect
from tests.support.prefect_runs import add_runs, counts
from tests.support.prefect_server import give_tables
from tests.support.service import waited

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
OLD, RECENT = 211, 7


@contextmanager
def server_of_a_command(_folder: Path) -> Iterator[None]:
    """As a command starts one, which ends with it."""
    with tempfile.TemporaryFile() as log:
        prefect_server._start(prefect_server._listen(0), log, prefect_server.FOR_ONE_COMMAND)
        yield
        prefect_server.stop_servers()


@pytest.mark.soak
@pytest.mark.parametrize("server", [prefect_server.own_server, server_of_a_command])
def test_a_server_deletes_what_ended_long_ago_with_all_that_is_its_and_nothing_else(
    server: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "data" / "prefect"
    give_tables(home)
    home.chmod(0o700)
    for name, value in (PREFECT_DEFAULTS | {"PREFECT_HOME": str(home)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DTML_DATA", str(home.parent))
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", "0")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    database = home / "prefect.db"
    add_runs(database, OLD, NOW - timedelta(days=31))
    add_runs(database, RECENT, NOW - timedelta(days=29))
    expected = {
        "flow_run": RECENT,
        "flow_run_state": 4 * RECENT,
        "task_run": RECENT,
        "log": 10 * RECENT,
        "events": 0,  # Prefect keeps them for 7 days only
        "event_resources": 0,
    }
    with server(home):  # type: ignore[operator]
        waited(lambda: counts(database) == expected, lambda: f"{counts(database)} to shrink")


def test_the_runs_in_a_folder_of_the_users_own_stay(tmp_path: Path) -> None:
    """Other programs may have made them."""
    name = "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"
    with patch.dict(os.environ, {"PREFECT_HOME": str(tmp_path)}):
        os.environ.pop(name, None)
        prepare_prefect(quiet=True)
        assert name not in os.environ
        del os.environ["PREFECT_HOME"]
        prepare_prefect(quiet=True)
        assert "flow_runs" in os.environ[name]
