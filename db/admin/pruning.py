"""Remove rows that no replay needs: attention of old nights, and old models that no row names.

Predictions, outcomes, scores and every version of a price stay, and so does each model that one of
them, a backtest, a benchmark or an explanation names. Measure the space of a store and of its
tables, and give free space back to the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Engine, text

from db import tables
from db.admin import statements
from db.engine import reading
from db.rows.nights import COMPLETE
from db.rows.rankings import latest_ranker
from db.rows.runs import latest_run

# Every column that refers to a model, except that of its abstention bands, which are removed with
# it. The database itself refuses to remove a model that any of these columns names.
REFERRING_TO_RUNS = (
    tables.prediction.c.run_id,
    tables.night.c.run_id,
    tables.backtest_fold.c.run_id,
    tables.benchmark_score.c.run_id,
    tables.explanation.c.run_id,
    tables.calibration_bin.c.run_id,
    tables.abstention_count.c.run_id,
)
REFERRING_TO_RANKERS = (tables.stock_rank.c.ranker_id,)


@dataclass(frozen=True)
class OldRows:
    """Rows that can be removed.

    `attention` is the number of rows of attention. `runs` and `rankers` are the models that no row
    names: the path of each one's weights below the data folder (None: it has no file), by its name.
    """

    attention: int
    runs: Mapping[str, str | None]
    rankers: Mapping[str, str | None]


def first_kept_nights(conn: Connection, keep: int) -> dict[str, date]:
    """Return the session of the first of the last `keep` complete nights, by market.

    A market with fewer complete nights is left out.
    """
    night = tables.night.c
    newest_first = sa.func.row_number().over(partition_by=night.market, order_by=night.as_of.desc())
    complete = (
        sa.select(night.market, night.as_of, newest_first.label("place"))
        .where(night.status.in_(COMPLETE))
        .subquery()
        .c
    )
    first_kept = (
        sa.select(complete.market, complete.as_of)
        .where(complete.place == keep)
        .order_by(complete.market)
    )
    return dict(conn.execute(first_kept).tuples().all())


def old_rows(conn: Connection, first_kept: Mapping[str, date], created_before: datetime) -> OldRows:
    """Return what can be removed: the number of attention rows of old nights, and old models.

    `first_kept` has the session of the first night to keep of each market, as `first_kept_nights`
    returns it; nights before it are old, and a market that is not in it keeps all. A model can be
    removed if all of these are true: the last session that it was trained on is before the first
    night to keep; its training ended before `created_before`; no row names it but its own
    abstention bands; it is not the newest of its market, which the next night uses.
    """
    attention_rows = 0
    old_runs: dict[str, str | None] = {}
    old_rankers: dict[str, str | None] = {}
    for market, first in first_kept.items():
        count = sa.select(sa.func.count()).where(*_is_old_attention(market, first))
        attention_rows += conn.execute(count).scalar_one()
        is_old_run = _is_old_and_unused(
            tables.run, REFERRING_TO_RUNS, market, first, created_before
        )
        is_old_ranker = _is_old_and_unused(
            tables.ranker, REFERRING_TO_RANKERS, market, first, created_before
        )
        newest_run = latest_run(conn, market)
        newest_ranker = latest_ranker(conn, market)
        old_runs |= _weights_paths(conn, tables.run, is_old_run, kept=newest_run)
        old_rankers |= _weights_paths(conn, tables.ranker, is_old_ranker, kept=newest_ranker)
    return OldRows(attention=attention_rows, runs=old_runs, rankers=old_rankers)


def remove_rows(conn: Connection, first_kept: Mapping[str, date], old: OldRows) -> None:
    """Remove what `old_rows` returned for the same nights. Call it inside a `transaction`.

    The files of the models' weights stay; the caller removes them. Raises StoreError, so that
    nothing is removed, where a new row names one of the models since.
    """
    for market, first in first_kept.items():
        is_old = _is_old_attention(market, first)
        conn.execute(sa.delete(tables.attention_weight).where(*is_old))
    for run_id in old.runs:
        of_run = tables.abstention_band.c.run_id == run_id
        conn.execute(sa.delete(tables.abstention_band).where(of_run))
        conn.execute(sa.delete(tables.run).where(tables.run.c.id == run_id))
    for ranker_id in old.rankers:
        conn.execute(sa.delete(tables.ranker).where(tables.ranker.c.id == ranker_id))


def _is_old_attention(market: str, first: date) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of attention that a market's nights stored before the night `first`.

    The attention of a backtest is kept: its user asked for it.
    """
    attention = tables.attention_weight.c
    run = tables.run.c
    runs_of_nights = sa.select(run.id).where(run.market == market, run.kind == "nightly")
    # A night predicts the session after its own: the last night before `first` has the target
    # `first`, and the night of `first` itself has a later one.
    return attention.run_id.in_(runs_of_nights), attention.target <= first


def _is_old_and_unused(
    table: sa.Table,
    referring_columns: tuple[sa.Column[str], ...],
    market: str,
    first: date,
    created_before: datetime,
) -> list[ColumnElement[bool]]:
    """Return the conditions of a market's models that are old and that no row names.

    A model is old if it was trained on sessions before `first` alone, and its training ended before
    `created_before`. `table` is run or ranker, and a row names a model in one of
    `referring_columns`.
    """
    conditions = [
        table.c.market == market,
        table.c.train_last < first,
        table.c.created_at < created_before,
    ]
    for column in referring_columns:
        is_named = sa.exists().where(column == table.c.id)
        conditions.append(~is_named)
    return conditions


def _weights_paths(
    conn: Connection,
    table: sa.Table,
    conditions: list[ColumnElement[bool]],
    *,
    kept: Mapping[str, Any] | None,
) -> dict[str, str | None]:
    """Return the path of the weights of each model that meets the conditions, by its name.

    The model whose row is `kept` is left out.
    """
    kept_name = None if kept is None else kept["id"]
    models = sa.select(table.c.id, table.c.checkpoint_path).where(*conditions).order_by(table.c.id)
    return {name: path for name, path in conn.execute(models) if name != kept_name}


SIZES = statements("sizes")
# Below this share of free pages, compacting an SQLite file costs more than it gives back.
FREE_SHARE = 0.05


def table_bytes(conn: Connection, table: str) -> int | None:
    """Return the bytes of a table with its indexes.

    None where SQLite was built without dbstat, the table that has these sizes.
    """
    is_known = _measured(conn, "whether bytes of a table are known")
    if not is_known:
        return None
    return _measured(conn, "bytes of a table with its indexes", name=table)


def mean_row_bytes(conn: Connection, table: str) -> float | None:
    """Return the bytes of a table with its indexes, divided by its rows.

    None for a table without rows, and where `table_bytes` is None.
    """
    counted = conn.execute(sa.select(sa.func.count()).select_from(tables.metadata.tables[table]))
    row_count = counted.scalar_one()
    total_bytes = table_bytes(conn, table)
    return total_bytes / row_count if total_bytes and row_count else None


def store_bytes(conn: Connection) -> int:
    """Return the bytes of the whole store, without SQLite's write-ahead log."""
    return _measured(conn, "bytes of the store")


def free_bytes(conn: Connection) -> int:
    """Return the bytes of an SQLite file's free pages; 0 on PostgreSQL, which reuses them."""
    return _measured(conn, "bytes of the store that hold nothing")


def has_much_free(conn: Connection) -> bool:
    """Return whether compacting an SQLite file would free `FREE_SHARE` of it or more."""
    return free_bytes(conn) >= FREE_SHARE * store_bytes(conn)


def compact(engine: Engine) -> None:
    """Give the free pages of an SQLite file back to the disk; leave PostgreSQL to its autovacuum.

    It needs up to twice the size of the file in free disk space: once beside the file, once in
    SQLite's folder of temporary files. Others may read meanwhile, and writers wait. Raises
    StoreError when the disk is full, or when another process writes for longer than
    `db.engine.LOCK_WAIT_S`. Where one reads for longer, the file becomes smaller only later.
    """
    if engine.dialect.name != "sqlite":
        return
    with reading(engine) as conn:
        # SQLite refuses VACUUM inside a transaction, which SQLAlchemy would begin.
        driver = conn.connection.driver_connection
        assert driver is not None
        driver.execute("vacuum")
        # VACUUM writes to the log first: this moves the pages into the file and empties the log.
        driver.execute("pragma wal_checkpoint(truncate)")


def _measured(conn: Connection, what: str, **values: str) -> int:
    statement = text(SIZES[f"{conn.dialect.name}: {what}"])
    return int(conn.execute(statement, values).scalar_one() or 0)
