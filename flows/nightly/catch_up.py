"""Run the nights of a market that were missed.

The store says which nights are missing. Their bars are fetched together, and they run in order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cache, partial

import pandas as pd

from db.engine import reading
from db.errors import StoreError
from db.rows import prices
from dtml.errors import DtmlError
from dtml.prices.sessions import next_known_session, session_open
from flows.markets.stored_night import Night, missed_nights
from flows.nightly.context import MarketContext
from flows.nightly.fetch import FetchResult
from flows.nightly.night import NightRefusedError, run_night
from flows.nightly.predict import shortage
from flows.second_source import fetch_and_compare


@dataclass
class CaughtUp:
    """Hold how the missed nights of a market ended, in their order."""

    nights: list[Night] = field(default_factory=list)
    refused: dict[date, NightRefusedError] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Return why nights were refused: the first of them in full, the others by their day.

        At least one night must have been refused.
        """
        first, *others = self.refused.items()
        _, error = first
        if not others:
            return str(error)
        days = ", ".join(str(day) for day, _ in others)
        return f"{error}; also refused: {days}"


def known_then(context: MarketContext, day: date) -> datetime | None:
    """Return the moment for which a missed night of `day` reads its bars; None stands for now.

    It is the open of the session that the night predicts, if enough bars of `day` were known by
    then. It is now if too few were, or if the calendar does not know that session.
    """
    calendar = context.market.calendar
    target = next_known_session(calendar, day)
    if target is None:
        return None
    moment = session_open(calendar, target)
    with reading(context.engine) as conn:
        known = prices.prices(conn, context.name, day, day, known_at=moment)
    is_short = shortage(context, day, set(known["symbol"])) is not None
    return None if is_short else moment


def catch_up(context: MarketContext, last: date, run: Callable[..., Night] = run_night) -> CaughtUp:
    """Run the missed nights up to `last`; after a refused night the next ones still run.

    `missed_nights` says which nights are missed. The source is asked once, for the bars of all of
    them. A night predicts from the bars that were known before the session that it predicts, if
    these are enough; otherwise from those known now, up to its own session. `run` takes the
    arguments of `run_night`; a flow passes one whose stages are tasks. Raises StoreBusyError when
    another process is working on the market.
    """
    caught_up = CaughtUp()
    fetch = _one_fetch_for_all(context, last)
    for day in missed_nights(context, last):
        known_at = known_then(context, day)
        try:
            night = run(context, day, fetch=partial(fetch, day), known_at=known_at)
            caught_up.nights.append(night)
        except NightRefusedError as error:
            caught_up.refused[day] = error
    return caught_up


def _one_fetch_for_all(context: MarketContext, last: date) -> Callable[[date], FetchResult]:
    """Return a function that gives the night of a day its part of one fetch up to `last`.

    The first call fetches, for all nights. The night of `last` gets the whole result, an earlier
    one what `_part_of_night` returns. If the fetch fails, every call raises the same error.
    """

    @cache  # which keeps what is returned, not what is raised: so an error is returned
    def answer() -> FetchResult | Exception:
        try:
            return fetch_and_compare(context, last)
        except (DtmlError, StoreError, OSError) as error:
            return error

    def fetch(day: date) -> FetchResult:
        fetched = answer()
        if isinstance(fetched, Exception):
            raise fetched
        return fetched if day == last else _part_of_night(fetched, day)

    return fetch


def _part_of_night(fetch_result: FetchResult, day: date) -> FetchResult:
    """Return a fetch as the night of `day`, not the last one, records it.

    It has only the rejected bars of that day, which the result of the last night has too. Nothing
    counts as asked for, fetched or stored: these counts belong to the last night, so that all
    nights together count each bar once. The rest, such as the answers by symbol, concerns every
    night and stays.
    """
    rejected = fetch_result.rejected[fetch_result.rejected["session"] == pd.Timestamp(day)]
    return replace(fetch_result, asked=0, fetched=0, stored=0, rejected=rejected)
