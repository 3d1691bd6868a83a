"""Keep a folder of Parquet files beside the store: a file for each view, market and year.

A file is written again only when its rows have changed.
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

from db.admin.copying import NO_PROGRESS, Progress, snapshot
from db.admin.exporting import Part, exportable, parts
from db.engine import location
from db.errors import StoreError
from dtml.errors import DtmlError, UsageError
from flows.settings import export_folder
from translation.atomic_files import write_whole

# The views that each night exports if DTML_EXPORT is set.
VIEWS: Final = ("prediction_history", "daily_score", "run_score")
MARKER: Final = "dtml-export.json"  # in a folder of exports: its format and its store
FILE: Final = "rows.parquet"
# The place of a view's file without rows, in a folder like those of markets and years.
EMPTY: Final = Path("market=none") / "year=0" / FILE
# The key in a file's metadata of the fingerprint of the rows from which it was written.
STATE: Final = b"dtml"
FORMAT: Final = 1

log = logging.getLogger(__name__)


@dataclass
class Exported:
    """Count the files of an export, and the rows of those that it wrote."""

    written: int = 0
    rows: int = 0
    kept: int = 0  # files that were up to date
    removed: int = 0


def export(
    engine: Engine, folder: Path, views: Sequence[str], markets: frozenset[str], progress: Progress
) -> Exported:
    """Bring the files of these views up to date, for these markets, or for all if there is none.

    Files whose rows are gone are removed; a view without rows has one file without. Files of other
    views and markets stay as they are. Each file is written whole or not at all, and shows the
    store at one moment. After an interruption, the next export goes on. Raises UsageError for a
    folder that holds something else or another store's files, and StoreUsageError for a view that
    cannot be exported.
    """
    _claim(folder, location(engine))
    counts = Exported()
    for view in dict.fromkeys(views):  # each view once, in the order asked for
        with snapshot(engine) as conn:
            current_parts = list(parts(conn, view, markets))
        # Below, the files of parts that still exist are taken out of this set.
        obsolete = set(_files(folder / view, markets))
        for part in current_parts:
            market_folder = folder / view / f"market={quote(part.market, safe='')}"
            file = market_folder / f"year={part.year}" / FILE
            obsolete.discard(file)
            progress("exporting", f"{view}, {part.market}, {part.year}", counts.rows)
            _bring_up_to_date(engine, part, file, counts)
        for file in obsolete - {folder / view / EMPTY}:
            _remove(file, counts)
        _describe_if_empty(folder / view, counts)
    return counts


def export_if_asked(engine: Engine, market: str) -> None:
    """Export a market's part of VIEWS to the folder that DTML_EXPORT names, if it is set.

    A failure is logged as a warning.
    """
    folder = export_folder()
    if folder is None:
        return
    try:
        counts = export(engine, folder, VIEWS, frozenset([market]), NO_PROGRESS)
    except (DtmlError, StoreError, OSError) as error:
        log.warning(
            "the night is stored, but %s was not exported to %s, the folder that DTML_EXPORT "
            "names: %s; the next night tries again, and so does `dtml db export %s`",
            market,
            folder,
            error,
            folder,
        )
    else:
        log.info(
            "%s: %d Parquet files of %s written, %d kept",
            folder,
            counts.written,
            market,
            counts.kept,
        )


def exported(folder: Path) -> dict[str, list[Path]]:
    """Return the exported files of a folder by their view; raise UsageError for no export."""
    if not (folder / MARKER).is_file():
        raise UsageError(
            f"{folder} was not written by `dtml db export`: choose a folder that has {MARKER}"
        )
    files_by_view: dict[str, list[Path]] = {}
    for view in exportable():
        files = sorted(_files(folder / view, frozenset()))
        if files:
            files_by_view[view] = files
    return files_by_view


def _claim(folder: Path, store: str) -> None:
    marker = folder / MARKER
    if not marker.is_file():
        contents = [folder] if folder.is_file() else folder.glob("*")
        # A killed export may have left a partial marker, whose name begins with that of the marker.
        if any(not path.name.startswith(MARKER) for path in contents):
            raise UsageError(
                f"{folder} is neither empty nor an export of dtml: choose a new or empty folder"
            )
        text = json.dumps({"format": FORMAT, "store": store})
        write_whole(marker, lambda partial: partial.write_text(text))
    try:
        values = json.loads(marker.read_text())
        marked_format = values["format"]
        marked_store = values["store"]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{marker} does not say of which store and format this export is "
            f"({type(error).__name__}: {error}): choose a new folder"
        ) from error
    if (marked_format, marked_store) != (FORMAT, store):
        raise UsageError(
            f"{folder} is an export of {marked_store} (format {marked_format}), not of {store} "
            f"(format {FORMAT}): choose a new folder"
        )


def _files(folder: Path, markets: frozenset[str]) -> Iterator[Path]:
    for file in folder.glob(f"market=*/year=*/{FILE}"):
        if not markets or unquote(file.parts[-3].removeprefix("market=")) in markets:
            yield file


def _bring_up_to_date(engine: Engine, part: Part, file: Path, counts: Exported) -> None:
    with snapshot(engine) as conn:
        # An empty fingerprint cannot show changes: then the file is written in any case.
        fingerprint = part.fingerprint(conn).encode()
        if fingerprint and _stored_fingerprint(file) == fingerprint:
            counts.kept += 1
            return
        tables = part.tables(conn)
        first = next(tables, None)
        if first is None:
            _remove(file, counts)
            return
        tables = chain([first], tables)
        del first  # otherwise it would stay in memory until the last table is written
        schema = part.schema.with_metadata({STATE: fingerprint})
        write_whole(file, partial(_write, schema, tables, counts))
    counts.written += 1


def _describe_if_empty(folder: Path, counts: Exported) -> None:
    """Keep a file without rows of a view that has none, so that readers find its columns."""
    file = folder / EMPTY
    if any(other != file for other in _files(folder, frozenset())):
        return _remove(file, counts)
    schema = Part(view=folder.name, market="none", year=0).schema
    state = str(schema).encode()
    if _stored_fingerprint(file) == state:
        counts.kept += 1
    else:
        write_whole(file, partial(_write, schema.with_metadata({STATE: state}), (), counts))
        counts.written += 1
    return None


def _write(schema: pa.Schema, tables: Iterable[pa.Table], counts: Exported, file: Path) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            counts.rows += table.num_rows
            writer.write_table(table)


def _stored_fingerprint(file: Path) -> bytes | None:
    try:
        return (pq.read_metadata(file).metadata or {}).get(STATE)
    except (OSError, pa.ArrowException):
        return None


def _remove(file: Path, counts: Exported) -> None:
    if file.exists():
        file.unlink()
        counts.removed += 1
