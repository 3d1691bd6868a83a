"""Prune a store and its folders: remove what no replay needs, after saying what that is.

Rows and the files that they name go in one transaction, so that an interrupted pruning can be run
again. The states of a training that has ended go at once.
"""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection, Engine

from db import where
from db.admin.pruning import OldRows, attention_bytes, first_kept_nights, old_rows, remove_rows
from db.connection.locks import market_lock
from db.engine import reading, transaction
from db.read import read
from db.rows.markets import markets
from db.rows.nights import COMPLETE
from dtml.errors import UsageError
from flows.settings import WEIGHTS, data_folder, reports_folder

REMOVING = ".over"  # suffix of the folder of a state that is being removed
# So many sessions back, missed nights are run (`flows.markets.stored_night.LIMIT`). They may need a
# model that no stored night uses yet.
FEWEST_NIGHTS = 30
KEPT_NIGHTS = 252  # by default: a year
# A state that was not written to for so long is left over: work under way writes far more often.
UNTOUCHED = timedelta(days=30)
# Folders of states from which interrupted trainings, backtests and rankings resume, and the folders
# among these that are no states: one holds states itself, the other is the translator's.
STATES = ("training", "training/backtests", "backtests", "rankings")
NOT_STATES = ("backtests", "translation")


def states_folder(kind: str) -> Path:
    """Return the folder of the training states of a kind, "nightly" or "backtest"."""
    training = data_folder() / "training"
    return training if kind == "nightly" else training / "backtests"


def drop_states(market: str, as_of: date, kind: str = "nightly", run_id: str | None = None) -> None:
    """Remove the states of trainings that are finished, from which none will resume.

    For the kind "backtest", the state of `run_id` alone is removed, whatever `as_of` is; for
    "nightly", the states of all trainings of the market as of sessions up to `as_of`.
    """
    state_name = re.compile(rf"{re.escape(market)}-(\d{{4}}-\d\d-\d\d)-[0-9a-f]{{8}}")
    for folder in sorted(states_folder(kind).glob(f"{market}-*")):
        name = folder.name.removesuffix(REMOVING)
        match = state_name.fullmatch(name)
        if match is None:  # another market's, or no state
            continue
        if name == run_id if kind == "backtest" else match[1] <= str(as_of):
            _remove_state(folder, ignore_errors=True)


def _remove_state(folder: Path, *, ignore_errors: bool = False) -> None:
    """Rename a state's folder and then remove it.

    A training that resumed from half a state would make another model.
    """
    renamed = folder.with_name(f"{folder.name.removesuffix(REMOVING)}{REMOVING}")
    if folder != renamed:
        shutil.rmtree(renamed, ignore_errors=True)
        folder.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=ignore_errors)


@dataclass(frozen=True)
class Removal:
    """Hold what can go of one kind: how many, and their bytes, None where these are not known."""

    what: str
    count: int
    bytes: int | None

    @property
    def megabytes(self) -> float | None:
        """Return the size in MB; None where it is not known."""
        return None if self.bytes is None else self.bytes / 1e6


@dataclass(frozen=True)
class Plan:
    """Hold what can go from a store and its folders.

    `first_kept` is the first night kept of each market that has enough nights. `rows` are the old
    rows of the store, `pages` the pages of old nights, `files` the files of unused models, and
    `states` the folders of states that work left. `removals` has a line for each kind, whether or
    not there is anything of it.
    """

    first_kept: Mapping[str, date]
    rows: OldRows
    pages: Sequence[Path]
    files: Sequence[Path]
    states: Sequence[Path]
    removals: Sequence[Removal]

    @property
    def is_empty(self) -> bool:
        """Return whether nothing can go."""
        return not any(removal.count for removal in self.removals)


def plan(engine: Engine, keep: int) -> Plan:
    """Return what can go so that the last `keep` nights of each market keep everything.

    Raises UsageError for fewer nights than `FEWEST_NIGHTS`.
    """
    if keep < FEWEST_NIGHTS:
        raise UsageError(
            f"--keep {keep} is too few: keep {FEWEST_NIGHTS} nights or more, because `dtml "
            f"nightly --catch-up` and `dtml serve` still run nights that were missed in the last "
            f"{FEWEST_NIGHTS} sessions"
        )
    untouched_since = datetime.now(UTC) - UNTOUCHED
    with reading(engine) as conn:
        first_kept = first_kept_nights(conn, keep)
        rows = old_rows(conn, first_kept, untouched_since)
        pages = _old_pages(conn, first_kept)
        bytes_of_rows = attention_bytes(conn, rows.attention)
    paths = [path for old in rows.models.values() for path in old.values()]
    weights = [data_folder() / path for path in paths if path and WEIGHTS.fullmatch(path)]
    # What drift is measured against lies beside the weights.
    inputs = [file.with_name(f"{file.stem}-inputs.json") for file in weights]
    files = [file for file in (*weights, *inputs) if file.is_file()]
    states = [
        folder
        for parent in STATES
        for folder in sorted((data_folder() / parent).glob("*"))
        if folder.is_dir() and not folder.is_symlink() and folder.name not in NOT_STATES
        if folder.name.endswith(REMOVING) or _last_touched(folder) < untouched_since
    ]
    models = sum(map(len, rows.models.values()))
    return Plan(
        first_kept=first_kept,
        rows=rows,
        pages=pages,
        files=files,
        states=states,
        removals=(
            Removal("rows of attention, of old nights", rows.attention, bytes_of_rows),
            Removal("pages of old nights", len(pages), _bytes_of(pages)),
            Removal("models that nothing leads to", models, None),
            Removal("files of such models", len(files), _bytes_of(files)),
            Removal("states of interrupted work", len(states), _bytes_of(states)),
        ),
    )


def prune(engine: Engine, keep: int) -> Plan:
    """Remove what `plan` returns, and return it. No market can have a night meanwhile.

    Raises StoreBusyError, and removes nothing, when a process is working on a market, and
    UsageError as `plan` does.
    """
    with reading(engine) as conn:
        names = markets(conn)
    with ExitStack() as locks:
        for name in names:
            locks.enter_context(market_lock(engine, name))
        planned = plan(engine, keep)
        with transaction(engine) as conn:
            remove_rows(conn, planned.first_kept, planned.rows)
            # Before the rows that name them are gone for good, so that the next pruning finds them.
            for file in planned.files:
                file.unlink(missing_ok=True)
        for page in planned.pages:
            page.unlink(missing_ok=True)
        for folder in planned.states:
            _remove_state(folder)
    return planned


def _old_pages(conn: Connection, first_kept: Mapping[str, date]) -> list[Path]:
    """Return the pages of the store's complete nights before the first one kept.

    `dtml report` can write them again.
    """
    pages: list[Path] = []
    for market, first in first_kept.items():
        old = read(
            conn,
            "night",
            columns="as_of",
            market=market,
            status=COMPLETE,
            as_of=where.before(first),
            order="as_of",
        )
        for day in old["as_of"].dt.date:
            for name in (f"{day}.html", f"{day}-level-*.html"):
                pages += sorted((reports_folder() / market).glob(name))
    return pages


def _last_touched(path: Path) -> datetime:
    times = [file.lstat().st_mtime for file in (path, *path.rglob("*"))]
    return datetime.fromtimestamp(max(times), UTC)


def _bytes_of(paths: Iterable[Path]) -> int:
    """Return the bytes of files, and of all files in folders."""
    files = [file for path in paths for file in (path, *path.rglob("*"))]
    return sum(file.lstat().st_size for file in files if file.is_file())
