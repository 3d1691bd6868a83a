"""The answer to a statement of SQL as text or a file: CSV, JSON, Parquet."""

import csv
import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from db.connection.user_sql import Answer
from dtml.errors import UsageError
from flows.console import as_json_values
from flows.text_tables import require_distinct
from translation.atomic_files import write_whole

# Bytes of an answer as a table in memory. A statement that fills a Parquet file has no time limit,
# so that only this ends an endless answer.
LARGEST_TABLE = 2**30
MIB = 2**20
CONVERTED = 2000  # rows that are converted at once
GROUP = 100_000  # rows of a row group
# The text in which SQLite stores days and moments.
DAY = re.compile(r"\d{4}-\d\d-\d\d")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")


def csv_lines(found: Answer) -> Iterator[str]:
    """Yield an answer as CSV, the names of its columns first.

    Lists and mappings are JSON text, bytes hexadecimal.
    """
    for row in chain([found.names], found.rows):
        line = StringIO()
        csv.writer(line, lineterminator="\n").writerow(map(_in_csv, row))
        yield line.getvalue()


def json_lines(found: Answer) -> Iterator[str]:
    """Yield an answer as a JSON array with an object for each row.

    Raises UsageError where two columns have one name.
    """
    require_distinct(found.names)
    separator = "[\n"
    for row in found.rows:
        values = as_json_values(dict(zip(found.names, map(_plain, row), strict=True)))
        written = json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False, default=str)
        yield separator + textwrap.indent(written, "  ")
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def write_lines(found: Answer, form: str, file: IO[bytes], largest_bytes: int) -> None:
    """Write an answer as "csv" or "json"; raise UsageError for more than `largest_bytes`."""
    for line in (csv_lines if form == "csv" else json_lines)(found):
        file.write(line.encode())
        if file.tell() > largest_bytes:
            raise UsageError(
                f"this answer has more than {largest_bytes / MIB:,.0f} MiB as {form}: select fewer "
                "rows or columns, or write it with `dtml query --parquet FILE`"
            )


def _in_csv(value: Any) -> Any:
    value = value.hex() if isinstance(value, bytes) else _plain(value)
    return _json_text(value) if isinstance(value, dict | list) else value


def _json_text(value: Any) -> str:
    return json.dumps(as_json_values(value), ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    """Return a value of a database driver with decimals as floats, and NaN as missing."""
    number = float(value) if isinstance(value, Decimal) else value
    return None if isinstance(number, float) and math.isnan(number) else number


def write_parquet(found: Answer, file: Path, largest_bytes: int = LARGEST_TABLE) -> int:
    """Write an answer into a whole Parquet file, and return how many rows it has.

    Days are days, moments in UTC, lists and mappings JSON text. Raises UsageError for two columns
    of one name, values without a common type, and more than `largest_bytes` of memory.
    """
    require_distinct(found.names)
    parts = [pa.table([pa.nulls(0)] * len(found.names), names=list(found.names))]
    size = 0
    for rows in iter(lambda: list(islice(found.rows, CONVERTED)), []):
        values_by_name = zip(found.names, zip(*rows, strict=True), strict=True)
        parts.append(pa.table({name: _array(name, values) for name, values in values_by_name}))
        size += parts[-1].nbytes
        if size > largest_bytes:
            raise UsageError(
                f"the answer takes more than {largest_bytes / MIB:,.0f} MiB as Parquet, so no "
                "file was written: select fewer rows at a time, with where or limit"
            )
    try:
        table = pa.concat_tables(parts, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise _without_type(error) from error
    columns = {name: _dated(table[name]) for name in table.column_names}
    write_whole(file, lambda whole: pq.write_table(pa.table(columns), whole, row_group_size=GROUP))
    return int(table.num_rows)


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    """Return values of a column, None where missing, as an array of one type.

    Decimals, and integers beside fractions, become fractions; lists and mappings, and what is
    beside them, JSON text. Raises UsageError for other mixtures and for too large an integer.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if kinds & {dict, list}:  # text or numbers may be among them
        return pa.array([None if value is None else _json_text(value) for value in values])
    if Decimal in kinds:
        values = [_plain(value) for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowTypeError, pa.ArrowInvalid, OverflowError) as error:
        raise _without_type(f"{name!r}: {error}") from error


def _without_type(reason: object) -> UsageError:
    return UsageError(
        f"the values of a column have no common type in Parquet ({reason}): cast the column to one "
        "type, such as text"
    )


def _dated(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of SQLite's text of days or moments as these, and moments in UTC."""
    moment = pa.timestamp("us", "UTC")
    if pa.types.is_timestamp(column.type) and column.type.tz:
        return column.cast(moment)
    if pa.types.is_string(column.type):
        with suppress(pa.ArrowInvalid):  # text such as 2024-02-30 stays text
            if _all_match(column, DAY):
                return column.cast(pa.date32())
            if _all_match(column, MOMENT):
                return column.cast(pa.timestamp("us")).cast(moment)
    return column


def _all_match(texts: pa.ChunkedArray, form: re.Pattern[str]) -> bool:
    matches = pc.match_substring_regex(texts, f"^(?:{form.pattern})$")
    return bool(pc.all(matches).as_py()) and texts.null_count < len(texts)
