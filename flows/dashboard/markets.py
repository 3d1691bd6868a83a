"""The first page: a briefing on every market, its skill so far, and its gain after costs.

A page is a mapping, from which the template of its name is rendered. Missing values (NaN, None) are
rendered as "-".
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
    """Raise NotThereError, which lists some of the stored ones, for a market that the store lacks.

    A stored market has a night, a fetch or a model.
    """
    stored = markets.all_markets(conn)
    if market not in stored:
        raise NotThereError(no_such_market(market, stored))


def markets_page(
    conn: Connection, every: int, now: datetime, times: Mapping[str, Timeliness]
) -> Page:
    """Return the page of every market.

    `times` has how late each market is. `every` is the number of seconds after which the page is
    loaded again; 0 for never.
    """
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
