"""The answer to a statement of SQL as text or a file: CSV, JSON, Parquet.

The command `dtml query` and the dashboard both write answers in these forms.
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
from flows.console import as_json_values
from flows.text_tables import require_distinct, size_in_words
from translation.atomic_files import write_whole

# Bytes of a Parquet file. A statement that fills one has no time limit, so that only this ends an
# endless answer.
LARGEST_FILE = 32 * 2**30
GROUP, GROUP_BYTES = 100_000, 2**26  # rows, or bytes of memory, after which rows are written
# The text in which SQLite stores days and moments.
DAY = re.compile(r"\d{4}-\d\d-\d\d")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")


def csv_lines(found: Answer) -> Iterator[str]:
    """Yield an answer as CSV, the names of its columns first."""
    yield pd.DataFrame(columns=pd.Index(found.names)).to_csv(index=False)
    for rows in found.batches:
        yield as_given(rows, found.names).to_csv(index=False, header=False)


def json_lines(found: Answer) -> Iterator[str]:
    """Yield an answer as a JSON array with an object for each row, laid out as by `print_json`.

    Raises UsageError where two columns have one name: an object cannot hold both.
    """
    require_distinct(found.names)
    has_rows = False
    for rows in found.batches:
        for row in as_json_values(as_given(rows, found.names)):
            written = json.dumps(row, ensure_ascii=False, indent=2, allow_nan=False)
            separator = ",\n" if has_rows else "[\n"
            yield separator + textwrap.indent(written, "  ")
            has_rows = True
    yield "\n]\n" if has_rows else "[]\n"


def write_parquet(found: Answer, file: Path, largest_bytes: int = LARGEST_FILE) -> int:
    """Write an answer into a Parquet file as its rows come, and return how many rows it has.

    The file appears when it is complete. Days have the type of a day, moments are in UTC, lists and
    mappings become JSON text. Raises UsageError where two columns have one name, for a column whose
    values fit into no single type (`_common`), and for a file of more than `largest_bytes`.
    """
    require_distinct(found.names)
    row_counts: list[int] = []  # `write_whole` does not return what the function in it returns
    write_whole(
        file, lambda partial: row_counts.append(_write_groups(found, partial, largest_bytes))
    )
    return row_counts[0]


def _write_groups(answer: Answer, file: Path, largest_bytes: int) -> int:
    """Write an answer into a file, and return its number of rows.

    The type of a column is known only when its last row has come. The first groups of rows are
    written into `file` itself. A group whose types do not fit into those so far begins another
    part, a file in a temporary folder, and all parts are merged at the end. Raises UsageError for
    more than `largest_bytes`, and for a column whose values fit into no single type.
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
            # The first group begins the first part, so that `writer` is set below.
            if not parts or wider_schema != schema:
                open_writer.close()  # completes the part before
                schema = wider_schema
                parts.append(Path(folder, str(len(parts))) if parts else file)
                writer = open_writer.enter_context(pq.ParquetWriter(parts[-1], schema))
            writer.write_table(_cast(group, schema))
            rows += group.num_rows
            if sum(part.stat().st_size for part in parts) > largest_bytes:
                raise UsageError(
                    f"the answer takes more than {size_in_words(largest_bytes)} as Parquet, so no "
                    "file was written: select fewer rows at a time, with where or limit"
                )
        open_writer.close()
        if len(parts) > 1:
            # The merged rows cannot go straight into `file`, which is the first part that is read.
            merged = Path(folder, "whole")
            with pq.ParquetWriter(merged, schema) as writer:
                for part in parts:
                    for batch in pq.ParquetFile(part).iter_batches(GROUP):
                        table = pa.Table.from_batches([batch])
                        writer.write_table(_cast(table, schema))
            shutil.copyfile(merged, file)
    return rows


def _groups(answer: Answer) -> Iterator[pa.Table]:
    """Yield the rows of an answer in tables that end at GROUP rows or GROUP_BYTES, or soon after.

    A batch of the answer is never split between two tables. The last table has what is left, which
    may be no rows. An answer without rows is one table, which has its columns.
    """
    empty = _table([], answer.names)
    # Each table begins with an empty one, so that the last table has columns even without rows.
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
    """Return the rows of a database driver as a table; without rows its columns are empty.

    It does not use pandas, whose frames would stay in memory for a while. Raises UsageError for a
    column whose values `_array` cannot bring to one type.
    """
    values_by_column = zip(*rows, strict=True) if rows else [()] * len(names)
    columns: list[pa.Array] = []
    for name, values in zip(names, values_by_column, strict=True):
        try:
            columns.append(_array(values))
        except (pa.ArrowException, OverflowError) as error:
            raise UsageError(
                f"the values of column {name!r} have no common type in Parquet ({error}): cast the "
                "column to one type, such as text"
            ) from error
    return pa.table(columns, names=list(names))


def _array(values: Sequence[Any]) -> pa.Array:
    """Return the values of a column, None where one is missing, as an array of one type.

    SQLite stores days and moments as text; here they become days, and moments in UTC, again, if all
    values have the form. Decimals, and whole numbers beside fractions, become fractions. Lists and
    mappings become JSON text, and so does what is beside them. Raises an error of pyarrow for other
    mixtures of types, and OverflowError for a whole number of more than 64 bits.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if kinds & {dict, list}:  # text or numbers may be among them
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
    """Return the schema whose types hold the values of both schemas, column by column.

    Both have the same columns in the same order. The type null is that of a column without a value
    so far, so that the other type holds both. Whole numbers beside fractions become fractions;
    days, moments and text beside each other become text. Raises UsageError, naming the column,
    where no type holds both.
    """
    fields = []
    for first_field, second_field in zip(first, second, strict=True):
        name = first_field.name
        types = {first_field.type, second_field.type} - {pa.null()}
        if not types:
            common_type = pa.null()  # neither schema has a value there
        elif len(types) == 1:
            common_type = types.pop()
        elif types == {pa.int64(), pa.float64()}:
            common_type = pa.float64()
        elif all(pa.types.is_temporal(kind) or kind == pa.string() for kind in types):
            common_type = pa.string()
        else:
            kinds = " and ".join(sorted(map(str, types)))
            raise UsageError(
                f"the values of column {name!r} have no common type in Parquet ({kinds}): cast the "
                "column to one type, such as text"
            )
        fields.append((name, common_type))
    return pa.schema(fields)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the types of a schema, which `_common` has found wide enough for it.

    Days and moments that become text read as they were stored: a moment without its time zone.
    """
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        # Text is the only other type that `_common` finds for moments.
        becomes_text = pa.types.is_timestamp(column.type) and column.type != field.type
        values = column.cast(pa.timestamp("us")) if becomes_text else column
        # The cast may round: it does for whole numbers of more than 53 bits among fractions.
        columns.append(values.cast(field.type, safe=False))
    return pa.Table.from_arrays(columns, schema=schema)


def stored_moment(written: str) -> datetime:
    """Return the moment that SQLite stores as text of the form `MOMENT`."""
    return datetime.fromisoformat(written).replace(tzinfo=UTC)
