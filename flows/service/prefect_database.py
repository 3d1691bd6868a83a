"""Keep Prefect's own database small: delete old runs and events, and compact the file.

Prefect's server deletes old runs and events every hour, by the settings in
`flows/prefect_defaults.toml`, but only if it runs for an hour: the temporary server of a command
ends before. And no server gives the free space back to the disk. So each server of ours does both
before it serves, at most once a day.
"""

import asyncio
import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flows.settings import PREFECT_DEFAULTS, own_prefect_folder

DATABASE = "prefect.db"
TIDIED = "tidied"  # an empty file, whose time is that of the last tidying
# How long runs and events are kept after their end.
KEPT = timedelta(
    seconds=int(PREFECT_DEFAULTS["PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD"])
)
A_DAY_S = 24 * 60 * 60
# For deleting, while a command waits. The rest is deleted on the next day, or by a server that
# runs longer.
LIMIT_S = 60
LOCK_WAIT_S = 5
FREE_SHARE = 0.2  # share of free pages in the file, above which it is compacted
OLD_RUNS = "select count(*) from flow_run where parent_task_run_id is null and end_time < ?"

log = logging.getLogger(__name__)


def tidy(folder: Path, *, also_today: bool = False) -> None:
    """Delete what Prefect no longer keeps, and compact its database, at most once a day.

    `also_today` does it even if it was done less than a day ago. Nothing is done in a folder that
    is not ours, because other programs may keep their runs there, nor where Prefect's settings name
    another database than the file DATABASE in the folder. A failure is only logged: the next server
    tries again.
    """
    if folder.resolve() != own_prefect_folder().resolve():
        return
    stamp = folder / TIDIED
    was_done_today = stamp.exists() and time.time() - stamp.stat().st_mtime < A_DAY_S
    if was_done_today and not also_today:
        return
    if not (folder / DATABASE).exists() or not _is_of_settings(folder / DATABASE):
        return
    try:
        asyncio.run(_delete_old())
        compact(folder / DATABASE)
    except Exception as error:  # noqa: BLE001 - such as tables of an older Prefect, or a lock
        log.warning(
            "Prefect's database in %s was not made smaller: %s; the next server tries again",
            folder,
            error,
        )
        return
    stamp.touch()


def tidy_apart(folder: Path) -> None:
    """Call `tidy` with `also_today` in a new process.

    This process may have loaded Prefect with other settings, which cannot be changed afterwards.
    """
    command = [sys.executable, "-P", "-m", "flows.service.prefect_database", str(folder)]
    subprocess.run(command, check=True)  # noqa: S603 - of ourselves


def old_runs(folder: Path) -> int:
    """Return how many runs, but for those inside others, ended too long ago for Prefect to keep."""
    database = folder / DATABASE
    if not database.exists():
        return 0
    ended_before = f"{datetime.now(UTC) - KEPT:%Y-%m-%d %H:%M:%S}"
    conn = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    with closing(conn), suppress(sqlite3.OperationalError):  # a server has not made its tables yet
        (count,) = conn.execute(OLD_RUNS, (ended_before,)).fetchone()
        return int(count)
    return 0


def compact(database: Path) -> None:
    """Give the free pages of an SQLite file back to the disk, if they are more than FREE_SHARE.

    Raises sqlite3.OperationalError where another process holds the file's lock for LOCK_WAIT_S.
    """
    with closing(sqlite3.connect(database, timeout=LOCK_WAIT_S, isolation_level=None)) as conn:
        (pages,) = conn.execute("pragma page_count").fetchone()
        (free_pages,) = conn.execute("pragma freelist_count").fetchone()
        if free_pages > FREE_SHARE * pages:
            conn.execute("vacuum")
            # A vacuum writes the whole database into the log file beside it: empty that too.
            conn.execute("pragma wal_checkpoint(truncate)")


def _is_of_settings(database: Path) -> bool:
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    return str(PREFECT_API_DATABASE_CONNECTION_URL.value()).endswith(f":///{database}")


async def _delete_old() -> None:
    """Delete what the enabled cleanups of Prefect's own service would, for at most LIMIT_S."""
    from prefect.server.database import provide_database_interface
    from prefect.server.services import db_vacuum
    from prefect.settings import get_current_settings

    services: Any = get_current_settings().server.services
    enabled = services.db_vacuum.enabled_vacuum_types
    database = provide_database_interface()
    deletions: list[Callable[..., Awaitable[None]]] = []
    if "events" in enabled and services.event_persister.enabled:
        deletions += [db_vacuum.vacuum_events_with_retention_overrides, db_vacuum.vacuum_old_events]
    if "flow_runs" in enabled:
        deletions.append(db_vacuum.vacuum_old_flow_runs)
    if "orphans" in enabled:  # Prefect adds it to the enabled types if "flow_runs" is one
        deletions += [
            db_vacuum.vacuum_orphaned_logs,
            db_vacuum.vacuum_orphaned_artifacts,
            db_vacuum.vacuum_stale_artifact_collections,
        ]
    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            for delete in deletions:
                await delete(db=database)


if __name__ == "__main__":
    tidy(Path(sys.argv[1]), also_today=True)
