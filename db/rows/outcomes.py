"""Outcomes: what came of predictions, and the predictions that have one or wait for it.

A night's predictions are those of the model that it was closed with; a backtest's are those of its
folds. What is
counted here is not read: ten years of nights are a million rows.
"""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import upsert_frame
from db.connection.differences import require_distinct
from db.connection.frames import frame, within
from db.rows.markets import identified
from db.rows.predictions import of_night


def save_outcomes(
    conn: Connection,
    market: str,
    outcomes: pd.DataFrame,
    *,
    known_at: datetime,
    recorded_at: datetime,
) -> int:
    """Store symbol, session, realised_return (a ratio minus 1), rise, label
    (-1, 0, 1); update a changed outcome.
    """
    require_distinct(outcomes, ["symbol", "session"])
    rows = identified(conn, market, outcomes)[
        ["instrument_id", "session", "realised_return", "rise", "label"]
    ]
    rows = rows.sort_values(["instrument_id", "session"]).assign(
        known_at=known_at, recorded_at=recorded_at
    )
    return upsert_frame(conn, tables.outcome, rows, stamps=("known_at", "recorded_at"))


def unsettled_directions(
    conn: Connection, market: str, first: date, last: date, *, since: date
) -> pd.DataFrame:
    """Return predictions for targets first..last that have no outcome, and all those from the
    target `since` on.

    Columns: symbol, as_of, target, realised_return (NaN: no outcome), sorted by target and symbol.
    """
    made, happened, named = tables.prediction, tables.outcome, tables.instrument
    columns = (named.c.symbol, made.c.as_of, made.c.target, happened.c.realised_return)
    closed = _closed(sa.select(*columns), market, last).join(
        named, named.c.id == made.c.instrument_id
    )
    waiting = sa.or_(happened.c.realised_return.is_(None), made.c.target >= since)
    statement = closed.outerjoin(happened, _has_outcome()).where(
        waiting, tables.night.c.target >= first
    )
    return frame(conn, statement.order_by(made.c.target, named.c.symbol))


def settled_directions(conn: Connection, market: str, first: date, last: date) -> pd.DataFrame:
    """Return predictions that nights were closed with and that have an outcome, targets
    first..last, by target.

    Columns: run_id, target, probability, calibrated (NaN: not kept), rise.
    """
    made, night = tables.prediction, tables.night
    mine = [
        night.c.market == market,
        night.c.target.between(first, last),
        made.c.as_of == night.c.as_of,
    ]
    return _settled(conn, night.join(made, of_night()), mine)


def settled_folds(conn: Connection, backtest_id: str) -> pd.DataFrame:
    """Return what `settled_directions` does, of every fold of a backtest that is done."""
    made, fold = tables.prediction, tables.backtest_fold
    return _settled(conn, fold.join(made, of_fold(made)), [fold.c.backtest_id == backtest_id])


def of_fold(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return whether a row of a table, by its run and target, is of a fold of a backtest."""
    fold = tables.backtest_fold
    return sa.and_(
        table.c.run_id == fold.c.run_id, table.c.target.between(fold.c.first, fold.c.last)
    )


def unscored(conn: Connection, market: str, sessions: Iterable[date]) -> list[date]:
    """Return the targets of a market's nights that are among some sessions, or
    have an outcome and no score yet.
    """
    night, done = tables.night, tables.score
    same = (done.c.market == market, done.c.target == night.c.target, done.c.span == "night")
    waits = sa.and_(_is_settled(), ~sa.exists().where(*same))
    mine = (night.c.market == market, sa.or_(night.c.target.in_(list(sessions)), waits))
    return list(
        conn.execute(sa.select(night.c.target).where(*mine).order_by(night.c.target)).scalars()
    )


def uncounted(conn: Connection, market: str, last: date) -> list[date]:
    """Return targets up to `last` of complete nights with an outcome but no
    counts: a benchmark stored it first.
    """
    night, counted = tables.night, tables.calibration_bin
    is_counted = sa.exists().where(
        counted.c.run_id == night.c.run_id, counted.c.target == night.c.target
    )
    mine = (night.c.market == market, night.c.target <= last, _is_settled(), ~is_counted)
    return list(
        conn.execute(sa.select(night.c.target).where(*mine).order_by(night.c.target)).scalars()
    )


def _is_settled() -> sa.ColumnElement[bool]:
    settled = tables.prediction.join(tables.outcome, _has_outcome())
    return sa.exists(sa.select(sa.literal(1)).select_from(settled).where(of_night()))


def direction_counts(
    conn: Connection, market: str, last: date, *, first: date | None = None
) -> pd.DataFrame:
    """Return predictions with an outcome, counted by night, direction, what happened and whether
    the paper labels it.

    Targets are first..last, or all up to `last`. Columns: as_of, target, predicted (whether the
    probability is above
    0.5), rise, labelled, n; sorted by target.
    """
    made, happened = tables.prediction, tables.outcome
    direction = (made.c.probability > 0.5).label("predicted")
    by = (
        made.c.as_of,
        made.c.target,
        direction,
        happened.c.rise,
        (happened.c.label != 0).label("labelled"),
    )
    counted = _closed(sa.select(*by, sa.func.count().label("n")), market, last).join(
        happened, _has_outcome()
    )
    counted = counted.where(*within(tables.night.c.target, first, None))
    return frame(conn, counted.group_by(*by).order_by(made.c.target))


def _closed(selected: sa.Select[Any], market: str, last: date) -> sa.Select[Any]:
    """Return the predictions that nights of a market were closed with."""
    made, night = tables.prediction, tables.night
    chosen = selected.select_from(night).join(made, of_night())
    return chosen.where(
        night.c.market == market, night.c.target <= last, made.c.as_of == night.c.as_of
    )


def _settled(
    conn: Connection, joined: sa.Join, mine: Iterable[sa.ColumnElement[bool]]
) -> pd.DataFrame:
    made, happened = tables.prediction, tables.outcome
    columns = (made.c.run_id, made.c.target, made.c.probability, made.c.calibrated, happened.c.rise)
    statement = sa.select(*columns).select_from(joined.join(happened, _has_outcome())).where(*mine)
    return frame(conn, statement.order_by(made.c.target, made.c.instrument_id))


def _has_outcome() -> sa.ColumnElement[bool]:
    made, happened = tables.prediction, tables.outcome
    return sa.and_(
        happened.c.instrument_id == made.c.instrument_id, happened.c.session == made.c.target
    )
