"""Repair moments in the future, which come from a fetch under a clock that was wrong."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.rows.fetches import AHEAD
from db.rows.markets import of_market

# Every column of a moment at which prices became known, or of the newest such moment behind a row.
MOMENTS = (
    tables.price_fetch.c.known_at,
    tables.price.c.known_at,
    tables.rejected_bar.c.first_known_at,
    tables.symbol_warning.c.known_at,
    tables.price_comparison.c.known_at,
    tables.bar_disagreement.c.known_at,
    tables.run.c.data_watermark,
    tables.ranker.c.data_watermark,
    tables.prediction.c.known_at,
    tables.stock_rank.c.known_at,
    tables.outcome.c.known_at,
    tables.night.c.known_at,
    tables.frozen_night.c.known_at,
    tables.backtest.c.data_watermark,
    tables.benchmark.c.data_watermark,
    tables.ranking.c.data_watermark,
)


def redate(conn: Connection, market: str) -> dict[datetime, datetime]:
    """Set a market's moments in the future to just after now; return new moments by old ones.

    Nothing changes unless some moment is more than a day ahead: a smaller lead needs no repair, as
    the clock catches up. The moments keep their order and stay after all others. Equal moments stay
    equal, so that a night's `known_at` still selects the same bars. What was known at any moment
    up to now does not change, and the next fetch is dated later. Call it inside a `transaction`.
    """
    now = datetime.now(UTC)
    future_moments: set[datetime] = set()
    for column in MOMENTS:
        is_ahead = (of_market(column.table, market), column > now)
        stored_moments = conn.execute(sa.select(column).distinct().where(*is_ahead))
        future_moments.update(stored_moments.scalars())
    if not future_moments or max(future_moments) <= now + AHEAD:
        return {}
    redated = {
        moment: now + timedelta(microseconds=number)
        for number, moment in enumerate(sorted(future_moments), start=1)
    }
    for column in MOMENTS:
        update = sa.update(column.table).where(of_market(column.table, market))
        for old, new in redated.items():
            conn.execute(update.where(column == old).values({column.name: new}))
    return redated
