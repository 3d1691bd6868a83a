"""Predictions: the directions of each stock for a session, by models and by naive rules."""

from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from db import tables, where
from db.connection.frames import Statement, frame, matching, within
from db.read import read
from db.rows.markets import require_symbol
from db.views import view

VALUES = (
    "probability",
    "probability_std",
    "calibrated",
    "lowest",
    "highest",
    "rising_share",
)
Columns = ReadOnlyColumnCollection[str, sa.ColumnElement[Any]]


def predictions(
    conn: Connection, market: str, *, target: date | None = None, run_id: str | None = None
) -> pd.DataFrame:
    """Return predictions of a market by target, symbol and `made_at`; None stands for all."""
    return read(
        conn,
        "prediction",
        market=market,
        target=where.given(target),
        run_id=where.given(run_id),
        order="target, symbol, made_at",
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
    in_order = "market, target, symbol, made_at"
    rows = read(
        conn,
        "prediction_history",
        kind=kind,
        symbol=where.given(symbol),
        market=where.given(market),
        target=where.between(first, last),
        order=in_order if newest is None else "-target, -made_at, market, symbol",
        limit=newest,
    )
    return rows if newest is None else rows.sort_values(in_order.split(", "), ignore_index=True)


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
