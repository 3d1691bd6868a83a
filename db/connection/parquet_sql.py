"""Run SQL that a user typed on the Parquet files of an export, in DuckDB, which
reaches nothing else.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from db import engine as opened
from db.connection.user_sql import ROWS, Answer
from db.errors import StoreUsageError
from db.views import views

MEMORY = "1500MB"
# Nothing is read but what is registered: no file, no extension, no variable of this program. A
# directory that were allowed could be written to as well, by a `copy` within a `with`.
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
    files: Mapping[str, Sequence[Path]], sql: str, *, ends: bool = True
) -> Iterator[Answer]:
    """Run one statement on these views of an export, by their files; its rows are read within, as
    `asked` does.

    A view has its documented columns and its `year`. Raises StoreUsageError, in one line, without
    DuckDB, for SQL that does not run or is no select, and where it `ends`, after READ_LIMIT_S.
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
                    "again "
                    f"({' '.join(str(error).split())})"
                ) from error
        timer = threading.Timer(opened.READ_LIMIT_S, conn.interrupt)
        if ends:
            timer.start()
        try:
            asked = conn.extract_statements(sql)
            if len(asked) != 1 or asked[0].type not in (
                duckdb.StatementType.SELECT,
                duckdb.StatementType.EXPLAIN,
            ):
                raise StoreUsageError("give one select statement to query Parquet")
            conn.execute(asked[0])
            yield Answer(
                [each[0] for each in conn.description or ()], iter(lambda: conn.fetchmany(ROWS), [])
            )
        except duckdb.InterruptException as error:
            raise StoreUsageError(
                f"interrupted: a read may take {opened.READ_LIMIT_S} s; request less data"
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise StoreUsageError(
                f"the SQL needs more than {MEMORY} of memory: request less data"
            ) from error
        except duckdb.Error as error:
            unknown_name = isinstance(error, duckdb.CatalogException)
            there = f"; the folder has {', '.join(files)}" if unknown_name else ""
            raise StoreUsageError(
                f"the SQL does not run: {' '.join(str(error).split())}{there}"
            ) from error
        finally:
            timer.cancel()


def _create_view(conn: Any, name: str, files: Sequence[Path]) -> None:
    columns = ", ".join(f'"{column.name}"' for column in views()[name].columns)
    conn.register(f"files of {name}", _dataset(files))
    select = f'select {columns}, year from "files of {name}"'  # noqa: S608 - our own names
    conn.execute(f"create view {name} as {select}")


def _dataset(files: Sequence[Path]) -> Any:
    from pyarrow import dataset

    named = dataset.partitioning(
        pa.schema([("market", pa.string()), ("year", pa.int32())]), flavor="hive"
    )
    paths, base = [str(file) for file in files], str(files[0].parents[2])
    return dataset.dataset(paths, format="parquet", partitioning=named, partition_base_dir=base)
