"""Predictions: the directions of each stock for a session, by models and by naive rules."""

from datetime import date

import pandas as pd
from sqlalchemy import Connection

from db import where
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
    """Return prediction_history for targets first..last, sorted by market, target, symbol,
    `made_at`.

    `newest` limits the rows to those of the latest targets. Raises StoreUsageError for an unknown
    symbol.
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
