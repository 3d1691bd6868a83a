"""Run a user's SQL on the Parquet files of an export, in DuckDB; it can reach nothing else."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from db import engine as engines
from db.connection.user_sql import BATCH_ROWS, Answer
from db.errors import StoreUsageError
from db.views import views

MEMORY = "1500MB"
# SQL reads only the registered data sets: no file, no extension, no variable of this program. It
# may not even read the export's folder itself, because DuckDB would then let it write there too, by
# a `copy` within a `with`.
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": False,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
    "memory_limit": MEMORY,
}


@contextmanager
def open_parquet_answer(
    files: Mapping[str, Sequence[Path]], sql: str, *, is_time_limited: bool = True
) -> Iterator[Answer]:
    """Run one statement on the views of an export and yield its answer.

    The answer's rows must be read inside the context. `files` are the files of each view, by its
    name. A view has its documented columns and `year`. Raises StoreUsageError, in one line: where
    DuckDB is not installed, for files that cannot be read, for SQL that does not run, is not a
    single select or explain or needs more than MEMORY, and after READ_LIMIT_S, the reading of the
    rows included, for a statement that `is_time_limited`.
    """
    try:
        import duckdb
    except ImportError as error:
        raise StoreUsageError(
            "DuckDB, which reads Parquet files, is not installed: "
            "pip install 'dtml-nightshift[analysis]'"
        ) from error
    with duckdb.connect(":memory:", config=CONFIG) as conn:
        # The last setting keeps the user's SQL from changing any setting.
        conn.execute(
            "set timezone = 'UTC'; set enable_progress_bar = false; set lock_configuration = true"
        )
        for name, parts in files.items():
            try:
                _create_view(conn, name, parts)
            except (OSError, pa.ArrowException, duckdb.Error) as error:
                folder = parts[0].parents[3]  # of the view, its market and its year
                raise StoreUsageError(
                    f"the exported files of {name} cannot be read ({_one_line(error)}): write them "
                    f"again with `dtml db export {folder} --view {name}`"
                ) from error
        # DuckDB has no time limit of its own.
        timer = threading.Timer(engines.READ_LIMIT_S, conn.interrupt)
        if is_time_limited:
            timer.start()
        try:
            statements = conn.extract_statements(sql)
            if len(statements) != 1:
                raise StoreUsageError(
                    f"the SQL holds {len(statements)} statements: give one select to query Parquet"
                )
            if statements[0].type not in (
                duckdb.StatementType.SELECT,
                duckdb.StatementType.EXPLAIN,
            ):
                raise StoreUsageError(
                    f"the SQL is of type {statements[0].type.name}: give one select to query "
                    "Parquet"
                )
            conn.execute(statements[0])
            names = [column[0] for column in conn.description or ()]
            yield Answer(names=names, batches=iter(partial(conn.fetchmany, BATCH_ROWS), []))
        except duckdb.InterruptException as error:
            raise StoreUsageError(
                f"the SQL was interrupted after {engines.READ_LIMIT_S} s, the limit of a query: "
                "request less data, or use --parquet FILE, which has no limit"
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise StoreUsageError(
                f"the SQL needs more than {MEMORY} of memory: request less data"
            ) from error
        except duckdb.Error as error:
            # A CatalogException is about an unknown name, most often that of a view: say which
            # views there are.
            is_unknown_name = isinstance(error, duckdb.CatalogException)
            known_views = f"; the views are {', '.join(files)}" if is_unknown_name else ""
            raise StoreUsageError(f"the SQL failed: {_one_line(error)}{known_views}") from error
        finally:
            timer.cancel()  # does nothing to a timer that was not started


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _create_view(conn: Any, name: str, files: Sequence[Path]) -> None:
    from pyarrow import dataset

    columns = ", ".join(f'"{column.name}"' for column in views()[name].columns)
    # The files are VIEW/market=MARKET/year=YEAR/rows.parquet.
    folder_names = pa.schema([("market", pa.string()), ("year", pa.int32())])
    rows = dataset.dataset(
        [str(file) for file in files],
        format="parquet",
        partitioning=dataset.partitioning(folder_names, flavor="hive"),
        partition_base_dir=str(files[0].parents[2]),
    )
    conn.register(f"files of {name}", rows)
    select = f'select {columns}, year from "files of {name}"'  # noqa: S608 - our own names
    conn.execute(f"create view {name} as {select}")
