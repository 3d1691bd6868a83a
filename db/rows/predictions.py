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
ALWAYS_SAID = ("probability", "probability_std")
SOMETIMES_SAID = ("calibrated", "lowest", "highest", "rising_share")
SAID = (*ALWAYS_SAID, *SOMETIMES_SAID)


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
    rising_share, all in [0, 1]. What was predicted once stands: raises StoreError, naming it, when
    a stored prediction differs.
    """
    if predictions.empty:
        return 0
    require_distinct(predictions, ["run_id", "target", "symbol"])
    key = ["run_id", "target", "instrument_id"]
    rows = identified(conn, market, predictions).sort_values(key)
    wrong = (
        "{} is already stored with a different probability or deviation: a past prediction is "
        "never rewritten"
    )
    new = unstored(
        rows,
        _stored_predictions(conn, rows),
        key,
        ALWAYS_SAID,
        PROBABILITY_TOLERANCE,
        shown=["run_id", "target", "symbol"],
        wrong=wrong,
    )
    given = [name for name in SOMETIMES_SAID if name in rows]
    columns = [*key, "as_of", *ALWAYS_SAID, *given]
    return insert_frame(
        conn, tables.prediction, new[columns].assign(known_at=known_at, made_at=made_at)
    )


def save_rule_directions(conn: Connection, market: str, directions: pd.DataFrame) -> int:
    """Store target, as_of and a column a rule (true for a rise, missing without history).

    What is stored stands.
    """
    table = tables.rule_direction
    names = [column.name for column in table.c if column.name != "market"]
    return insert_missing(conn, table, records(table, directions[names].assign(market=market)))


def predictions(
    conn: Connection, market: str, *, target: date | None = None, run_id: str | None = None
) -> pd.DataFrame:
    """Return predictions: run_id, as_of, target, symbol, known_at, made_at and what was said; NaN
    is missing.

    Said are probability, probability_std, calibrated, lowest, highest, rising_share.
    """
    prediction = tables.prediction
    stock = tables.instrument
    statement = (
        sa.select(
            prediction.c.run_id,
            prediction.c.as_of,
            prediction.c.target,
            stock.c.symbol,
            *[prediction.c[name] for name in SAID],
            prediction.c.known_at,
            prediction.c.made_at,
        )
        .join_from(prediction, stock)
        .where(
            stock.c.market == market,
            *matching(prediction, target=target, run_id=run_id),
        )
        .order_by(prediction.c.target, stock.c.symbol, prediction.c.made_at)
    )
    return frame(conn, statement)


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
    """Return the rows of the view prediction_history for targets first..last.

    `kind` is the model's purpose. With `newest`, no more rows than that, those of the latest
    targets: older ones are not read. Raises StoreUsageError for a symbol that is not stored.
    """
    if symbol is not None:
        require_symbol(conn, symbol, market)
    order = ["market", "target", "symbol", "made_at"]
    newest_first = ["-target", "-made_at", "market", "symbol"]
    statement = shown(
        "prediction_history",
        *(order if newest is None else newest_first),
        span=("target", first, last),
        kind=kind,
        symbol=symbol,
        market=market,
    )
    if newest is None:
        return frame(conn, statement)
    return frame(conn, statement.limit(newest)).sort_values(order, ignore_index=True)


def night_directions(conn: Connection, market: str, as_of: date) -> pd.DataFrame:
    """Return what a night predicted with the model it was closed with, by symbol; NaN is missing.

    Columns: run_id, as_of, target, symbol, name, sector, probability, probability_std, calibrated,
    lowest, highest, rising_share.
    """
    prediction = tables.prediction
    stock = tables.instrument
    night = tables.night
    joined = night.join(prediction, of_night()).join(
        stock, stock.c.id == prediction.c.instrument_id
    )
    statement = (
        sa.select(
            prediction.c.run_id,
            prediction.c.as_of,
            prediction.c.target,
            stock.c.symbol,
            stock.c.name,
            stock.c.sector,
            *[prediction.c[name] for name in SAID],
        )
        .select_from(joined)
        .where(*matching(night, market=market, as_of=as_of))
        .order_by(stock.c.symbol)
    )
    return frame(conn, statement)


def newest_direction_counts(conn: Connection) -> dict[tuple[str, str], int]:
    """Return how many of each market's newest directions are rises and falls, by market and
    direction.
    """
    newest = view("latest_prediction").c
    statement = sa.select(newest.market, newest.direction, sa.func.count()).group_by(
        newest.market, newest.direction
    )
    return {(market, direction): n for market, direction, n in conn.execute(statement)}


def session_directions(market: str, run_id: str, target: date) -> Statement:
    """Return what a model said of each stock for a session, and what came of it."""
    return shown("prediction_history", "symbol", market=market, run_id=run_id, target=target)


def band_directions(market: str, run_id: str, target: date, level: float) -> Statement:
    """Return the same directions where a level has to be reached.

    There is no row for a model that was not calibrated.
    """
    return shown(
        "band_direction", "symbol", market=market, run_id=run_id, target=target, level=level
    )


def default_directions(conn: Connection, symbol: str) -> pd.DataFrame:
    """Return a stock's directions at the level of each model: run_id, target, direction.

    There are none where a model has no band.
    """
    banded = view("band_direction")
    statement = sa.select(banded.c.run_id, banded.c.target, banded.c.direction)
    return frame(conn, statement.where(*matching(banded, symbol=symbol, is_default=1)))


def disagreement(market: str, run_id: str, target: date) -> Statement:
    """Return how far the seeds of an ensemble agreed on each stock; no row where that was not
    kept.
    """
    return shown("disagreement", "symbol", market=market, run_id=run_id, target=target)


def newest_directions(market: str) -> Statement:
    """Return the directions for the next session, with each stock's name and sector."""
    return shown("latest_prediction", "symbol", market=market)


def stock_directions(
    market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> Statement:
    """Return what models of a kind said of a stock, targets first..last, the newest first."""
    return shown(
        "prediction_history",
        "-target",
        "-made_at",
        span=("target", first, last),
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
    one = view("prediction_history").alias("a")
    two = view("prediction_history").alias("b")
    return (
        sa.select(
            one.c.target,
            sa.func.count().label("n"),
            _count(one.c.direction == two.c.direction, "same"),
            _count(one.c.correct.is_not(None), "scored"),
            _count(_is_said(one, "rise", correct=1), "a_rises"),
            _count(_is_said(one, "rise", correct=0), "a_false_rises"),
            _count(_is_said(one, "fall", correct=0), "a_false_falls"),
            _count(_is_said(one, "fall", correct=1), "a_falls"),
            _count(_is_said(two, "rise", correct=1), "b_rises"),
            _count(_is_said(two, "rise", correct=0), "b_false_rises"),
            _count(_is_said(two, "fall", correct=0), "b_false_falls"),
            _count(_is_said(two, "fall", correct=1), "b_falls"),
        )
        .join_from(one, two, _together(one, two))
        .where(
            one.c.run_id == a,
            two.c.run_id == b,
            one.c.target.between(first, last),
            two.c.target.between(first, last),
        )
        .group_by(one.c.target)
        .order_by(one.c.target.desc())
    )


def common_directions(a: str, b: str, target: date) -> Statement:
    """Return what two models said of a session.

    Columns: market, symbol, target, a_probability, b_probability, a_direction, b_direction,
    realised_return.
    """
    one = view("prediction_history").alias("a")
    two = view("prediction_history").alias("b")
    return (
        sa.select(
            one.c.market,
            one.c.symbol,
            one.c.target,
            one.c.probability.label("a_probability"),
            two.c.probability.label("b_probability"),
            one.c.direction.label("a_direction"),
            two.c.direction.label("b_direction"),
            one.c.realised_return,
        )
        .join_from(one, two, _together(one, two))
        .where(
            one.c.run_id == a,
            two.c.run_id == b,
            one.c.target == target,
            two.c.target == target,
        )
        .order_by(one.c.symbol)
    )


def _stored_predictions(conn: Connection, rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is stored of each run from the first to the last target of its rows: few runs,
    many targets.
    """
    table = tables.prediction
    columns = (
        table.c.run_id,
        table.c.target,
        table.c.instrument_id,
        table.c.probability,
        table.c.probability_std,
    )
    spans = rows.groupby("run_id")["target"].agg(["min", "max"])
    parts = []
    for run_id, first, last in spans.itertuples():
        statement = sa.select(*columns).where(
            table.c.run_id == run_id,
            table.c.target.between(first, last),
        )
        parts.append(frame(conn, statement))
    return pd.concat(parts, ignore_index=True)


def of_night() -> sa.ColumnElement[bool]:
    """Return whether a prediction is of the model that a night was closed with, for that night's
    target.
    """
    prediction = tables.prediction
    night = tables.night
    return sa.and_(prediction.c.run_id == night.c.run_id, prediction.c.target == night.c.target)


def _together(one: sa.FromClause, two: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(
        one.c.market == two.c.market, one.c.symbol == two.c.symbol, one.c.target == two.c.target
    )


def _is_said(prediction: sa.FromClause, direction: str, *, correct: int) -> sa.ColumnElement[bool]:
    """Return whether a prediction has an outcome, says a direction, and was correct or not."""
    return sa.and_(prediction.c.direction == direction, prediction.c.correct == correct)


def _count(condition: sa.ColumnElement[bool], name: str) -> sa.Label[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0), type_=sa.Integer()).label(name)
