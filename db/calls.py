"""What scoring reads of the nights of a market: the calls that wait for an outcome, and counts of all the others.

A night's calls are those of the model that it was closed with. What is counted here is not read: ten years of nights
are a million rows.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import schema
from db.frames import frame


def unsettled_calls(conn: Connection, market: str, last: date, *, since: date) -> pd.DataFrame:
    """Calls for targets up to `last` that have no outcome, and all those from the target `since` on.

    Columns: symbol, as_of, target, move (NaN: no outcome), sorted by target and symbol.
    """
    made, happened, named = schema.prediction, schema.outcome, schema.instrument
    columns = (named.c.symbol, made.c.as_of, made.c.target, happened.c.move)
    settled = sa.and_(happened.c.instrument_id == made.c.instrument_id, happened.c.session == made.c.target)
    closed = _closed(sa.select(*columns), market, last).join(named, named.c.id == made.c.instrument_id)
    waiting = sa.or_(happened.c.move.is_(None), made.c.target >= since)
    statement = closed.outerjoin(happened, settled).where(waiting)
    return frame(conn, statement.order_by(made.c.target, named.c.symbol))


def call_counts(conn: Connection, market: str, last: date, *, first: date | None = None) -> pd.DataFrame:
    """Calls with an outcome, counted by night, call, what happened and whether the paper labels it.

    Targets are first..last, or all up to `last`. Columns: as_of, target, called (whether the probability is above
    0.5), rise, labelled, n; sorted by target.
    """
    made, happened = schema.prediction, schema.outcome
    called = (made.c.probability > 0.5).label("called")
    labelled = (happened.c.label != 0).label("labelled")
    by = (made.c.as_of, made.c.target, called, happened.c.rise, labelled)
    settled = sa.and_(happened.c.instrument_id == made.c.instrument_id, happened.c.session == made.c.target)
    counted = _closed(sa.select(*by, sa.func.count().label("n")), market, last).join(happened, settled)
    if first is not None:
        counted = counted.where(schema.night.c.target >= first)
    return frame(conn, counted.group_by(*by).order_by(made.c.target))


def _closed(selected: sa.Select[Any], market: str, last: date) -> sa.Select[Any]:
    """The predictions that nights of a market were closed with."""
    made, night = schema.prediction, schema.night
    of_night = sa.and_(made.c.run_id == night.c.run_id, made.c.target == night.c.target)
    chosen = selected.select_from(night).join(made, of_night)
    return chosen.where(night.c.market == market, night.c.target <= last, made.c.as_of == night.c.as_of)
