"""Attention: the stocks that a prediction looked at, and the test of whether that explains it."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, upsert
from db.connection.differences import (
    SAME_AGAIN,
    new_rows_of,
    require_distinct,
    stored_of_targets,
)
from db.connection.frames import frame, head, matching, row, row_of, select_rows
from db.rows.markets import identified
from db.rows.nights import COMPLETE
from db.views import view

MOST_STOCKS = 2000  # that can have a weight for one stock on a night
# The weights of a softmax in float32, summed over hundreds of stocks, agree to this when computed
# with another number of threads.
WEIGHT_TOLERANCE = 1e-6


def explanation(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """Return a run's row of explanation; None where its attention was never measured."""
    return row_of(conn, tables.explanation, "run_id", run_id)


def save_attention(conn: Connection, market: str, attention: pd.DataFrame) -> int:
    """Store the attention between stocks in stored predictions; return how many rows were new.

    Columns: run_id, target, symbol (the stock predicted, whose attention it is), source (the stock
    that it attends to), weight in [0, 1]. Stored rows never change: raises StoreError, naming the
    first such row, when a stored weight differs by more than `WEIGHT_TOLERANCE`, for two rows of
    one run_id, target, symbol and source, and for a symbol or source that is not stored.
    """
    if attention.empty:
        return 0
    key = ["run_id", "target", "instrument_id", "source_id"]
    named_columns = ["run_id", "target", "symbol", "source"]
    require_distinct(attention, named_columns)
    # In the order of the primary key, in which SQLite keeps the rows and inserts them fastest.
    rows = identified(conn, market, attention, source_id="source").sort_values(key)
    new = new_rows_of(
        rows,
        stored_of_targets(conn, tables.attention_weight, rows, "run_id"),
        key,
        ["weight"],
        relative_tolerance=0.0,
        absolute_tolerance=WEIGHT_TOLERANCE,
        named_columns=named_columns,
        message="attention of {} is already stored with a different weight, which stays: the "
        f"attention of a past prediction is never rewritten; {SAME_AGAIN}",
    )
    return insert_frame(conn, tables.attention_weight, new[[*key, "weight"]])


def attention(conn: Connection, run_id: str, target: date) -> pd.DataFrame:
    """Return a model's attention for the session it predicted: symbol, source, weight.

    Sorted by symbol and source.
    """
    table = tables.attention_weight
    stock = tables.instrument
    source = tables.instrument.alias("source")
    joined = table.join(stock, stock.c.id == table.c.instrument_id)
    joined = joined.join(source, source.c.id == table.c.source_id)
    statement = (
        sa.select(stock.c.symbol, source.c.symbol.label("source"), table.c.weight)
        .select_from(joined)
        .where(*matching(table, run_id=run_id, target=target))
        .order_by(stock.c.symbol, source.c.symbol)
    )
    return frame(conn, statement)


def save_explanation(conn: Connection, explained: Mapping[str, object]) -> int:
    """Store or update what is known of a run's attention; return 1 when it is new, else 0.

    `explained` has every column of explanation by name.
    """
    return upsert(conn, tables.explanation, [dict(explained)], stamps=("made_at", "seconds"))


def attended(conn: Connection, market: str, nights: int) -> list[tuple[str, date]]:
    """Return the run and the target of recent nights that stored attention, the newest first.

    Only the last `nights` complete nights of the market are searched.
    """
    night = view("night_log").c
    weight = view("attention").c
    last_nights = (
        sa.select(night.run_id, night.target)
        .where(night.market == market, night.status.in_(COMPLETE))
        .order_by(night.as_of.desc())
        .limit(nights)
    )
    attended_nights = []
    for run_id, target in conn.execute(last_nights).all():
        # One row shows that the night has weights; counting them would read all.
        of_night = (weight.run_id == run_id, weight.target == target)
        first_weight = sa.select(weight.run_id).where(*of_night).limit(1)
        if conn.execute(first_weight).first() is not None:
            attended_nights.append((run_id, target))
    return attended_nights


def mean_weights(
    conn: Connection,
    market: str,
    symbol: str,
    attended_nights: Sequence[tuple[str, date]],
    *,
    looks_at_others: bool,
    row_limit: int,
) -> pd.DataFrame:
    """Return the other stocks that a stock attended to most, at most `row_limit`, the most first.

    Without `looks_at_others`, return those that attended most to this one. `attended_nights`
    has a run and a target for each night, as `attended` returns them. Columns: symbol (the other
    stock), weight (mean over all these nights), nights (how many of them stored a weight). Equal
    weights are sorted by symbol. A night stores only the largest weights of each stock: a weight
    that is not stored counts as 0.
    """
    weights = view("attention").c
    stock = weights.symbol if looks_at_others else weights.source
    other = weights.source if looks_at_others else weights.symbol
    # An empty part gives the columns where there are no nights.
    parts = [pd.DataFrame({"other": pd.Series(dtype=object), "weight": pd.Series(dtype=float)})]
    for run_id, target in attended_nights:
        statement = sa.select(other.label("other"), weights.weight).where(
            weights.run_id == run_id,
            weights.target == target,
            weights.market == market,
            stock == symbol,
            other != symbol,
        )
        statement = statement.order_by(weights.weight.desc())
        parts.append(head(conn, statement, MOST_STOCKS))
    totals = pd.concat(parts).groupby("other")["weight"].agg(["sum", "count"]).reset_index()
    night_count = max(len(attended_nights), 1)  # without nights there are no rows to divide
    means = pd.DataFrame(
        {
            "symbol": totals["other"],
            "weight": totals["sum"] / night_count,
            "nights": totals["count"],
        }
    )
    by_weight = means.sort_values(["weight", "symbol"], ascending=[False, True])
    return by_weight.head(row_limit).reset_index(drop=True)


def explanation_log(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """Return the test of a model's attention and its result; None when it was not tested."""
    return row(conn, select_rows("explanation_log", run_id=run_id))
