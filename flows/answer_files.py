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


def _write_groups(answer: Answer, file: Path, most: int) -> int:
    """Write an answer into a file, and return its number of rows.

    The types of a column are known only with its last row. So a group whose types do not fit into
    those so far begins another part, and all parts are merged at the end.
    """
    with (
        tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder,
        ExitStack() as open_writer,
    ):
        parts: list[Path] = []
        schema = pa.schema([])
        rows = 0
        for group in _groups(answer):
            wider_schema = _common(schema, group.schema) if parts else group.schema
            if not parts or wider_schema != schema:
                open_writer.close()
                schema = wider_schema
                parts.append(Path(folder, str(len(parts))) if parts else file)
                writer = open_writer.enter_context(pq.ParquetWriter(parts[-1], schema))
            writer.write_table(_cast(group, schema))
            rows += group.num_rows
            if sum(part.stat().st_size for part in parts) > most:
                raise UsageError(
                    f"an answer of more than {most:,} bytes is not written: request it in parts"
                )
        open_writer.close()
        if len(parts) > 1:
            merged = Path(folder, "whole")
            _merge(parts, schema, merged)
            shutil.copyfile(merged, file)
    return rows


def _merge(parts: Sequence[Path], schema: pa.Schema, file: Path) -> None:
    """Write the rows of Parquet files into one of this schema."""
    with pq.ParquetWriter(file, schema) as writer:
        for part in parts:
            for batch in pq.ParquetFile(part).iter_batches(GROUP):
                table = pa.Table.from_batches([batch])
                writer.write_table(_cast(table, schema))


def _groups(answer: Answer) -> Iterator[pa.Table]:
    """Yield the rows of an answer in tables of about GROUP rows, or fewer if they are large.

    An answer without rows is one empty table.
    """
    empty = _table([], answer.names)
    pending = [empty]
    for batch in answer.batches:
        pending.append(_table(batch, answer.names))
        rows = sum(table.num_rows for table in pending)
        size = sum(table.nbytes for table in pending)
        if rows >= GROUP or size >= GROUP_BYTES:
            yield _concatenated(pending)
            pending = [empty]
    yield _concatenated(pending)


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    schema = reduce(_common, (table.schema for table in tables))
    return pa.concat_tables([_cast(table, schema) for table in tables])


def _table(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> pa.Table:
    """Return the rows of a database driver as a table.

    It does not use pandas, whose frames would stay in memory for a while.
    """
    values_by_column = zip(*rows, strict=True) if rows else [()] * len(names)
    columns: list[pa.Array] = []
    for name, values in zip(names, values_by_column, strict=True):
        try:
            columns.append(_array(values))
        except (pa.ArrowException, OverflowError) as error:
            raise UsageError(
                f"column {name!r} has values of several types: cast it to one type ({error})"
            ) from error
    return pa.table(columns, names=list(names))


def _array(values: Sequence[Any]) -> pa.Array:
    """Return the values of a column as days, moments in UTC, numbers or text.

    SQLite stores days and moments as text; here they become days and moments again. Lists and
    mappings become JSON text.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if kinds & {dict, list}:
        return pa.array([None if value is None else json.dumps(value) for value in values])
    is_mix_of_numbers = len(kinds) > 1 and kinds <= {Decimal, int, float}
    if is_mix_of_numbers or kinds == {Decimal}:
        return pa.array([None if value is None else float(value) for value in values])
    array = pa.array(values)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        return array.cast(pa.timestamp("us", "UTC"))
    if kinds == {str}:
        with suppress(pa.ArrowInvalid):  # text such as 2024-02-30 stays text
            if _all_match(array, DAY):
                return array.cast(pa.date32())
            if _all_match(array, MOMENT):
                return array.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    return array


def _all_match(texts: pa.Array, form: re.Pattern[str]) -> bool:
    matches = pc.match_substring_regex(texts, f"^(?:{form.pattern})$")
    return bool(pc.all(matches).as_py())


def _common(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """Return a schema whose types hold the values of both.

    Raises UsageError, naming the column, where there is none.
    """
    fields = []
    for first_field, second_field in zip(first, second, strict=True):
        name = first_field.name
        types = {first_field.type, second_field.type} - {pa.null()}
        if not types:
            common_type = pa.null()
        elif len(types) == 1:
            common_type = types.pop()
        elif types == {pa.int64(), pa.float64()}:
            common_type = pa.float64()
        elif all(pa.types.is_temporal(kind) or kind == pa.string() for kind in types):
            common_type = pa.string()
        else:
            kinds = " and ".join(sorted(map(str, types)))
            raise UsageError(
                f"column {name!r} has values of several types: cast it to one type ({kinds})"
            )
        fields.append((name, common_type))
    return pa.schema(fields)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table as this schema.

    Days and moments that become text read as they were stored: a moment without its time zone.
    """
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        becomes_text = pa.types.is_timestamp(column.type) and column.type != field.type
        values = column.cast(pa.timestamp("us")) if becomes_text else column
        columns.append(values.cast(field.type, safe=False))
    return pa.Table.from_arrays(columns, schema=schema)


def stored_moment(written: str) -> datetime:
    """Return the moment that SQLite stores as text of the form `MOMENT`."""
    return datetime.fromisoformat(written).replace(tzinfo=UTC)
