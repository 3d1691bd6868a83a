"""Predictions: the directions of each stock for a session, by models and by naive rules."""

from datetime import date, datetime
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from db import tables
from db.connection.bulk import insert_frame, insert_missing, records
from db.connection.differences import SAME_AGAIN, new_rows_of, require_distinct
from db.connection.frames import Statement, frame, matching, select_rows, within
from db.rows.markets import identified, require_symbol
from db.views import view

# Probabilities that differ by less, relatively, are the same. A model computes in float32, whose
# last digits depend on the number of threads.
PROBABILITY_TOLERANCE = 1e-6
REQUIRED_VALUES = ("probability", "probability_std")
OPTIONAL_VALUES = ("calibrated", "lowest", "highest", "rising_share")
VALUES = (*REQUIRED_VALUES, *OPTIONAL_VALUES)
Columns = ReadOnlyColumnCollection[str, sa.ColumnElement[Any]]


def save_predictions(
    conn: Connection,
    market: str,
    predictions: pd.DataFrame,
    *,
    known_at: datetime,
    made_at: datetime,
) -> int:
    """Store predictions; return how many were new.

    Columns: run_id, as_of, target, symbol, probability in [0, 1], probability_std (0: one seed;
    NaN: unknown), and, where known, calibrated, lowest, highest, rising_share, all in [0, 1]. A
    stored prediction never changes: raises StoreError, naming it, when its probability or deviation
    differs by more than `PROBABILITY_TOLERANCE`, relatively. Of other columns, no difference is
    noticed. Raises StoreError, too, for two rows of one run_id, target and symbol, and for a symbol
    that is not stored.
    """
    if predictions.empty:
        return 0
    require_distinct(predictions, ["run_id", "target", "symbol"])
    key = ["run_id", "target", "instrument_id"]
    # In the order of the primary key, in which SQLite keeps the rows and inserts them fastest.
    rows = identified(conn, market, predictions).sort_values(key)
    message = (
        "{} is already stored with a different probability or deviation, which stays: a past "
        f"prediction is never rewritten; {SAME_AGAIN}"
    )
    new = new_rows_of(
        rows,
        _stored_predictions(conn, rows),
        key,
        REQUIRED_VALUES,
        PROBABILITY_TOLERANCE,
        named_columns=["run_id", "target", "symbol"],
        message=message,
    )
    optional_values = [name for name in OPTIONAL_VALUES if name in rows]
    columns = [*key, "as_of", *REQUIRED_VALUES, *optional_values]
    stamped = new[columns].assign(known_at=known_at, made_at=made_at)
    return insert_frame(conn, tables.prediction, stamped)


def save_rule_directions(conn: Connection, market: str, directions: pd.DataFrame) -> int:
    """Store the directions of naive rules; return how many rows were new.

    Columns: target, as_of, and one for each rule (true for a rise, missing without history). A
    stored row never changes.
    """
    table = tables.rule_direction
    names = [column.name for column in table.c if column.name != "market"]
    return insert_missing(conn, table, records(table, directions[names].assign(market=market)))


def predictions(
    conn: Connection, market: str, *, target: date | None = None, run_id: str | None = None
) -> pd.DataFrame:
    """Return predictions of a market by target, symbol and `made_at`; NaN is missing.

    A `target` or `run_id` of None stands for all. Columns: run_id, as_of, target, symbol,
    probability, probability_std, calibrated, lowest, highest, rising_share, known_at, made_at.
    """
    prediction = tables.prediction.c
    stock = tables.instrument.c
    return frame(
        conn,
        sa.select(
            prediction.run_id,
            prediction.as_of,
            prediction.target,
            stock.symbol,
            *[prediction[name] for name in VALUES],
            prediction.known_at,
            prediction.made_at,
        )
        .join_from(tables.prediction, tables.instrument)
        .where(
            stock.market == market,
            *matching(tables.prediction, target=target, run_id=run_id),
        )
        .order_by(prediction.target, stock.symbol, prediction.made_at),
    )


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

    A `market` or `symbol` of None stands for all. `kind` is the model's purpose, such as nightly.
    With `newest`, return at most that many rows, those of the latest targets. The rows are sorted
    by market, target, symbol and `made_at` in either case. Raises StoreUsageError for a symbol that
    is not stored.
    """
    if symbol is not None:
        require_symbol(conn, symbol, market)
    order = ["market", "target", "symbol", "made_at"]
    newest_first = ["-target", "-made_at", "market", "symbol"]
    statement = select_rows(
        "prediction_history",
        *(order if newest is None else newest_first),
        bounds=("target", first, last),
        kind=kind,
        symbol=symbol,
        market=market,
    )
    if newest is None:
        return frame(conn, statement)
    return frame(conn, statement.limit(newest)).sort_values(order, ignore_index=True)


def night_directions(conn: Connection, market: str, as_of: date) -> pd.DataFrame:
    """Return a night's predictions by the model that the night names, by symbol; NaN is missing.

    Columns: run_id, as_of, target, symbol, name, sector, probability, probability_std, calibrated,
    lowest, highest, rising_share.
    """
    prediction = tables.prediction.c
    stock = tables.instrument.c
    night = tables.night
    return frame(
        conn,
        sa.select(
            prediction.run_id,
            prediction.as_of,
            prediction.target,
            stock.symbol,
            stock.name,
            stock.sector,
            *[prediction[name] for name in VALUES],
        )
        .select_from(_predicted_stocks())
        .where(*matching(night, market=market, as_of=as_of))
        .order_by(stock.symbol),
    )


def _predicted_stocks() -> sa.Join:
    prediction = tables.prediction
    stock = tables.instrument
    predicted = tables.night.join(prediction, of_night())
    return predicted.join(stock, stock.c.id == prediction.c.instrument_id)


def night_predictions(conn: Connection, market: str, first: date, last: date) -> pd.DataFrame:
    """Return the predictions of a market's nights first..last by the models that the nights name.

    Columns: as_of, run_id, symbol, probability, probability_std, calibrated, lowest, highest,
    rising_share; sorted by as_of and symbol. NaN is missing.
    """
    prediction = tables.prediction.c
    stock = tables.instrument.c
    night = tables.night.c
    return frame(
        conn,
        sa.select(
            night.as_of,
            prediction.run_id,
            stock.symbol,
            *[prediction[name] for name in VALUES],
        )
        .select_from(_predicted_stocks())
        .where(night.market == market, *within(night.as_of, first, last))
        .order_by(night.as_of, stock.symbol),
    )


def newest_direction_counts(conn: Connection) -> dict[tuple[str, str], int]:
    """Return the number of rises and falls among the newest directions, by market and direction."""
    newest = view("latest_prediction").c
    statement = sa.select(newest.market, newest.direction, sa.func.count()).group_by(
        newest.market, newest.direction
    )
    return {(market, direction): n for market, direction, n in conn.execute(statement)}


def session_directions(market: str, run_id: str, target: date) -> Statement:
    """Return a model's direction of each stock for a session, and its outcome."""
    return select_rows("prediction_history", "symbol", market=market, run_id=run_id, target=target)


def band_directions(market: str, run_id: str, target: date, level: float) -> Statement:
    """Return a model's direction of each stock for a session, at a level of certainty.

    There is no row for a model that was not calibrated.
    """
    return select_rows(
        "band_direction", "symbol", market=market, run_id=run_id, target=target, level=level
    )


def default_directions(
    conn: Connection, symbol: str, market: str | None = None, kind: str | None = None
) -> pd.DataFrame:
    """Return a stock's directions, each at its model's default level: run_id, target, direction.

    `market` and `kind` (of the models) of None stand for any. There are no rows for a model that
    was not calibrated.
    """
    banded = view("band_direction")
    statement = sa.select(banded.c.run_id, banded.c.target, banded.c.direction)
    is_of_stock = matching(banded, symbol=symbol, market=market, kind=kind, is_default=1)
    return frame(conn, statement.where(*is_of_stock))


def disagreement(market: str, run_id: str, target: date) -> Statement:
    """Return how far the seeds of an ensemble agreed on each stock in a session.

    There is no row where that was not stored.
    """
    return select_rows("disagreement", "symbol", market=market, run_id=run_id, target=target)


def newest_directions(market: str) -> Statement:
    """Return the directions for the next session, with each stock's name and sector."""
    return select_rows("latest_prediction", "symbol", market=market)


def stock_directions(
    market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> Statement:
    """Return the directions of a stock by models of a kind, targets first..last, newest first."""
    return select_rows(
        "prediction_history",
        "-target",
        "-made_at",
        bounds=("target", first, last),
        market=market,
        symbol=symbol,
        kind=kind,
    )


def common_days(run_a: str, run_b: str, first: date, last: date) -> Statement:
    """Return the statement that counts the stock-days that two models both predicted, by session.

    The newest session comes first. Columns: target, n, same (equal directions) and scored (with an
    outcome). For each model, with the prefix a_ or b_, follow the counts of its directions with an
    outcome: rises (correct), false_rises, false_falls, falls (correct).
    """
    of_a = view("prediction_history").alias("a")
    of_b = view("prediction_history").alias("b")
    a, b = of_a.c, of_b.c
    return (
        sa.select(
            a.target,
            sa.func.count().label("n"),
            _count(a.direction == b.direction, "same"),
            _count(a.correct.is_not(None), "scored"),
            _count(_has_direction(a, "rise", correct=1), "a_rises"),
            _count(_has_direction(a, "rise", correct=0), "a_false_rises"),
            _count(_has_direction(a, "fall", correct=0), "a_false_falls"),
            _count(_has_direction(a, "fall", correct=1), "a_falls"),
            _count(_has_direction(b, "rise", correct=1), "b_rises"),
            _count(_has_direction(b, "rise", correct=0), "b_false_rises"),
            _count(_has_direction(b, "fall", correct=0), "b_false_falls"),
            _count(_has_direction(b, "fall", correct=1), "b_falls"),
        )
        .join_from(of_a, of_b, _is_same_day(a, b))
        # The joined targets are equal. Both are limited, so that an index on run and target finds
        # the rows of either model.
        .where(
            a.run_id == run_a,
            b.run_id == run_b,
            a.target.between(first, last),
            b.target.between(first, last),
        )
        .group_by(a.target)
        .order_by(a.target.desc())
    )


def common_directions(run_a: str, run_b: str, target: date) -> Statement:
    """Return the directions of two models for a session, of the stocks that both predicted.

    The rows are sorted by symbol. Columns: market, symbol, target, a_probability, b_probability,
    a_direction, b_direction, realised_return.
    """
    of_a = view("prediction_history").alias("a")
    of_b = view("prediction_history").alias("b")
    a, b = of_a.c, of_b.c
    return (
        sa.select(
            a.market,
            a.symbol,
            a.target,
            a.probability.label("a_probability"),
            b.probability.label("b_probability"),
            a.direction.label("a_direction"),
            b.direction.label("b_direction"),
            a.realised_return,
        )
        .join_from(of_a, of_b, _is_same_day(a, b))
        .where(  # both targets, as in `common_days`
            a.run_id == run_a,
            b.run_id == run_b,
            a.target == target,
            b.target == target,
        )
        .order_by(a.symbol)
    )


def _stored_predictions(conn: Connection, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the stored predictions of each run in `rows`, from its first to its last target there.

    There are few runs, with many targets each, so that each run is read by its own statement.
    `rows` has at least one row.
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
    """Return the condition that a prediction is one of a night's own.

    It is for the night's target, by the model that the finished night names.
    """
    prediction = tables.prediction.c
    night = tables.night.c
    return sa.and_(prediction.run_id == night.run_id, prediction.target == night.target)


def _is_same_day(a: Columns, b: Columns) -> sa.ColumnElement[bool]:
    return sa.and_(a.market == b.market, a.symbol == b.symbol, a.target == b.target)


def _has_direction(prediction: Columns, direction: str, *, correct: int) -> sa.ColumnElement[bool]:
    return sa.and_(prediction.direction == direction, prediction.correct == correct)


def _count(condition: sa.ColumnElement[bool], name: str) -> sa.Label[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0), type_=sa.Integer()).label(name)
