"""What a dashboard builds before it is served, so that its first visitor need not wait for it."""

from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy import Engine

from db.engine import reading
from dtml.pages.charts import script
from flows.dashboard.markets import markets_page
from flows.dashboard.monitoring import punctualities


def warm_up(engine: Engine) -> None:
    """Build the charts' script, load the calendars of a store's markets, and read the first page.

    All of these are kept for later pages, in memory or by the store. An error is left to the first
    page, which says what is wrong.
    """
    script()
    with suppress(Exception):
        now = datetime.now(UTC)
        times = punctualities(engine, now)
        with reading(engine) as conn:
            markets_page(conn, now, 0, times)
