"""Run a user's SQL on the Parquet files of an export, in DuckDB, which reaches nothing else."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from db import engine as opened
from db.connection.user_sql import ROWS, Answer, Rows
from db.errors import StoreUsageError
from db.views import views

MEMORY = "1500MB"
# SQL reads only the registered data sets: no file, no extension, no variable of this program. A
# directory that SQL may read it could also write, by a `copy` within a `with`.
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": False,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
    "memory_limit": MEMORY,
}


@contextmanager
def asked_of_parquet(
    files: Mapping[str, Sequence[Path]], sql: str, *, time_limited: bool = True
) -> Iterator[Answer]:
    """Run one statement on the views of an export; yield its answer, whose rows are read within.

    `files` are the files of each view. A view has its documented columns and its `year`. Raises
    StoreUsageError, in one line, without DuckDB, for SQL that does not run or is not a select, and
    after READ_LIMIT_S if it is `time_limited`.
    """
    try:
        import duckdb
    except ImportError as error:
        raise StoreUsageError(
            "querying Parquet needs DuckDB: pip install 'dtml-nightshift[analysis]'"
        ) from error
    with duckdb.connect(":memory:", config=CONFIG) as conn:
        conn.execute(
            "set timezone = 'UTC'; set enable_progress_bar = false; set lock_configuration = true"
        )
        for name, parts in files.items():
            try:
                _create_view(conn, name, parts)
            except (OSError, pa.ArrowException, duckdb.Error) as error:
                raise StoreUsageError(
                    f"the files of {name} have changed since `dtml db export` wrote them: run it "
                    f"again ({_one_line(error)})"
                ) from error
        timer = threading.Timer(opened.READ_LIMIT_S, conn.interrupt)
        if time_limited:
            timer.start()
        try:
            conn.execute(_single_select(conn, sql))
            names = [column[0] for column in conn.description or ()]
            yield Answer(names=names, batches=_batches(conn))
        except duckdb.InterruptException as error:
            raise StoreUsageError(
                f"interrupted: queries are limited to {opened.READ_LIMIT_S} s; request less data"
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise StoreUsageError(
                f"the SQL needs more than {MEMORY} of memory: request less data"
            ) from error
        except duckdb.Error as error:
            unknown_name = isinstance(error, duckdb.CatalogException)
            known_views = f"; the folder has {', '.join(files)}" if unknown_name else ""
            raise StoreUsageError(f"the SQL failed: {_one_line(error)}{known_views}") from error
        finally:
            timer.cancel()


def _single_select(conn: Any, sql: str) -> Any:
    """Return the one statement of the SQL; raises StoreUsageError unless it only reads."""
    from duckdb import StatementType

    statements = conn.extract_statements(sql)
    reads = (StatementType.SELECT, StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in reads:
        raise StoreUsageError("give one select statement to query Parquet")
    return statements[0]


def _batches(conn: Any) -> Iterator[Rows]:
    """Yield the rows of the statement that ran last, `ROWS` at a time."""
    rows = conn.fetchmany(ROWS)
    while rows:
        yield rows
        rows = conn.fetchmany(ROWS)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _create_view(conn: Any, name: str, files: Sequence[Path]) -> None:
    """Create a view of a documented view's files: its columns, and the `year` of their folder."""
    columns = ", ".join(f'"{column.name}"' for column in views()[name].columns)
    conn.register(f"files of {name}", _dataset(files))
    select = f'select {columns}, year from "files of {name}"'  # noqa: S608 - our own names
    conn.execute(f"create view {name} as {select}")


def _dataset(files: Sequence[Path]) -> Any:
    """Return the files as one data set, with the market and the year that their folders name."""
    from pyarrow import dataset

    folder_names = pa.schema([("market", pa.string()), ("year", pa.int32())])
    return dataset.dataset(
        [str(file) for file in files],
        format="parquet",
        partitioning=dataset.partitioning(folder_names, flavor="hive"),
        partition_base_dir=str(files[0].parents[2]),
    )
