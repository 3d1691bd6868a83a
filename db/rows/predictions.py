"""Predictions: what models and naive rules said of each stock for a session."""

from datetime import date, datetime

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, insert_missing, records
from db.connection.differences import require_distinct, unstored
from db.connection.frames import Statement, frame, matching, shown
from db.rows.markets import identified, require_symbol
from db.views import view

# A model computes in float32: the same weights and inputs agree to this on another thread count.
PROBABILITY_TOLERANCE = 1e-6
SAID = ("probability", "probability_std", "calibrated", "lowest", "highest", "rising_share")


def save_predictions(
    conn: Connection,
    market: str,
    predictions: pd.DataFrame,
    *,
    known_at: datetime,
    made_at: datetime,
) -> int:
    """Store run_id, as_of, target, symbol, probability in [0, 1], probability_std (NaN: one seed).

    What is known beyond it is kept too, where it is given: calibrated, lowest, highest,
    rising_share, all in [0, 1].
    What was predicted once stands: raises StoreError, naming it, when a stored prediction differs.
    """
    if predictions.empty:
        return 0
    require_distinct(predictions, ["run_id", "target", "symbol"])
    key = ["run_id", "target", "instrument_id"]
    rows = identified(conn, market, predictions).sort_values(key)
    wrong = (
        "{} is stored with another probability or deviation: a past prediction is never rewritten"
    )
    values = SAID[:2]
    stored = _stored_predictions(conn, rows)
    new = unstored(
        rows,
        stored,
        key,
        values,
        PROBABILITY_TOLERANCE,
        shown=["run_id", "target", "symbol"],
        wrong=wrong,
    )
    made = new[[*key, "as_of", *values, *(name for name in SAID[2:] if name in rows)]]
    return insert_frame(conn, tables.prediction, made.assign(known_at=known_at, made_at=made_at))


def save_rule_directions(conn: Connection, market: str, directions: pd.DataFrame) -> int:
    """Store target, as_of and a column a rule (true for a rise, missing without history).

    What is stored stands.
    """
    names = [each.name for each in tables.rule_direction.c if each.name != "market"]
    rows = records(tables.rule_direction, directions[names].assign(market=market))
    return insert_missing(conn, tables.rule_direction, rows)


def predictions(
    conn: Connection, market: str, *, target: date | None = None, run_id: str | None = None
) -> pd.DataFrame:
    """Return predictions: run_id, as_of, target, symbol, known_at, made_at and what was said; NaN
    is missing.

    Said are probability, probability_std, calibrated, lowest, highest, rising_share.
    """
    made, stock = tables.prediction, tables.instrument.c
    columns = (
        made.c.run_id,
        made.c.as_of,
        made.c.target,
        stock.symbol,
        *(made.c[name] for name in SAID),
    )
    statement = sa.select(*columns, made.c.known_at, made.c.made_at).join_from(
        made, tables.instrument
    )
    statement = statement.where(
        stock.market == market, *matching(made, target=target, run_id=run_id)
    )
    return frame(conn, statement.order_by(made.c.target, stock.symbol, made.c.made_at))


def prediction_history(
    conn: Connection,
    *,
    market: str | None = None,
    symbol: str | None = None,
    first: date | None = None,
    last: date | None = None,
    kind: str = "nightly",
    newest: int | None = None,
) -> pd.DataFrame:
    """Return the view prediction_history, targets first..last: its columns; `kind` is the model's
    purpose.

    With `newest`, no more rows than that, those of the latest targets: older ones are not read.
    Raises StoreUsageError for a symbol that is not stored.
    """
    if symbol is not None:
        require_symbol(conn, symbol, market)
    order = ["market", "target", "symbol", "made_at"]
    by = order if newest is None else ("-target", "-made_at", "market", "symbol")
    span = ("target", first, last)
    told = shown("prediction_history", *by, span=span, kind=kind, symbol=symbol, market=market)
    if newest is None:
        return frame(conn, told)
    return frame(conn, told.limit(newest)).sort_values(order, ignore_index=True)


def night_directions(conn: Connection, market: str, as_of: date) -> pd.DataFrame:
    """Return what a night predicted with the model it was closed with, by symbol; NaN is missing.

    Columns: run_id, as_of, target, symbol, name, sector, probability, probability_std, calibrated,
    lowest, highest, rising_share.
    """
    made, named, night = tables.prediction, tables.instrument, tables.night
    said = (made.c[name] for name in SAID)
    columns = (
        made.c.run_id,
        made.c.as_of,
        made.c.target,
        named.c.symbol,
        named.c.name,
        named.c.sector,
        *said,
    )
    joined = night.join(made, of_night()).join(named, named.c.id == made.c.instrument_id)
    statement = (
        sa.select(*columns).select_from(joined).where(*matching(night, market=market, as_of=as_of))
    )
    return frame(conn, statement.order_by(named.c.symbol))


def newest_direction_counts(conn: Connection) -> dict[tuple[str, str], int]:
    """Return how many of each market's newest directions are rises and falls,
    by market and direction.
    """
    found = view("latest_prediction").c
    statement = sa.select(found.market, found.direction, sa.func.count()).group_by(
        found.market, found.direction
    )
    return {(market, direction): n for market, direction, n in conn.execute(statement)}


def session_directions(market: str, run_id: str, target: date) -> Statement:
    """Return what a model said of each stock for a session, and what came of it."""
    return shown("prediction_history", "symbol", market=market, run_id=run_id, target=target)


def band_directions(market: str, run_id: str, target: date, level: float) -> Statement:
    """Return the same directions where a level has to be reached; no row for a
    model that was not calibrated.
    """
    return shown(
        "band_direction", "symbol", market=market, run_id=run_id, target=target, level=level
    )


def default_directions(conn: Connection, symbol: str) -> pd.DataFrame:
    """Return a stock's directions at the level of each model: run_id, target,
    direction; none where it has no band.
    """
    told = view("band_direction")
    mine = matching(told, symbol=symbol, is_default=1)
    return frame(conn, sa.select(told.c.run_id, told.c.target, told.c.direction).where(*mine))


def disagreement(market: str, run_id: str, target: date) -> Statement:
    """Return how far the seeds of an ensemble agreed on each stock; no row
    where that was not kept.
    """
    return shown("disagreement", "symbol", market=market, run_id=run_id, target=target)


def newest_directions(market: str) -> Statement:
    """Return the directions for the next session, with each stock's name and sector."""
    return shown("latest_prediction", "symbol", market=market)


def stock_directions(
    market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> Statement:
    """Return what models of a kind said of a stock, targets first..last, the newest first."""
    span = ("target", first, last)
    return shown(
        "prediction_history",
        "-target",
        "-made_at",
        span=span,
        market=market,
        symbol=symbol,
        kind=kind,
    )


def common_days(a: str, b: str, first: date, last: date) -> Statement:
    """Return stock-days that two models both predicted, counted by session, the newest first.

    Columns: target, n, same (equal directions), scored (those with an outcome), and of each model,
    as in a_rises: its correct and wrong rises and falls with an outcome (rises, false_rises,
    false_falls, falls).
    """
    one, two = (view("prediction_history").alias(name) for name in "ab")
    counted = [sa.func.count().label("n"), _count(one.c.direction == two.c.direction, "same")]
    counted.append(_count(one.c.correct.is_not(None), "scored"))
    kinds = (
        ("rises", "rise", 1),
        ("false_rises", "rise", 0),
        ("false_falls", "fall", 0),
        ("falls", "fall", 1),
    )
    for made, name in ((one, "a"), (two, "b")):
        for kind, direction, correct in kinds:
            counted.append(
                _count(
                    sa.and_(made.c.direction == direction, made.c.correct == correct),
                    f"{name}_{kind}",
                )
            )
    joined = sa.select(one.c.target, *counted).join_from(one, two, _together(one, two))
    mine = (
        one.c.run_id == a,
        two.c.run_id == b,
        one.c.target.between(first, last),
        two.c.target.between(first, last),
    )
    return joined.where(*mine).group_by(one.c.target).order_by(one.c.target.desc())


def common_directions(a: str, b: str, target: date) -> Statement:
    """Return what two models said of a session.

    Columns: market, symbol, target, a_probability, b_probability, a_direction, b_direction,
    realised_return.
    """
    one, two = (view("prediction_history").alias(name) for name in "ab")
    pairs = (
        (name, which, made)
        for name in ("probability", "direction")
        for which, made in (("a", one), ("b", two))
    )
    said = [made.c[name].label(f"{which}_{name}") for name, which, made in pairs]
    columns = (one.c.market, one.c.symbol, one.c.target, *said, one.c.realised_return)
    joined = sa.select(*columns).join_from(one, two, _together(one, two))
    mine = (one.c.run_id == a, two.c.run_id == b, one.c.target == target, two.c.target == target)
    return joined.where(*mine).order_by(one.c.symbol)


def _stored_predictions(conn: Connection, rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is stored of each run from the first to the last target of
    its rows: few runs, many targets.
    """
    made = tables.prediction
    columns = (
        made.c.run_id,
        made.c.target,
        made.c.instrument_id,
        made.c.probability,
        made.c.probability_std,
    )
    parts = [
        frame(
            conn,
            sa.select(*columns).where(made.c.run_id == run_id, made.c.target.between(first, last)),
        )
        for run_id, first, last in rows.groupby("run_id")["target"].agg(["min", "max"]).itertuples()
    ]
    return pd.concat(parts, ignore_index=True)


def of_night() -> sa.ColumnElement[bool]:
    """Return whether a prediction is of the model that a night was closed with,
    for that night's target.
    """
    made, night = tables.prediction, tables.night
    return sa.and_(made.c.run_id == night.c.run_id, made.c.target == night.c.target)


def _together(one: sa.FromClause, two: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(
        one.c.market == two.c.market, one.c.symbol == two.c.symbol, one.c.target == two.c.target
    )


def _count(condition: sa.ColumnElement[bool], name: str) -> sa.Label[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0), type_=sa.Integer()).label(name)
