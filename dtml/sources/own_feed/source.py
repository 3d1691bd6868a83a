"""The source of a user's own feed: each question goes to a process of its own.

It has the environment of own features (`dtml.own.process`), the variables that the market's file
names, and the network. This keeps mistakes from a night, not attacks.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import Market, installed_feeds, is_feed_file
from dtml.own.confinement import Description
from dtml.own.sandbox import Sandbox
from dtml.prices.bars import bars_frame, no_bars
from dtml.sources import OUTCOME_COLUMNS, Fetched, Source


class FeedError(DtmlError):
    """A fault of a user's own feed; it ends the fetch, and nothing of the fetch is stored."""


@dataclass(frozen=True)
class FeedCode:
    """The code of a feed as it was found.

    `name` is that of the file or of the entry point; stored bars carry it as their source. A file
    has its `path` and its `text`, an entry point has only `entry`, such as "vendor.feed:Vendor".
    The fields that it lacks are empty.
    """

    name: str
    path: str = ""
    text: str = ""
    entry: str = ""

    @classmethod
    def of(cls, source: str, market: Market) -> "FeedCode":
        """Return the code of the feed that a market's file or the user names.

        A relative path begins at the folder of the market's file if that file names it, else at
        the working folder. Raises UsageError for a file that cannot be read.
        """
        if not is_feed_file(source):
            return cls(name=source, entry=installed_feeds()[source].value)
        is_of_market = source == market.source
        folder = market.file[0].parent if market.file and is_of_market else Path()
        file = (folder / source).absolute()
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(
                f"{file}: the file of your own feed cannot be read ({problem}): check its path and "
                "permissions, and that it is UTF-8 text"
            ) from problem
        return cls(name=file.name, path=str(file), text=text)


# An hour for a question, because some vendors answer five requests a minute.
SANDBOX = Sandbox(
    program="dtml.sources.own_feed.work", limits="DTML_FEED", seconds="3600", error=FeedError
)


def ask(
    code: FeedCode, market: Market, task: str, **details: Any
) -> tuple[Description, pd.DataFrame]:
    """Let a fresh process do a task of `dtml.sources.own_feed.work`; return its answer and bars.

    `details` fit into JSON; an answer with `status` and `error` was not reached. Raises FeedError
    where the code fails or takes too much, UsageError for a variable that is not set.
    """
    for name in market.feed.environment:
        if name not in os.environ:
            raise UsageError(
                f"{code.name} needs {name}, which is not set: set this environment variable where "
                "the command or service starts"
            )
    market_file, market_text = market.file or ("", "")
    question = {
        **details,
        **asdict(code),
        "task": task,
        "market": market.name,
        "market_file": str(market_file),
        "market_text": market_text,
        "environment": market.feed.environment,
    }
    description, arrays = SANDBOX.ask(code.name, question, {}, market.feed.environment)
    return description, bars_frame(pd.DataFrame(arrays)) if arrays else no_bars()


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

        After an error of the network or a rate limit: no bars, and its status. Raises FeedError for
        later bars too.
        """
        answer, bars = ask(
            self.feed,
            self.market,
            "fetch",
            first={symbol: day.isoformat() for symbol, day in first.items()},
            last=last.isoformat(),
        )
        if "status" in answer:
            return unanswered(first, answer["status"], answer["error"])
        require_none_after(self.name, bars, last)
        outcomes = pd.DataFrame(answer["outcomes"], columns=list(OUTCOME_COLUMNS))
        return Fetched(bars, outcomes)

    @cached_property
    def _description(self) -> Description:
        """The answer to one question, whose process would otherwise start for each method."""
        answer, _ = ask(self.feed, self.market, "describe")
        if "status" in answer:
            raise FeedError(
                f"{self.name} gave no answer: {answer['error']}; try again later or, if the "
                "address or path that it reads is wrong, correct its code"
            )
        return answer


def unanswered(first: Mapping[str, date], status: str, detail: str) -> Fetched:
    """Return an answer without bars, with one status for all symbols."""
    outcomes = pd.DataFrame({"symbol": list(first), "status": status, "rows": 0, "detail": detail})
    return Fetched(no_bars(), outcomes)


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
