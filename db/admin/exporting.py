"""Write documented views to Parquet files, in a folder for each market and year."""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import dataset
from sqlalchemy import Connection, Engine

from db.admin.copying import NO_PROGRESS, Progress, snapshot
from db.engine import location
from db.errors import StoreUsageError
from db.views import view, views

ROWS: Final = 20_000  # of a row group, about 10 MB in memory
MARKER: Final = "dtml-export.txt"  # in a folder of exports: the store that they are of
# The columns that may say which year a row of a view belongs to: the first that the view has.
DAY_COLUMNS: Final = ("target", "session", "as_of")
TYPES: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "integer": pa.int64(),
    "json": pa.string(),
    "number": pa.float64(),
    "text": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def exportable() -> dict[str, str]:
    """Return the views that have a market and a day, each with the name of its day column."""
    found = {}
    for name, described in views().items():
        days = [column.name for column in described.columns if column.type == "date"]
        if days and "market" in described.meanings():
            found[name] = next((day for day in DAY_COLUMNS if day in days), days[0])
    return found


def export(
    engine: Engine,
    folder: Path,
    names: Sequence[str],
    markets: Collection[str] = (),
    progress: Progress = NO_PROGRESS,
) -> list[int]:
    """Write views to FOLDER/VIEW/market=M/year=Y; return the rows of each file.

    A market's files are replaced when the new ones are whole; each view is as the store is at one
    moment. Raises StoreUsageError for a view that cannot be exported, and for a folder that holds
    anything else.
    """
    for name in names:
        if name not in exportable():
            raise StoreUsageError(
                f"{name!r} cannot be exported, as it is not a view that has a market and a day: "
                f"choose one of {', '.join(exportable())}"
            )
    _claim(folder, location(engine))
    counts: list[int] = []
    for name in dict.fromkeys(names):
        schema = pa.schema(
            [(column.name, TYPES[column.type]) for column in views()[name].columns]
            + [("year", pa.int32())]
        )
        partial = folder / f".{name}"
        shutil.rmtree(partial, ignore_errors=True)  # what a killed export left
        partial.mkdir()
        with snapshot(engine) as conn:
            dataset.write_dataset(
                _batches(conn, name, schema, markets, progress),
                partial / "new",
                schema=schema,
                format="parquet",
                partitioning=dataset.partitioning(
                    pa.schema([schema.field("market"), schema.field("year")]), flavor="hive"
                ),
                file_options=dataset.ParquetFileFormat().make_write_options(compression="zstd"),
                file_visitor=lambda written: counts.append(written.metadata.num_rows),
                use_threads=False,
            )
        (folder / name).mkdir(exist_ok=True)
        for written in partial.glob("new/market=*"):
            replaced = folder / name / written.name
            if replaced.exists():
                replaced.rename(partial / written.name)
            written.rename(replaced)
        shutil.rmtree(partial)
    return counts


def _batches(
    conn: Connection, name: str, schema: pa.Schema, markets: Collection[str], progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a view, with the column `year`; JSON becomes text."""
    shown = view(name)
    statement = sa.select(shown)
    if markets:
        statement = statement.where(shown.c.market.in_(markets))
    done = 0
    for rows in conn.execution_options(yield_per=ROWS).execute(statement).partitions():
        columns: dict[str, list[Any]] = {
            column: list(values)
            for column, values in zip(shown.c.keys(), zip(*rows, strict=True), strict=True)
        }
        for column in views()[name].columns:
            if column.type == "json":
                columns[column.name] = [
                    None if value is None else json.dumps(value) for value in columns[column.name]
                ]
        days = columns[exportable()[name]]
        columns["year"] = [None if day is None else day.year for day in days]
        yield pa.RecordBatch.from_pydict(columns, schema)
        done += len(rows)
        progress("exporting", name, done)


def _claim(folder: Path, store: str) -> None:
    """Mark a new or empty folder as one of exports of this store."""
    marker = folder / MARKER
    if marker.is_file():
        marked = marker.read_text(encoding="utf-8")
        if marked != store:
            raise StoreUsageError(
                f"{folder} is an export of {marked}, not of {store}: choose a new folder"
            )
        return
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise StoreUsageError(
            f"{folder} is neither empty nor an export of dtml: choose a new or empty folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text(store, encoding="utf-8")
