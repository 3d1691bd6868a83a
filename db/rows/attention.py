"""Attention: the stocks that a prediction looked at."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import read, read_value
from db.rows.nights import COMPLETE


def attended(conn: Connection, market: str, nights: int) -> list[tuple[str, date]]:
    """Return run and target of nights with attention among the last complete, newest first."""
    last_nights = read(
        conn,
        "night_log",
        columns="run_id, target",
        market=market,
        status=COMPLETE,
        order="-as_of",
        limit=nights,
    )
    # One row shows that a night has weights; counting them would read all.
    return [
        (run_id, target.date())
        for run_id, target in last_nights.itertuples(index=False)
        if read_value(conn, "attention", "run_id", run_id=run_id, target=target.date())
    ]


def mean_weights(
    conn: Connection,
    market: str,
    symbol: str,
    attended_nights: Sequence[tuple[str, date]],
    *,
    looks_at_others: bool,
    row_limit: int,
) -> pd.DataFrame:
    """Return the other stocks that a stock attended to most, or those that attended most to it.

    Columns: symbol, weight (mean over `attended_nights`; one not stored counts as 0), nights (with
    a stored weight). Sorted by weight, then symbol.
    """
    stock, other = ("symbol", "source") if looks_at_others else ("source", "symbol")
    of_stock: dict[str, Any] = {stock: symbol, other: where.other_than(symbol)}
    weights = read(
        conn,
        "attention",
        columns=f"{other}, weight",
        market=market,
        run_id=[run_id for run_id, _ in attended_nights],
        target=[target for _, target in attended_nights],
        **of_stock,
    )
    totals = weights.groupby(other)["weight"].agg(["sum", "count"]).reset_index()
    night_count = max(len(attended_nights), 1)  # without nights there are no rows to divide
    means = pd.DataFrame(
        {
            "symbol": totals[other],
            "weight": totals["sum"] / night_count,
            "nights": totals["count"],
        }
    )
    by_weight = means.sort_values(["weight", "symbol"], ascending=[False, True])
    return by_weight.head(row_limit).reset_index(drop=True)
