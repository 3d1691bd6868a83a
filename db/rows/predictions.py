"""Predictions: the directions of each stock for a session, by models and by naive rules."""

from datetime import date

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables, where
from db.connection.frames import frame, matching, within
from db.read import read
from db.rows.markets import require_symbol

VALUES = (
    "probability",
    "probability_std",
    "calibrated",
    "lowest",
    "highest",
    "rising_share",
)


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


def of_night() -> sa.ColumnElement[bool]:
    """Return the condition that a prediction is one of a night's own.

    It is for the night's target, by the model that the finished night names.
    """
    prediction = tables.prediction.c
    night = tables.night.c
    return sa.and_(prediction.run_id == night.run_id, prediction.target == night.target)
