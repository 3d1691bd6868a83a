"""The command that runs a statement of SQL on the store, without pandas and pyarrow if it can."""

import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from db.connection.user_sql import first_rows, open_answer
from db.engine import open_reader
from dtml.errors import UsageError
from dtml.pages.figures import counted
from flows.commands.options import AsCsv, AsJson
from flows.settings import out, print_lines, tell
from flows.text_tables import print_rows, require_distinct

commands = typer.Typer()

SHOWN = 1000  # rows of an answer as a table
LARGEST = 2 * 2**30  # bytes of an answer as CSV or JSON
MEMORY = 2 * 2**30  # bytes that an answer may take, beside those of the program


@commands.command()
def query(
    sql: Annotated[str, typer.Argument(help="The statement; - reads it from standard input.")],
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    parquet: Annotated[
        Path | None, typer.Option(help="Write the rows to this Parquet file, without a time limit.")
    ] = None,
) -> None:
    """Run one read-only SQL statement on the database.

    A table shows the first 1,000 rows; CSV, JSON and Parquet have all rows. `dtml questions` has
    twenty examples.

    Example: dtml query "select * from latest_prediction order by probability desc limit 5"
    """
    chosen_forms = [as_json, as_csv, parquet is not None]
    if sum(chosen_forms) > 1:
        raise UsageError("--json, --csv and --parquet cannot be combined: choose one")
    if parquet is not None and parquet.is_dir():
        raise UsageError(f"{parquet} is a folder: give --parquet the name of a file")
    if sql == "-":
        from translation.data.corpus import lines_in

        sql = "\n".join(lines_in(sys.stdin.buffer, "standard input"))
    run_sql = partial(open_answer, open_reader())
    with _bounded_memory():
        if parquet is not None:
            from flows.answer_files import write_parquet

            with run_sql(sql, is_time_limited=False) as answer:
                count = write_parquet(answer, parquet)
            out.print(f"{counted(count, 'row')} written to {parquet}", soft_wrap=True)
            return
        if as_csv or as_json:
            from flows.answer_files import write_lines

            # First into a file: a failure prints nothing, a slow reader keeps no transaction open.
            with tempfile.TemporaryFile() as file:
                with run_sql(sql) as answer:
                    write_lines(answer, "json" if as_json else "csv", file, LARGEST)
                file.seek(0)
                print_lines(line.decode() for line in file)
            return
        with run_sql(sql) as answer:
            require_distinct(answer.names)
            rows = first_rows(answer, SHOWN + 1)  # one more shows whether there are others
            print_rows(answer.names, rows[:SHOWN])
    if len(rows) > SHOWN:
        tell(f"note: these are the first {SHOWN:,} rows; --csv and --json print all of them")


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let the work inside take at most MEMORY bytes more, on Linux; UsageError beyond.

    Limits on rows do not suffice: libraries and drivers hold copies.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    new_limit = soft_limit
    limit_in_words = "the available memory"
    status = Path("/proc/self/status")
    data = re.search(r"VmData:\s+(\d+) kB", status.read_text() if status.exists() else "")
    if data is not None:
        own_limit = 1024 * int(data[1]) + MEMORY
        # RLIM_INFINITY, for no limit, is a negative number.
        if own_limit < soft_limit or soft_limit == resource.RLIM_INFINITY:
            new_limit = own_limit
            limit_in_words = f"{MEMORY / 2**20:,.0f} MiB of memory"
    resource.setrlimit(resource.RLIMIT_DATA, (new_limit, hard_limit))
    try:
        yield
    except MemoryError as error:
        raise UsageError(
            f"the answer takes more than {limit_in_words}: select fewer rows or columns"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft_limit, hard_limit))
