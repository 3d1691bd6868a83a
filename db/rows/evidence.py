"""Every write and read of how far predictions can be trusted.

Bands, rules' calls, nightly counts; attention, and whether it explains anything. Writes as in
db/rows/repositories.py, reads as in db/rows/queries.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db.connection.bulk import insert_frame, insert_missing, records, upsert
from db.connection.frames import frame, row
from db.errors import StoreError
from db.rows.queries import rows_of
from db.rows.stored import alongside, differ, identified, is_stored, named, require_distinct, save_figures
from db.tables import schema

# The weights of a softmax in float32, summed over hundreds of stocks, agree to this on another thread count.
WEIGHT_TOLERANCE = 1e-6


def save_bands(conn: Connection, run_id: str, bands: pd.DataFrame) -> int:
    """Store the bands of a run: level, threshold, days, n. What is stored stands: raises StoreError when it differs."""
    return save_figures(conn, schema.band, "run_id", run_id, bands, why="a model is calibrated once")


def bands(conn: Connection, run_id: str) -> pd.DataFrame:
    """The bands of a run by level: level, threshold, days, n; no rows for a run that was not calibrated."""
    return rows_of(conn, schema.band, "run_id", run_id)


def save_rule_calls(conn: Connection, market: str, calls: pd.DataFrame) -> int:
    """Store target, as_of and a column a rule (true for a rise, missing without history). What is stored stands."""
    names = [each.name for each in schema.rule_call.c if each.name != "market"]
    return insert_missing(conn, schema.rule_call, records(schema.rule_call, calls[names].assign(market=market)))


def save_bins(conn: Connection, bins: pd.DataFrame) -> int:
    """Store run_id, target, bin, n, probability_sum, rises in place of what is stored of these runs and targets."""
    return _replace(conn, schema.calibration_bin, bins)


def save_band_counts(conn: Connection, counts: pd.DataFrame) -> int:
    """Store run_id, target, level, n, covered, called, right_calls in place of what is stored of these nights."""
    return _replace(conn, schema.band_count, counts)


def calibration_bins(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """The columns of calibration_bin for nightly runs of a market, targets up to `last`, by target, run and bin."""
    return _counts(conn, schema.calibration_bin, market, last)


def band_counts(conn: Connection, market: str, last: date) -> pd.DataFrame:
    """The columns of band_count for nightly runs of a market, targets up to `last`, by target, run and level."""
    return _counts(conn, schema.band_count, market, last)


def fold_counts(conn: Connection, backtest_id: str) -> pd.DataFrame:
    """The columns of band_count for every fold of a backtest that is done, by target and level."""
    table, fold = schema.band_count, schema.backtest_fold
    of_fold = sa.and_(table.c.run_id == fold.c.run_id, table.c.target.between(fold.c.first, fold.c.last))
    statement = sa.select(table).select_from(fold.join(table, of_fold)).where(fold.c.backtest_id == backtest_id)
    return frame(conn, statement.order_by(table.c.target, table.c.level))


def bands_of(conn: Connection, run_ids: Collection[str]) -> pd.DataFrame:
    """The bands of several runs: run_id, level, threshold."""
    table = schema.band
    statement = sa.select(table.c.run_id, table.c.level, table.c.threshold).where(table.c.run_id.in_(run_ids))
    return frame(conn, statement.order_by(table.c.run_id, table.c.level))


def save_attention(conn: Connection, market: str, attention: pd.DataFrame) -> int:
    """Store run_id, target, symbol (who looks), source (looked at), weight in [0, 1] of stored predictions.

    What is stored stands: raises StoreError, naming it, when a stored weight differs.
    """
    if attention.empty:
        return 0
    require_distinct(attention, ["run_id", "target", "symbol", "source"])
    key = ["run_id", "target", "instrument_id", "source_id"]
    rows = identified(conn, market, attention, source_id="source").sort_values(key)
    table = schema.attention_weight
    days = rows[["run_id", "target"]].drop_duplicates().itertuples(index=False)
    stored = [
        frame(conn, sa.select(table).where(table.c.run_id == run_id, table.c.target == target))
        for run_id, target in days
    ]
    before = alongside(rows, pd.concat(stored, ignore_index=True), key)
    differing = rows[differ(rows, before, ["weight"], 0.0, zero=WEIGHT_TOLERANCE)]
    if len(differing):
        raise StoreError(
            f"attention of {named(differing, ['run_id', 'target', 'symbol', 'source'])} is stored: it stands"
        )
    return insert_frame(conn, table, rows.loc[~is_stored(before), [*key, "weight"]])


def attention(conn: Connection, run_id: str, target: date) -> pd.DataFrame:
    """Attention of a model on the session it predicted, by symbol and source: symbol, source, weight."""
    table, looking, seen = schema.attention_weight, schema.instrument, schema.instrument.alias("seen")
    columns = (looking.c.symbol, seen.c.symbol.label("source"), table.c.weight)
    joined = table.join(looking, looking.c.id == table.c.instrument_id).join(seen, seen.c.id == table.c.source_id)
    mine = sa.select(*columns).select_from(joined).where(table.c.run_id == run_id, table.c.target == target)
    return frame(conn, mine.order_by(looking.c.symbol, seen.c.symbol))


def save_explanation(conn: Connection, explained: Mapping[str, object]) -> int:
    """Store or renew what is known of a run's attention, every column of explanation by name; 1 when it is new."""
    return upsert(conn, schema.explanation, [dict(explained)], stamps=("made_at", "seconds"))


def explanation(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """What is known of a run's attention, every column of explanation; None when it was never measured."""
    return row(conn, sa.select(schema.explanation).where(schema.explanation.c.run_id == run_id))


def _replace(conn: Connection, table: sa.Table, rows: pd.DataFrame) -> int:
    if rows.empty:
        return 0
    for run_id, targets in rows.groupby("run_id")["target"]:
        days = [day.date() for day in pd.DatetimeIndex(targets.unique())]
        conn.execute(sa.delete(table).where(table.c.run_id == run_id, table.c.target.in_(days)))
    return insert_frame(conn, table, rows[[each.name for each in table.c]])


def _counts(conn: Connection, table: sa.Table, market: str, last: date) -> pd.DataFrame:
    joined = table.join(schema.run, schema.run.c.id == table.c.run_id)
    mine = (schema.run.c.market == market, schema.run.c.kind == "nightly", table.c.target <= last)
    keys = [each for each in table.primary_key if each.name not in ("run_id", "target")]
    statement = sa.select(table).select_from(joined).where(*mine)
    return frame(conn, statement.order_by(table.c.target, table.c.run_id, *keys))
