"""Attention: which stocks a prediction looked at, and whether that explains anything."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, upsert
from db.connection.differences import require_distinct, stored_on, unstored
from db.connection.frames import frame, head, matching, row, row_of, shown
from db.rows.markets import identified
from db.rows.nights import COMPLETE
from db.views import view

LOOKING = 2000  # stocks that look at one another on a night, at most
# The weights of a softmax in float32, summed over hundreds of stocks, agree to this on another
# thread count.
WEIGHT_TOLERANCE = 1e-6


def explanation(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """Return the row of explanation of a run; None where its attention was never measured."""
    return row_of(conn, tables.explanation, "run_id", run_id)


def save_attention(conn: Connection, market: str, attention: pd.DataFrame) -> int:
    """Store run_id, target, symbol (who looks), source (looked at), weight in [0, 1] of stored
    predictions.

    What is stored stands: raises StoreError, naming it, when a stored weight differs.
    """
    if attention.empty:
        return 0
    key = ["run_id", "target", "instrument_id", "source_id"]
    shown = ["run_id", "target", "symbol", "source"]
    require_distinct(attention, shown)
    rows = identified(conn, market, attention, source_id="source").sort_values(key)
    new = unstored(
        rows,
        stored_on(conn, tables.attention_weight, rows, "run_id"),
        key,
        ["weight"],
        0.0,
        zero=WEIGHT_TOLERANCE,
        shown=shown,
        wrong="attention of {} is already stored and cannot change",
    )
    return insert_frame(conn, tables.attention_weight, new[[*key, "weight"]])


def attention(conn: Connection, run_id: str, target: date) -> pd.DataFrame:
    """Return attention of a model on the session it predicted, by symbol and
    source: symbol, source, weight.
    """
    table, looking, seen = (
        tables.attention_weight,
        tables.instrument,
        tables.instrument.alias("seen"),
    )
    columns = (looking.c.symbol, seen.c.symbol.label("source"), table.c.weight)
    joined = table.join(looking, looking.c.id == table.c.instrument_id).join(
        seen, seen.c.id == table.c.source_id
    )
    mine = (
        sa.select(*columns)
        .select_from(joined)
        .where(*matching(table, run_id=run_id, target=target))
    )
    return frame(conn, mine.order_by(looking.c.symbol, seen.c.symbol))


def save_explanation(conn: Connection, explained: Mapping[str, object]) -> int:
    """Store or renew what is known of a run's attention, every column of
    explanation by name; 1 when it is new.
    """
    return upsert(conn, tables.explanation, [dict(explained)], stamps=("made_at", "seconds"))


def attended(conn: Connection, market: str, nights: int) -> list[tuple[str, date]]:
    """Return run and target of those of the last nights that kept what stocks looked at, newest
    first.
    """
    night = view("night_log").c
    weight = view("attention").c
    last_nights = (
        sa.select(night.run_id, night.target)
        .where(night.market == market, night.status.in_(COMPLETE))
        .order_by(night.as_of.desc())
        .limit(nights)
    )
    kept = []
    for run_id, target in conn.execute(last_nights).all():
        of_night = (weight.run_id == run_id, weight.target == target)
        if conn.execute(sa.select(weight.run_id).where(*of_night).limit(1)).first():
            kept.append((run_id, target))
    return kept


def mean_weights(
    conn: Connection,
    market: str,
    symbol: str,
    kept: Sequence[tuple[str, date]],
    *,
    looks: bool,
    most: int,
) -> pd.DataFrame:
    """Return whom a stock looked at on some nights, or, where `looks` is false, who looked at it;
    heaviest first.

    Columns: symbol (the other one), weight (mean over the nights), nights (on which it was kept). A
    night keeps the heaviest sources of each stock alone: what it does not keep counts as 0.
    """
    found = view("attention").c
    mine = found.symbol if looks else found.source
    other = found.source if looks else found.symbol
    parts = [pd.DataFrame({"other": pd.Series(dtype=object), "weight": pd.Series(dtype=float)})]
    for run_id, target in kept:
        of_night = (found.run_id == run_id, found.target == target, found.market == market)
        statement = sa.select(other.label("other"), found.weight).where(
            *of_night, mine == symbol, other != symbol
        )
        parts.append(head(conn, statement, LOOKING))
    sums = pd.concat(parts).groupby("other")["weight"].agg(["sum", "count"]).reset_index()
    means = pd.DataFrame(
        {
            "symbol": sums["other"],
            "weight": sums["sum"] / max(len(kept), 1),
            "nights": sums["count"],
        }
    )
    return (
        means.sort_values(["weight", "symbol"], ascending=[False, True])
        .head(most)
        .reset_index(drop=True)
    )


def explanation_log(conn: Connection, run_id: str) -> dict[str, Any] | None:
    """Return whether a model's attention was tested and what came of it; None when it was not."""
    return row(conn, shown("explanation_log", run_id=run_id))
