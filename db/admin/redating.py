"""The repair of moments ahead of now, which a wrong clock dated."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.rows.fetches import AHEAD
from db.rows.markets import of_market

# Every moment as known at which prices came, or which was the newest of those that something is
# made from.
MOMENTS = (
    tables.price_fetch.c.known_at,
    tables.price.c.known_at,
    tables.rejected_bar.c.first_known_at,
    tables.symbol_warning.c.known_at,
    tables.run.c.data_watermark,
    tables.prediction.c.known_at,
    tables.outcome.c.known_at,
    tables.night.c.known_at,
    tables.backtest.c.data_watermark,
    tables.benchmark.c.data_watermark,
)


def redate(conn: Connection, market: str) -> dict[datetime, datetime]:
    """Set a market's moments that lie ahead of the clock to just after now, and return old and new
    ones.

    Nothing changes where none lies a day or more ahead: so much is made up for by itself. The
    moments keep their order and stay after all others, and what leads from one row to another still
    does: a night is replayed from the same bars. What was known at any moment up to now does not
    change, and what is fetched next comes after. Asked inside a `transaction`.
    """
    now = datetime.now(UTC)
    stored = (
        sa.select(column).distinct().where(of_market(column.table, market), column > now)
        for column in MOMENTS
    )
    ahead = sorted({moment for each in stored for moment in conn.execute(each).scalars()})
    if not ahead or ahead[-1] <= now + AHEAD:
        return {}
    redated = {
        moment: now + timedelta(microseconds=place) for place, moment in enumerate(ahead, start=1)
    }
    for column in MOMENTS:
        mine = sa.update(column.table).where(of_market(column.table, market))
        for old, new in redated.items():
            conn.execute(mine.where(column == old).values({column.name: new}))
    return redated
