"""Prune a store and its folders: remove what no replay needs, after saying what that is.

Rows go first, in one transaction, and then the files. Until all files are removed, a journal lists
them: after an interruption, the next run removes those that are left. The states of a training
that has ended go at once.
"""

import hashlib
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandas as pd
from sqlalchemy import Connection, Engine

from db.admin.pruning import (
    OldRows,
    compact,
    first_kept_nights,
    has_much_free,
    mean_row_bytes,
    old_rows,
    remove_rows,
)
from db.connection.locks import market_lock
from db.engine import location, reading, transaction
from db.rows import markets, nights, rankings, runs
from db.rows.nights import COMPLETE
from dtml.errors import UsageError
from flows.settings import MODELS, data_folder, reports_folder
from translation.atomic_files import write_whole

REMOVING = ".over"  # suffix of the folder of a state that is being removed


def states_folder(kind: str) -> Path:
    """Return the folder of the training states of a kind, "nightly" or "backtest"."""
    training = data_folder() / "training"
    return training if kind == "nightly" else training / "backtests"


def drop_states(market: str, as_of: date, kind: str = "nightly", run_id: str | None = None) -> None:
    """Remove the states of trainings that are finished, from which none will resume.

    For the kind "backtest", the state of `run_id` alone is removed, whatever `as_of` is; for
    "nightly", the states of all trainings of the market as of sessions up to `as_of`. Each folder
    is renamed before it is removed: a training that resumed from half a state would make another
    model.
    """
    parent = states_folder(kind)
    if not parent.exists():
        return
    state_name = re.compile(rf"{re.escape(market)}-(\d{{4}}-\d\d-\d\d)-[0-9a-f]{{8}}")
    for folder in sorted(parent.iterdir()):
        name = folder.name.removesuffix(REMOVING)
        match = state_name.fullmatch(name)
        if match is None:  # another market's, or no state
            continue
        night = date.fromisoformat(match[1])
        is_finished = name == run_id if kind == "backtest" else night <= as_of
        if is_finished:
            _remove_state(folder, ignore_errors=True)


def _remove_state(folder: Path, *, ignore_errors: bool = False) -> None:
    """Rename a state's folder and then remove it: work must not resume from half a state."""
    renamed = folder.with_name(f"{folder.name.removesuffix(REMOVING)}{REMOVING}")
    if folder != renamed:
        shutil.rmtree(renamed, ignore_errors=True)
        folder.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=ignore_errors)


# So many sessions back, missed nights are run (`flows.markets.stored_night.LIMIT`). They may need a
# model that no stored night uses yet.
FEWEST_NIGHTS = 30
KEPT_NIGHTS = 252  # by default: a year
# A state that was not written to for so long is left over: work under way writes far more often.
UNTOUCHED = timedelta(days=30)
PAGE = re.compile(r"(\d{4}-\d\d-\d\d)(-level-[\d.]+)?\.html")
INPUTS = "-inputs.json"  # after a model's name: what drift is measured against
# Folders of states from which interrupted trainings, backtests and rankings resume.
STATES = ("training", "training/backtests", "backtests", "rankings")
# Folders among the states that are not removed: one holds states itself, the other is the
# translator's.
NOT_STATES = ("backtests", "translation")


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
        used = _files_of(runs.runs(conn), rows.runs) | _files_of(
            rankings.rankers(conn), rows.rankers
        )
        unused = {
            path for path in (*rows.runs.values(), *rows.rankers.values()) if path is not None
        }
        unused |= {_inputs_of(name) for name in rows.runs}
        journal = _journal(engine)
        if journal.exists():
            unused.update(journal.read_text(encoding="utf-8").splitlines())
        candidates = sorted(unused - used)
        files = [data_folder() / path for path in candidates if _is_of_a_model(path)]
        attention_bytes = _attention_bytes(conn, rows.attention)
    states: list[Path] = []
    for parent in STATES:
        for folder in sorted((data_folder() / parent).glob("*")):
            if not folder.is_dir() or folder.is_symlink() or folder.name in NOT_STATES:
                continue
            if folder.name.endswith(REMOVING) or _last_touched(folder) < untouched_since:
                states.append(folder)
    models = len(rows.runs) + len(rows.rankers)
    return Plan(
        first_kept=first_kept,
        rows=rows,
        pages=pages,
        files=files,
        states=states,
        removals=(
            Removal("rows of attention, of old nights", rows.attention, attention_bytes),
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
    with _every_market_locked(engine):
        planned = plan(engine, keep)
        journal = _journal(engine)
        if planned.files:
            paths = [str(file.relative_to(data_folder())) for file in planned.files]
            text = "\n".join(paths)
            write_whole(journal, lambda partial: partial.write_text(text, encoding="utf-8"))
        with transaction(engine) as conn:
            remove_rows(conn, planned.first_kept, planned.rows)
        for file in planned.files:
            file.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)
        for page in planned.pages:
            page.unlink(missing_ok=True)
        for folder in planned.states:
            _remove_state(folder)
    return planned


def compact_if_worth_it(engine: Engine) -> bool:
    """Give the free pages of an SQLite file back to the disk if they are many.

    Returns whether it did. Raises StoreError as `db.admin.pruning.compact` does.
    """
    with reading(engine) as conn:
        is_worth_it = has_much_free(conn)
    if is_worth_it:
        compact(engine)
    return is_worth_it


@contextmanager
def _every_market_locked(engine: Engine) -> Iterator[None]:
    """Hold the locks of all markets of the store, so that none has a night meanwhile."""
    with reading(engine) as conn:
        names = markets.markets(conn)
    with ExitStack() as locks:
        for name in names:
            locks.enter_context(market_lock(engine, name))
        yield


def _old_pages(conn: Connection, first_kept: Mapping[str, date]) -> list[Path]:
    """Return the pages of the store's complete nights before the first one kept.

    `dtml report` can write them again.
    """
    stored = nights.nights(conn)
    complete = stored[stored["status"].isin(COMPLETE)]
    pages: list[Path] = []
    for market, first in first_kept.items():
        days = complete.loc[complete["market"] == market, "as_of"].dt.date
        old_days = {str(day) for day in days if day < first}
        folder = reports_folder() / market
        # The store may come from somebody else: a market's name must not lead out of the folder.
        if folder.parent != reports_folder():
            continue
        for file in sorted(folder.glob("*.html")):
            page = PAGE.fullmatch(file.name)
            if page is not None and page[1] in old_days:
                pages.append(file)
    return pages


def _attention_bytes(conn: Connection, rows: int) -> int | None:
    """Return an estimate of the bytes of so many rows of attention; None where it is not known.

    Each is taken to be as large as the mean of all.
    """
    if rows == 0:
        return 0
    row_bytes = mean_row_bytes(conn, "attention_weight")
    return None if row_bytes is None else round(row_bytes * rows)


def _files_of(models: pd.DataFrame, without: Collection[str]) -> set[str]:
    """Return the paths, below the data folder, of the files of all models except those `without`.

    `models` has `id, checkpoint_path`.
    """
    files: set[str] = set()
    for name, path in zip(models["id"], models["checkpoint_path"], strict=True):
        if name not in without:
            files.update((str(path), _inputs_of(name)))
    return files


def _inputs_of(name: str) -> str:
    """Return the path of the inputs of a model's training, against which drift is measured."""
    return f"{MODELS}/{name}{INPUTS}"


def _is_of_a_model(path: str) -> bool:
    """Return whether there is such a file directly in the folder of models.

    The store, which names the path, may come from somebody else.
    """
    file = data_folder() / path
    return file.parent == data_folder() / MODELS and file.name != ".." and file.is_file()


def _journal(engine: Engine) -> Path:
    """Return the path of the journal: a file that lists the files that a pruning removes, by line.

    It is written before the rows go, because these name the files, and removed after the files.
    Each store has its own.
    """
    digest = hashlib.sha256(location(engine).encode()).hexdigest()
    return data_folder() / f"pruning-{digest[:8]}.txt"


def _last_touched(path: Path) -> datetime:
    times = [file.lstat().st_mtime for file in (path, *path.rglob("*"))]
    return datetime.fromtimestamp(max(times), UTC)


def _bytes_of(paths: Iterable[Path]) -> int:
    """Return the bytes of files, and of all files in folders."""
    total = 0
    for path in paths:
        for file in (path, *path.rglob("*")):
            if file.is_file():
                total += file.lstat().st_size
    return total
