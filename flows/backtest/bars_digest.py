"""Digest the bars that a backtest or a ranking reads, so that equal figures are recognised."""

import hashlib

import pandas as pd

from db.engine import reading
from db.rows import prices
from flows.nightly.context import MarketContext


def digest_of(bars: pd.DataFrame) -> str:
    """Return a digest of bars, without their column `known_at`.

    So it is the same for equal bars, whenever they were fetched.
    """
    return _digest(bars.drop(columns="known_at"))


def digest_of_rejected(context: MarketContext, bars: pd.DataFrame) -> str:
    """Return a digest of the bars that were rejected on the sessions of `bars`.

    They decide figures as well: a portfolio compares no price before a rejected leap with one after
    it.
    """
    days = bars["session"]
    first = days.min().date()
    last = days.max().date()
    with reading(context.engine) as conn:
        rejected = prices.rejected_bars(conn, context.name, first, last)
    return _digest(rejected[["symbol", "session", "reason"]].astype(str))


def _digest(rows: pd.DataFrame) -> str:
    """Return a digest of the rows of a frame, in their order."""
    row_hashes = pd.util.hash_pandas_object(rows, index=False)
    return hashlib.sha256(row_hashes.to_numpy().tobytes()).hexdigest()
