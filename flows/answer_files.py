"""The answer to a statement of SQL as text or a file: CSV, JSON, Parquet.

The command `dtml query` and the dashboard both write answers so.
"""

import json
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from db.connection.frames import as_given
from db.connection.user_sql import Answer
from dtml.errors import UsageError
from flows.console import plain
from flows.text_tables import require_distinct
from translation.atomic_files import write_whole

LARGEST_FILE = 32 * 2**30  # bytes of one as Parquet, which no limit of time ends
GROUP, GROUP_BYTES = 100_000, 2**26  # rows, and their bytes, that are written at once
# How SQLite keeps days and moments.
DAY = re.compile(r"\d{4}-\d\d-\d\d")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")


def csv_lines(found: Answer) -> Iterator[str]:
    """Yield an answer as CSV, its names first."""
    yield pd.DataFrame(columns=pd.Index(found.names)).to_csv(index=False)
    for rows in found.batches:
        yield as_given(rows, found.names).to_csv(index=False, header=False)


def json_lines(found: Answer) -> Iterator[str]:
    """Yield an answer as `print_json` prints all of its rows at once."""
    require_distinct(found.names)
    before = "[\n"
    for rows in found.batches:
        for row in plain(as_given(rows, found.names)):
            written = json.dumps(row, ensure_ascii=False, indent=2, allow_nan=False)
            yield before + textwrap.indent(written, "  ")
            before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def write_parquet(found: Answer, file: Path, most: int = LARGEST_FILE) -> int:
    """Write an answer as its rows come, whole or not at all, and return how many: days as days,
    moments in UTC.

    Lists and mappings become JSON text. Raises UsageError for a column that holds values of several
    kinds, and for a file of more than `most` bytes.
    """
    require_distinct(found.names)
    written = list[int]()
    write_whole(file, lambda partial: written.append(_write_groups(found, partial, most)))
    return written[0]


def _write_groups(found: Answer, file: Path, most: int) -> int:
    """Write an answer into a file.

    Where a group has other types than those so far, it begins another file.
    """
    # They become one at the end: the types of a column are known with its last row.
    with (
        tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder,
        ExitStack() as ending,
    ):
        parts, schema, rows = list[Path](), pa.schema([]), 0
        for group in _groups(found):
            if (
                wider := _common(schema, group.schema) if parts else group.schema
            ) != schema or not parts:
                ending.close()
                schema, parts = wider, [*parts, Path(folder, str(len(parts))) if parts else file]
                writer = ending.enter_context(pq.ParquetWriter(parts[-1], schema))
            writer.write_table(_cast(group, schema))
            rows += group.num_rows
            if sum(part.stat().st_size for part in parts) > most:
                raise UsageError(
                    f"an answer of more than {most:,} bytes is not written: ask for it in parts"
                )
        ending.close()
        if len(parts) > 1:
            with pq.ParquetWriter(whole := Path(folder, "whole"), schema) as writer:
                for batch in chain.from_iterable(
                    pq.ParquetFile(part).iter_batches(GROUP) for part in parts
                ):
                    writer.write_table(_cast(pa.Table.from_batches([batch]), schema))
            shutil.copyfile(whole, file)
    return rows


def _groups(found: Answer) -> Iterator[pa.Table]:
    """Yield the rows of an answer, GROUP at a time, or fewer where they are
    large; one table without any, if none.
    """
    held = [_table([], found.names)]
    for batch in found.batches:
        held.append(_table(batch, found.names))
        if (
            sum(each.num_rows for each in held) >= GROUP
            or sum(each.nbytes for each in held) >= GROUP_BYTES
        ):
            yield _concatenated(held)
            held = held[:1]
    yield _concatenated(held)


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    schema = reduce(_common, (each.schema for each in tables))
    return pa.concat_tables([_cast(each, schema) for each in tables])


def _table(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> pa.Table:
    """Return a driver's rows; without pandas, whose frames would be held for a while."""
    columns = []
    for name, values in zip(
        names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True
    ):
        try:
            columns.append(_array(values))
        except (pa.ArrowException, OverflowError) as error:
            raise UsageError(
                f"column {name!r} holds values of several kinds: cast it to one ({error})"
            ) from error
    return pa.table(columns, names=list(names))


def _array(values: Sequence[Any]) -> pa.Array:
    """Return days and moments as such, also those that SQLite keeps as text;
    lists and mappings as JSON text.
    """
    kinds = {type(each) for each in values} - {type(None)}
    if kinds & {dict, list}:
        return pa.array([each if each is None else json.dumps(each) for each in values])
    if (len(kinds) > 1 and kinds <= {Decimal, int, float}) or kinds == {Decimal}:
        return pa.array([each if each is None else float(each) for each in values])
    array = pa.array(values)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        return array.cast(pa.timestamp("us", "UTC"))
    for form, kind in ((DAY, pa.date32()), (MOMENT, pa.timestamp("us"))) if kinds == {str} else ():
        if pc.all(pc.match_substring_regex(array, f"^(?:{form.pattern})$")).as_py():
            with suppress(pa.ArrowInvalid):  # text such as 2024-02-30 stays text
                return array.cast(kind).cast(
                    kind if kind == pa.date32() else pa.timestamp("us", "UTC")
                )
    return array


def _common(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return types that hold the values of both; raise UsageError, naming the
    column, where there is none.
    """
    types = []
    for field, also in zip(one, other, strict=True):
        both = {field.type, also.type} - {pa.null()}
        if len(both) > 1 and both <= {pa.int64(), pa.float64()}:
            both = {pa.float64()}
        elif len(both) > 1 and all(
            pa.types.is_temporal(each) or each == pa.string() for each in both
        ):
            both = {pa.string()}
        elif len(both) > 1:
            said = " and ".join(sorted(map(str, both)))
            raise UsageError(
                f"column {field.name!r} holds values of several kinds: cast it to one ({said})"
            )
        types.append((field.name, both.pop() if both else pa.null()))
    return pa.schema(types)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table as this schema: days and moments that become text read as they were stored."""
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        is_told = pa.types.is_timestamp(column.type) and column.type != field.type
        columns.append(
            (column.cast(pa.timestamp("us")) if is_told else column).cast(field.type, safe=False)
        )
    return pa.Table.from_arrays(columns, schema=schema)


def stored_moment(written: str) -> datetime:
    """The moment that SQLite keeps as text of the form `MOMENT`."""
    return datetime.fromisoformat(written).replace(tzinfo=UTC)
