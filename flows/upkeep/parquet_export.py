"""Keep a folder of Parquet files beside the store: views by market and year,
written anew where they changed.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Engine

from db.admin.copying import Progress, snapshot
from db.admin.exporting import Part, exportable, parts
from db.engine import location
from db.errors import StoreError
from dtml.errors import DtmlError, UsageError
from flows.settings import export_folder
from translation.atomic_files import write_whole

VIEWS: Final = ("prediction_history", "daily_score", "run_score")
MARKER: Final = "dtml-export.json"
FILE: Final = "rows.parquet"
STATE: Final = b"dtml"  # of a file's metadata: what its rows were read from
FORMAT: Final = 1

log = logging.getLogger(__name__)


@dataclass
class Exported:
    """Count what an export did: files written, with their rows, files left as
    they were, files removed.
    """

    written: int = 0
    rows: int = 0
    kept: int = 0
    removed: int = 0


def export(
    engine: Engine, folder: Path, views: Sequence[str], markets: frozenset[str], progress: Progress
) -> Exported:
    """Bring the files of these views up to date, of these markets or of all without one; others
    stay as they are.

    A file is of one moment and is there whole or as it was; interrupted, the next export goes on.
    Raises UsageError for a folder that holds something else or another store's files,
    StoreUsageError for a view that cannot be exported.
    """
    _claim(folder, location(engine))
    done = Exported()
    for view in dict.fromkeys(views):
        with snapshot(engine) as conn:
            found = list(parts(conn, view, markets))
        there = set(_files(folder / view, markets))
        for part in found:
            file = (
                folder / view / f"market={quote(part.market, safe='')}" / f"year={part.year}" / FILE
            )
            there.discard(file)
            progress("exporting", f"{view}, {part.market}, {part.year}", done.rows)
            _bring_up_to_date(engine, part, file, done)
        for file in there:
            _remove(file, done)
    return done


def export_if_asked(engine: Engine, market: str) -> None:
    """Export a market's part of VIEWS to the folder of DTML_EXPORT, if it names
    one: what fails is a warning.
    """
    if (folder := export_folder()) is None:
        return
    try:
        done = export(engine, folder, VIEWS, frozenset([market]), lambda *_: None)
    except (DtmlError, StoreError, OSError) as error:
        log.warning("the night is stored, but %s was not exported to %s: %s", market, folder, error)
    else:
        log.info(
            "%s: %d Parquet files of %s written, %d kept", folder, done.written, market, done.kept
        )


def exported(folder: Path) -> dict[str, list[Path]]:
    """Return the views of which a folder holds files, and these; raise UsageError for no export."""
    if not (folder / MARKER).is_file():
        raise UsageError(
            f"{folder} is no folder that `dtml db export` wrote: name one that has {MARKER}"
        )
    return {
        view: files
        for view in exportable()
        if (files := sorted(_files(folder / view, frozenset())))
    }


def _claim(folder: Path, store: str) -> None:
    """Mark an empty folder as this store's; raise UsageError for one that holds anything else."""
    marker = folder / MARKER
    if not marker.is_file():
        there = [folder] if folder.is_file() else folder.glob("*")
        if any(
            not each.name.startswith(MARKER) for each in there
        ):  # a killed export may have left a part of it
            raise UsageError(
                f"{folder} holds something else than an export: name a new or empty folder"
            )
        write_whole(
            marker,
            lambda partial: partial.write_text(json.dumps({"format": FORMAT, "store": store})),
        )
    try:
        said = json.loads(marker.read_text())
        mine = (said["format"], said["store"])
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{marker} cannot be read ({error}): name a new folder") from error
    if mine != (FORMAT, store):
        raise UsageError(
            f"{folder} is an export of {mine[1]} (format {mine[0]}), not of {store}: name a "
            "new folder"
        )


def _files(folder: Path, markets: frozenset[str]) -> Iterator[Path]:
    for file in folder.glob(f"market=*/year=*/{FILE}"):
        if not markets or unquote(file.parts[-3].removeprefix("market=")) in markets:
            yield file


def _bring_up_to_date(engine: Engine, part: Part, file: Path, done: Exported) -> None:
    with snapshot(engine) as conn:
        state = part.fingerprint(conn).encode()
        if state and _state_of(file) == state:
            done.kept += 1
            return
        found = part.tables(conn)
        if (first := next(found, None)) is None:
            _remove(file, done)
            return
        schema, found = part.schema.with_metadata({STATE: state}), chain([first], found)
        del first  # which would else be held until the last is written
        write_whole(file, partial(_write, schema, found, done))
    done.written += 1


def _write(schema: pa.Schema, tables: Iterable[pa.Table], done: Exported, file: Path) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            done.rows += table.num_rows
            writer.write_table(table)


def _state_of(file: Path) -> bytes | None:
    """Return what the rows of a file were read from; None for none, and for one that is damaged."""
    try:
        return (pq.read_metadata(file).metadata or {}).get(STATE)
    except (OSError, pa.ArrowException):
        return None


def _remove(file: Path, done: Exported) -> None:
    if file.exists():
        file.unlink()
        done.removed += 1
