"""The command that asks the store a statement of SQL.

It is typed again and again, so what only some of its forms need is imported by them: pandas and
pyarrow take longer than most answers.
"""

import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from db.connection.user_sql import Answer, first_rows, open_answer
from db.engine import open_reader
from dtml.errors import UsageError
from flows.commands.options import AsJson
from flows.settings import err, out
from flows.text_tables import print_rows, require_distinct

commands = typer.Typer()

SHOWN = 1000  # rows of an answer as a table
LARGEST = 2 * 2**30  # characters of an answer as CSV or JSON
MEMORY = 2 * 2**30  # bytes that an answer may take


@commands.command()
def query(
    sql: Annotated[str, typer.Argument(help="The statement; - reads it from standard input.")],
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    parquet: Annotated[
        Path | None, typer.Option(help="Write the rows to this Parquet file, without a time limit.")
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option(
            help="Query the files that `dtml db export` wrote to this folder, with DuckDB."
        ),
    ] = None,
) -> None:
    """Run one read-only SQL statement on the database.

    A table shows the first 1,000 rows; CSV, JSON and Parquet have all rows. `dtml questions` has
    twenty examples.

    Example: dtml query "select * from latest_prediction order by probability desc limit 5"
    """
    if as_json + as_csv + (parquet is not None) > 1:
        raise UsageError("--json, --csv and --parquet cannot be combined: choose one")
    if parquet is not None and parquet.is_dir():
        raise UsageError(f"{parquet} is a folder: --parquet takes a file")
    if sql == "-":
        sql = _typed_in()
    asking = partial(open_answer, open_reader()) if on is None else _asked_of_files(on)
    with _bounded_memory():
        if parquet is not None:
            return _write(asking(sql, is_time_limited=False), parquet)
        if as_csv or as_json:
            return _print_all(asking(sql), as_json=as_json)
        with asking(sql) as answer:
            require_distinct(answer.names)
            rows = first_rows(answer, SHOWN + 1)
            print_rows(answer.names, rows[:SHOWN])
    if len(rows) > SHOWN:
        err.print(
            f"note: these are the first {SHOWN:,} rows; --csv and --json print all of them",
            soft_wrap=True,
        )
    return None


def _asked_of_files(folder: Path) -> Callable[..., AbstractContextManager[Answer]]:
    """Return what asks the files of an export; raise UsageError for a folder that is none."""
    from db.connection.parquet_sql import open_parquet_answer
    from flows.upkeep.parquet_export import exported

    return partial(open_parquet_answer, exported(folder))


def _write(asking: AbstractContextManager[Answer], file: Path) -> None:
    """Write all rows to a Parquet file, and print how many."""
    from flows.answer_files import write_parquet

    with asking as answer:
        count = write_parquet(answer, file)
    out.print(f"{count} rows written to {file}", soft_wrap=True)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let this process have MEMORY more than it has, where Linux says what that is.

    Raises UsageError when it is over. What bounds rows and values cannot see what a library or a
    driver holds of them.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    new_limit = soft_limit
    used = _data_bytes()
    if used is not None:
        most = used + MEMORY
        if most < soft_limit or soft_limit == resource.RLIM_INFINITY:
            new_limit = most
    resource.setrlimit(resource.RLIMIT_DATA, (new_limit, hard_limit))
    try:
        yield
    except MemoryError as error:
        raise UsageError(
            f"the answer takes more than {MEMORY:,} bytes of memory: select fewer rows or columns"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))


def _data_bytes() -> int | None:
    """Return the bytes of data that this process has, as Linux counts them; None elsewhere."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    data = re.search(r"VmData:\s+(\d+) kB", status.read_text())
    if data is None:
        return None
    return 1024 * int(data[1])


def _print_all(asking: AbstractContextManager[Answer], *, as_json: bool) -> None:
    """Print all rows as JSON or CSV once the last has come, by way of a file.

    A failure prints nothing, and no reader keeps the store.
    """
    from flows.answer_files import csv_lines, json_lines

    form = json_lines if as_json else csv_lines
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
        with asking as answer:
            written = 0
            for text in form(answer):
                written += file.write(text)
                if written > LARGEST:
                    raise UsageError(
                        f"the answer has more than {LARGEST:,} characters, too many to print: add "
                        "a limit or a where clause"
                    )
        file.seek(0)
        shutil.copyfileobj(file, sys.stdout)


def _typed_in() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text: {error}") from error
