"""Writes of markets, prices, models, predictions, outcomes, scores and nights.

They are idempotent, inside the caller's `transaction`, and return the number of rows that are new: a rerun with the
same values adds none. Frames name instruments by symbol; a symbol that `save_instruments` has not stored is an error.
Timestamps are aware. Other writes lie by topic: backtests.py, benchmarks.py, evidence.py, service.py, translations.py
and translation_queue.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db.connection.bulk import insert_frame, insert_missing, records, upsert, upsert_frame
from db.connection.frames import BAR_VALUES, frame, row
from db.errors import StoreError
from db.rows import queries
from db.rows.stored import alongside, differ, identified, is_stored, named, require_distinct
from db.tables import schema

# A source's rounding noise is not a restatement.
PRICE_TOLERANCE = 1e-9
# A model computes in float32: the same weights and inputs agree to this on another thread count.
PROBABILITY_TOLERANCE = 1e-6


def save_instruments(conn: Connection, market: str, instruments: pd.DataFrame) -> int:
    """Store symbol, kind, source_symbol, name, sector (the last two may be missing); others are updated."""
    columns = ["symbol", "kind", "source_symbol", "name", "sector"]
    rows = records(schema.instrument, instruments[columns].assign(market=market))
    return upsert(conn, schema.instrument, rows, key=("market", "symbol"))


def note_asked(conn: Connection, market: str, first: Mapping[str, date]) -> None:
    """Remember, for each symbol that a source answered for, the earliest session it was ever asked from."""
    table = schema.instrument
    for symbol, day in first.items():
        earlier = sa.or_(table.c.asked_from.is_(None), table.c.asked_from > day)
        mine = sa.and_(table.c.market == market, table.c.symbol == symbol, earlier)
        conn.execute(sa.update(table).where(mine).values(asked_from=day))


def save_memberships(conn: Connection, market: str, memberships: pd.DataFrame) -> int:
    """Store a market's whole list: symbol, valid_from, valid_to (NaT: unknown, lasting), source.

    A stored stay that is no longer listed goes: the list is the market file's statement of the past.
    """
    stays = identified(conn, market, memberships).sort_values("valid_from", na_position="first")
    stays["spell"] = stays.groupby("instrument_id").cumcount() + 1
    rows = records(schema.membership, stays[["instrument_id", "spell", "valid_from", "valid_to", "source"]])
    listed = {(each["instrument_id"], each["spell"]) for each in rows}
    table, ids = schema.membership, queries.instrument_ids(conn, market).tolist()
    stored = conn.execute(sa.select(table.c.instrument_id, table.c.spell).where(table.c.instrument_id.in_(ids)))
    for instrument_id, spell in {tuple(each) for each in stored} - listed:
        gone = (table.c.instrument_id == instrument_id, table.c.spell == spell)
        conn.execute(sa.delete(table).where(*gone))
    return upsert(conn, table, rows)


def append_prices(conn: Connection, market: str, bars: pd.DataFrame, *, source: str, known_at: datetime) -> int:
    """Store the bars that differ from the version in force at `known_at`, as versions known since then.

    `bars` is the bars frame: one row per symbol and session; missing is NaN, close is not. Prices within 1e-9
    of each other, relatively, are equal. Raises StoreError for a price that is missing or not above 0, naming
    its symbol and session, and for two versions of one bar with the same `known_at`.
    """
    if bars.empty:
        return 0
    key = ["symbol", "session"]
    require_distinct(bars, key)
    _require_prices(bars)
    rows = identified(conn, market, bars).sort_values(["instrument_id", "session"])
    before = alongside(rows, _versions_in_force(conn, market, bars, known_at), key)
    restated = differ(rows, before, BAR_VALUES, PRICE_TOLERANCE)
    clash = rows[restated & (before["known_at"] == known_at).to_numpy()]
    if len(clash):
        raise StoreError(f"{named(clash, key)}: two versions fetched at {known_at.isoformat()}: fetch again")
    versions = rows.loc[~is_stored(before) | restated, ["instrument_id", "session", *BAR_VALUES]]
    return insert_frame(conn, schema.price, versions.assign(known_at=known_at, source=source))


def record_refused(conn: Connection, market: str, refused: pd.DataFrame, *, source: str, known_at: datetime) -> int:
    """Store refused bars: symbol, session, reason, value in words. The first finding stands."""
    rows = identified(conn, market, refused)[["instrument_id", "session", "reason", "value"]]
    rows = rows.assign(source=source, first_known_at=known_at)
    return insert_missing(conn, schema.refused_bar, records(schema.refused_bar, rows))


def save_run(conn: Connection, run: Mapping[str, object]) -> int:
    """Store a trained model, every column of run by name. The first row of a name stands.

    A model that keeps no weights has None for its checkpoint's path and hash. Raises StoreError when that name
    is stored with another checkpoint.
    """
    stored = row(conn, sa.select(schema.run.c.checkpoint_hash).where(schema.run.c.id == run["id"]))
    if stored is not None and stored["checkpoint_hash"] != run["checkpoint_hash"]:
        raise StoreError(f"run {run['id']} is stored with another checkpoint: give the new one another name")
    return insert_missing(conn, schema.run, [dict(run)])


def save_predictions(
    conn: Connection, market: str, predictions: pd.DataFrame, *, known_at: datetime, made_at: datetime
) -> int:
    """Store run_id, as_of, target, symbol, probability in [0, 1], spread (NaN: one member).

    What is known beyond it is kept too, where it is given: calibrated, lowest, highest, rising_share, all in [0, 1].
    What was predicted once stands: raises StoreError, naming it, when a stored prediction differs.
    """
    if predictions.empty:
        return 0
    require_distinct(predictions, ["run_id", "target", "symbol"])
    key = ["run_id", "target", "instrument_id"]
    rows = identified(conn, market, predictions).sort_values(key)
    before = alongside(rows, _stored_predictions(conn, rows), key)
    differing = rows[differ(rows, before, ("probability", "spread"), PROBABILITY_TOLERANCE)]
    if len(differing):
        raise StoreError(
            f"{named(differing, ['run_id', 'target', 'symbol'])} is stored with another probability or spread:"
            " a past prediction is never rewritten"
        )
    more = [name for name in ("calibrated", "lowest", "highest", "rising_share") if name in rows]
    columns = ["run_id", "target", "instrument_id", "as_of", "probability", "spread", *more]
    made = rows.loc[~is_stored(before), columns]
    return insert_frame(conn, schema.prediction, made.assign(known_at=known_at, made_at=made_at))


def save_outcomes(
    conn: Connection, market: str, outcomes: pd.DataFrame, *, known_at: datetime, recorded_at: datetime
) -> int:
    """Store symbol, session, move (a fraction), rise, label (-1, 0, 1); a changed outcome is updated."""
    require_distinct(outcomes, ["symbol", "session"])
    rows = identified(conn, market, outcomes)[["instrument_id", "session", "move", "rise", "label"]]
    rows = rows.sort_values(["instrument_id", "session"]).assign(known_at=known_at, recorded_at=recorded_at)
    return upsert_frame(conn, schema.outcome, rows, stamps=("known_at", "recorded_at"))


def save_scores(conn: Connection, market: str, scores: pd.DataFrame, *, scored_at: datetime) -> int:
    """Store or update scores: the columns of score but market and scored_at; what has no value is NaN."""
    columns = [each.name for each in schema.score.c if each.name not in ("market", "scored_at")]
    rows = records(schema.score, scores[columns].assign(market=market, scored_at=scored_at))
    return upsert(conn, schema.score, rows, stamps=("scored_at",))


def start_night(conn: Connection, market: str, as_of: date, *, target: date, source: str, started_at: datetime) -> int:
    """Open a night: status running. One that is already complete, with gaps or without, stays as it is."""
    begun = {"target": target, "source": source, "started_at": started_at, "status": "running"}
    table = schema.night
    new = insert_missing(conn, table, [{"market": market, "as_of": as_of, **begun}])
    again = sa.update(table).where(table.c.market == market, table.c.as_of == as_of)
    again = again.where(table.c.status.in_(["running", "refused"]))
    forgotten = {each.name: sa.null() for each in table.c if each.nullable}
    conn.execute(again.values(**begun, **forgotten))
    return new


def finish_night(
    conn: Connection,
    market: str,
    as_of: date,
    *,
    status: str,
    finished_at: datetime,
    counts: Mapping[str, int],
    gaps: Sequence[Mapping[str, str]],
    reason: str | None = None,
    run_id: str | None = None,
    known_at: datetime | None = None,
    inputs_hash: str | None = None,
) -> None:
    """Close a night that was started: complete, complete_with_gaps, or refused with its reason.

    `counts` holds fetched, stored, refused, predictions; `gaps` symbol and reason of each stock left out.
    """
    table = schema.night
    statement = sa.update(table).where(table.c.market == market, table.c.as_of == as_of)
    values: dict[str, Any] = {name: counts[name] for name in ("fetched", "stored", "refused", "predictions")}
    values |= {"status": status, "finished_at": finished_at, "gaps": [dict(each) for each in gaps]}
    values |= {"reason": reason, "run_id": run_id, "known_at": known_at, "inputs_hash": inputs_hash}
    if conn.execute(statement.values(values)).rowcount != 1:
        raise StoreError(f"night {market} {as_of} was never started")


def _require_prices(bars: pd.DataFrame) -> None:
    prices = ["open", "high", "low", "close", "adj_close"]
    unsound = bars[bars["close"].isna() | (bars[prices] <= 0).any(axis=1)]
    if len(unsound):
        raise StoreError(f"{named(unsound, ['symbol', 'session'])}: a price is missing or not above 0")


def _versions_in_force(conn: Connection, market: str, bars: pd.DataFrame, known_at: datetime) -> pd.DataFrame:
    """The stored bars of each symbol from its first to its last new one; few spans differ."""
    spans = bars.groupby("symbol")["session"].agg(["min", "max"])
    parts = [
        queries.prices(conn, market, same["min"].iloc[0], same["max"].iloc[0], known_at=known_at, symbols=same.index)
        for _, same in spans.groupby(["min", "max"])
    ]
    return pd.concat(parts, ignore_index=True)


def _stored_predictions(conn: Connection, rows: pd.DataFrame) -> pd.DataFrame:
    """What is stored of each run from the first to the last target of its rows: few runs, many targets."""
    made = schema.prediction
    columns = (made.c.run_id, made.c.target, made.c.instrument_id, made.c.probability, made.c.spread)
    parts = [
        frame(conn, sa.select(*columns).where(made.c.run_id == run_id, made.c.target.between(first, last)))
        for run_id, first, last in rows.groupby("run_id")["target"].agg(["min", "max"]).itertuples()
    ]
    return pd.concat(parts, ignore_index=True)
