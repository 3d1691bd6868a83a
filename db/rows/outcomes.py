"""Outcomes of predictions and ranks, and those that have an outcome or wait for it.

A night's predictions are those by the model that the finished night names (`run_id`); a backtest's
are those of its folds. The database counts rows: ten years of nights are a million of them.
"""

from collections.abc import Iterable
from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.frames import frame, within
from db.rows.predictions import of_night


def unsettled(
    conn: Connection, market: str, first: date, last: date, *, since: date
) -> pd.DataFrame:
    """Return the stock-days first..last that nights predicted or ranked, and that are not settled.

    They have no outcome, or a target from `since` on, whose outcome may still change. Columns:
    symbol, as_of, target, realised_return (NaN: no outcome). Sorted by target and symbol.
    """
    night = tables.night
    outcome = tables.outcome
    stock = tables.instrument.c
    stock_days = []
    for table in (tables.prediction, tables.stock_rank):
        selected = sa.select(table.c.instrument_id, table.c.as_of, table.c.target)
        stock_days.append(_of_nights(selected, market, last, table).where(night.c.target >= first))
    each = sa.union(*stock_days).subquery()
    has_no_outcome = outcome.c.realised_return.is_(None)
    return frame(
        conn,
        sa.select(stock.symbol, each.c.as_of, each.c.target, outcome.c.realised_return)
        .join_from(each, tables.instrument, stock.id == each.c.instrument_id)
        .outerjoin(outcome, _has_outcome(each))
        .where(sa.or_(has_no_outcome, each.c.target >= since))
        .order_by(each.c.target, stock.symbol),
    )


def settled_directions(conn: Connection, market: str, first: date, last: date) -> pd.DataFrame:
    """Return the nights' predictions with an outcome, targets first..last, by target.

    Columns: run_id, target, probability, calibrated (NaN: not stored), rise.
    """
    prediction = tables.prediction
    night = tables.night.c
    conditions = [
        night.market == market,
        night.target.between(first, last),
        prediction.c.as_of == night.as_of,  # not those made as of another session
    ]
    return _with_outcome(conn, tables.night.join(prediction, of_night()), conditions)


def settled_folds(conn: Connection, backtest_id: str) -> pd.DataFrame:
    """Return the predictions with an outcome of a backtest's finished folds, by target.

    The columns are those of `settled_directions`.
    """
    prediction = tables.prediction
    fold = tables.backtest_fold
    joined = fold.join(prediction, of_fold(prediction))
    return _with_outcome(conn, joined, [fold.c.backtest_id == backtest_id])


def of_fold(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a table's row belongs to a backtest's fold, by run and target."""
    fold = tables.backtest_fold.c
    return sa.and_(table.c.run_id == fold.run_id, table.c.target.between(fold.first, fold.last))


def unscored(conn: Connection, market: str, sessions: Iterable[date]) -> list[date]:
    """Return the targets of a market's nights that have an outcome but no score.

    Targets that are among `sessions` are returned too, whether or not they have an outcome or a
    score.
    """
    night = tables.night.c
    score = tables.score.c
    is_scored = sa.exists().where(
        score.market == market,
        score.target == night.target,
        score.span == "night",
    )
    is_due = sa.and_(_has_any_outcome(), ~is_scored)
    statement = (
        sa.select(night.target)
        .where(
            night.market == market,
            sa.or_(night.target.in_(list(sessions)), is_due),
        )
        .order_by(night.target)
    )
    return list(conn.execute(statement).scalars())


def uncounted(conn: Connection, market: str, last: date) -> list[date]:
    """Return targets up to `last` of nights with an outcome but without calibration counts.

    There are such targets where a benchmark stored the outcome before the night was scored.
    """
    night = tables.night.c
    count = tables.calibration_bin.c
    is_counted = sa.exists().where(count.run_id == night.run_id, count.target == night.target)
    statement = (
        sa.select(night.target)
        .where(night.market == market, night.target <= last, _has_any_outcome(), ~is_counted)
        .order_by(night.target)
    )
    return list(conn.execute(statement).scalars())


def _has_any_outcome() -> sa.ColumnElement[bool]:
    settled = tables.prediction.join(tables.outcome, _has_outcome())
    return sa.exists(sa.select(sa.literal(1)).select_from(settled).where(of_night()))


def direction_counts(
    conn: Connection, market: str, last: date, *, first: date | None = None
) -> pd.DataFrame:
    """Return the number of predictions with an outcome, by night, direction and outcome.

    Targets are first..last, or all up to `last`. Columns: as_of, target, predicted (whether the
    probability is above 0.5), rise, labelled (whether the published protocol labels the outcome as
    a rise or a fall), n. Sorted by target.
    """
    prediction = tables.prediction.c
    outcome = tables.outcome
    group_columns = (
        prediction.as_of,
        prediction.target,
        (prediction.probability > 0.5).label("predicted"),
        outcome.c.rise,
        (outcome.c.label != 0).label("labelled"),
    )
    return frame(
        conn,
        _of_nights(sa.select(*group_columns, sa.func.count().label("n")), market, last)
        .join(outcome, _has_outcome())
        .where(*within(tables.night.c.target, first, None))
        .group_by(*group_columns)
        .order_by(prediction.target),
    )


def _of_nights(
    selected: sa.Select[Any], market: str, last: date, table: sa.Table = tables.prediction
) -> sa.Select[Any]:
    """Return the selected columns of the predictions of a market's nights, targets up to `last`.

    A row is a night joined to one of its predictions or, if `table` is `stock_rank`, of its ranks.
    Those made for its target as of another session are left out.
    """
    night = tables.night.c
    joined = selected.select_from(tables.night)
    if table is tables.prediction:
        joined = joined.join(table, of_night())
    else:
        ranker = tables.ranker
        joined = joined.join(ranker, ranker.c.market == night.market)
        of_target = sa.and_(table.c.ranker_id == ranker.c.id, table.c.target == night.target)
        joined = joined.join(table, of_target)
    return joined.where(night.market == market, night.target <= last, table.c.as_of == night.as_of)


def _with_outcome(
    conn: Connection, joined: sa.Join, conditions: Iterable[sa.ColumnElement[bool]]
) -> pd.DataFrame:
    """Return the predictions of a join that meet the conditions and have an outcome.

    The columns are those of `settled_directions`, and the rows are sorted by target and instrument.
    """
    prediction = tables.prediction.c
    outcome = tables.outcome
    return frame(
        conn,
        sa.select(
            prediction.run_id,
            prediction.target,
            prediction.probability,
            prediction.calibrated,
            outcome.c.rise,
        )
        .select_from(joined.join(outcome, _has_outcome()))
        .where(*conditions)
        .order_by(prediction.target, prediction.instrument_id),
    )


def _has_outcome(table: sa.FromClause = tables.prediction) -> sa.ColumnElement[bool]:
    outcome = tables.outcome.c
    return sa.and_(
        outcome.instrument_id == table.c.instrument_id,
        outcome.session == table.c.target,
    )
