"""The source of a user's own feed: each question goes to a process of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property

import pandas as pd

from dtml.markets.definition import Market
from dtml.prices.bars import no_bars
from dtml.sources import OUTCOME_COLUMNS, Fetched, Source
from dtml.sources.own_feed.code import FeedCode, FeedError
from dtml.sources.own_feed.process import Description, ask


@dataclass(frozen=True)
class OwnFeed(Source):
    """A feed of `market` whose code is the user's own.

    Each method raises FeedError where the code fails, and UsageError where an environment variable
    that the market's file names is not set.
    """

    market: Market
    feed: FeedCode

    @property
    def name(self) -> str:
        """Return the name of the file or of the entry point."""
        return self.feed.name

    @property
    def code(self) -> str:
        """Return the text that the store records of the code which fetches."""
        return str(self._description["code"])

    def symbols(self) -> list[str] | None:
        """Return the stocks that the feed lists; None where it lists none."""
        symbols: list[str] | None = self._description["symbols"]
        return symbols

    def last_session(self) -> date | None:
        """Return the last session that the feed holds whole; None when it does not say."""
        last = self._description["last_session"]
        return None if last is None else date.fromisoformat(last)

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its own first session to `last`.

        If the feed raised an error of the network or of a rate limit, there are no bars, and every
        symbol has the status of that error. Raises FeedError for bars after `last` too.
        """
        answer = ask(
            self.feed,
            self.market,
            "fetch",
            first={symbol: day.isoformat() for symbol, day in first.items()},
            last=last.isoformat(),
        )
        if answer.status:
            return unanswered(first, answer.status, answer.detail)
        require_none_after(self.name, answer.bars, last)
        outcomes = pd.DataFrame(answer.description["outcomes"], columns=list(OUTCOME_COLUMNS))
        return Fetched(answer.bars, outcomes)

    @cached_property
    def _description(self) -> Description:
        """The answer to one question, whose process would otherwise start for each method."""
        answer = ask(self.feed, self.market, "describe")
        if answer.status:
            raise FeedError(
                f"{self.name} gave no answer: {answer.detail}; try again later or, if the address "
                "or path that it reads is wrong, correct its code"
            )
        return answer.description


def unanswered(first: Mapping[str, date], status: str, detail: str) -> Fetched:
    """Return an answer without bars, with one status for all symbols."""
    outcomes = pd.DataFrame({"symbol": list(first), "status": status, "rows": 0, "detail": detail})
    return Fetched(no_bars(), outcomes[list(OUTCOME_COLUMNS)])


def require_none_after(name: str, bars: pd.DataFrame, last: date) -> None:
    """Raise FeedError for a bar after the last session asked for: the feed knows too much."""
    later = bars[bars["session"] > pd.Timestamp(last)]
    if later.empty:
        return
    bar = later.iloc[0]
    raise FeedError(
        f"{name} is refused: asked for bars up to {last}, it gave {len(later):,} later ones, the "
        f"first of {bar['symbol']} on {bar['session']:%Y-%m-%d}. Nothing was stored; let fetch "
        "leave out bars after `last`"
    )
