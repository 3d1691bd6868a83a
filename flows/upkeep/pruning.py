"""Remove what no replay needs from a store and its folders, after saying what that is.

Rows and their files go in one transaction, so that an interrupted pruning can be run again.
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


def drop_states(market: str, as_of: date) -> None:
    """Remove the states of a market's nightly trainings as of sessions up to one: none resumes."""
    state_name = re.compile(rf"{re.escape(market)}-(\d{{4}}-\d\d-\d\d)-[0-9a-f]{{8}}")
    for folder in sorted(states_folder("nightly").glob(f"{market}-*")):
        match = state_name.fullmatch(folder.name.removesuffix(REMOVING))
        if match is not None and match[1] <= str(as_of):  # else another market's, or newer
            drop_state(folder)


def drop_state(folder: Path, *, ignore_errors: bool = True) -> None:
    """Rename a training's state, then remove it: none resumes from half a state."""
    renamed = folder.with_name(f"{folder.name.removesuffix(REMOVING)}{REMOVING}")
    if folder != renamed and folder.exists():
        shutil.rmtree(renamed, ignore_errors=True)
        folder.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=ignore_errors)


@dataclass(frozen=True)
class Removal:
    """Hold what can go of one kind: how many, and their bytes, None where these are not known."""

    what: str
    count: int
    bytes: int | None


@dataclass(frozen=True)
class Plan:
    """Hold what can go from a store and its folders."""

    first_kept: Mapping[str, date]  # the first night kept of each market that has enough nights
    rows: OldRows
    pages: Sequence[Path]  # of old nights
    files: Sequence[Path]  # of unused models
    states: Sequence[Path]  # folders that work left
    removals: Sequence[Removal]  # one for each kind, whether or not there is anything of it

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
    """Remove and return what `plan` returns; StoreBusyError while a process works."""
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
            drop_state(folder, ignore_errors=False)
    return planned


def _old_pages(conn: Connection, first_kept: Mapping[str, date]) -> list[Path]:
    """Return the pages, which `dtml report` can write again, before the first night kept."""
    pages: list[Path] = []
    for market, first in first_kept.items():
        old = read(conn, "night", market=market, status=COMPLETE, as_of=where.before(first))
        days = set(old["as_of"].dt.strftime("%Y-%m-%d"))
        in_folder = sorted((reports_folder() / market).glob("*.html"))
        pages += [page for page in in_folder if page.name[:10] in days]
    return pages


def _last_touched(path: Path) -> datetime:
    times = [file.lstat().st_mtime for file in (path, *path.rglob("*"))]
    return datetime.fromtimestamp(max(times), UTC)


def _bytes_of(paths: Iterable[Path]) -> int:
    files = [file for path in paths for file in (path, *path.rglob("*"))]
    return sum(file.lstat().st_size for file in files if file.is_file())
