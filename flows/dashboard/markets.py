"""The first page: a briefing on every market, its skill so far, and its gain after costs.

Its template is rendered from a mapping, NaN and None as "-".
"""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection

from db.read import read
from db.rows import markets, nights
from dtml.errors import DtmlError
from dtml.pages.figures import Page
from flows.dashboard.running import REFRESH_S, live_page, summary_of_states
from flows.markets.files import no_such_market
from flows.morning import morning
from flows.night_facts import night_facts
from flows.service.timeliness import Timeliness

STOCKS = 2000  # of a market, on one page, at most


class NotThereError(DtmlError):
    """Say that the object of a page is not in the store."""


def require_market(conn: Connection, market: str) -> None:
    """Raise NotThereError, which lists some, for a market without a night, a fetch or a model."""
    stored = markets.all_markets(conn)
    if market not in stored:
        raise NotThereError(no_such_market(market, stored))


def markets_page(
    conn: Connection, every: int, now: datetime, times: Mapping[str, Timeliness]
) -> Page:
    """Return the page of every market, to be loaded again `every` seconds (0: never)."""
    live = live_page(conn, now, times)
    counts = read(conn, "latest_prediction", columns="market, direction").value_counts()
    rows = []
    for market, state in live["states"].items():
        night = night_facts(conn, market, settled=True, status=nights.COMPLETE)
        rows.append(
            {
                "market": market,
                "state": state,
                "night": night,
                "directions": {
                    said: int(counts.get((market, said), 0)) for said in ("rise", "fall", "none")
                },
                "morning": morning(conn, market, night),
            }
        )
    return {
        **live,
        "rows": rows,
        "summary": summary_of_states(live["states"]),
        "every": every,
        "choices": REFRESH_S,
    }
