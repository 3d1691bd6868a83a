"""The sources of bars: a module or folder each, all with the same interface."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal, Protocol, get_args

import pandas as pd

from dtml.errors import UsageError
from dtml.markets.definition import Market, SourceName, installed_feeds, is_feed_file

Status = Literal["ok", "no_data", "rate_limited", "unreachable", "malformed", "not_asked"]
OUTCOME_COLUMNS = ("symbol", "status", "rows", "detail")


@dataclass(frozen=True)
class Fetched:
    """The unchecked answer of a source: the bars received, and an outcome for each symbol.

    `bars` has `dtml.prices.bars.BAR_COLUMNS`. `outcomes` has `OUTCOME_COLUMNS`: symbol, status (a
    `Status`), rows (the number of bars) and detail (a line for people, empty when ok).
    """

    bars: pd.DataFrame
    outcomes: pd.DataFrame

    @classmethod
    def of(
        cls,
        bars: pd.DataFrame,
        first: Mapping[str, date],
        missing: Callable[[str], str],
        malformed: Mapping[str, str] | None = None,
    ) -> "Fetched":
        """Return an answer with the bars of each symbol of `first` from its own first session.

        A symbol without bars is `malformed`, where that has a reason, or `no_data`, as `missing`
        says.
        """
        # Missing for a symbol that was not asked for, so that its bars are dropped too.
        first_of_bar = pd.to_datetime(bars["symbol"].map(dict(first)))
        is_requested = (bars["session"] >= first_of_bar).to_numpy()
        if not is_requested.all():  # a large frame is copied only where bars are dropped
            bars = bars[is_requested].reset_index(drop=True)
        rows = bars["symbol"].value_counts()
        outcomes: list[tuple[str, Status, int, str]] = []
        for symbol in first:
            if symbol in rows:
                outcomes.append((symbol, "ok", rows[symbol], ""))
            elif malformed and symbol in malformed:
                outcomes.append((symbol, "malformed", 0, malformed[symbol]))
            else:
                outcomes.append((symbol, "no_data", 0, missing(symbol)))
        return cls(
            bars=bars,
            outcomes=pd.DataFrame(outcomes, columns=list(OUTCOME_COLUMNS)),
        )


class Source(Protocol):
    """Anything that provides bars; by default it cannot list its stocks and grows every day."""

    @property
    def name(self) -> str:
        """Return the name that stored bars carry."""

    def symbols(self) -> list[str] | None:
        """Return the stocks that it holds, without the index; None when it cannot list them."""
        return None

    def last_session(self) -> date | None:
        """Return the last session that the source holds whole; None when it grows every day."""
        return None

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol, the index too, from its first session to `last`."""


def known_source(name: str) -> str:
    """Return the name of a source that a user gave, a path made absolute.

    Raises UsageError for a name neither built in nor installed, and for a missing file.
    """
    if is_feed_file(name):
        file = Path(name).absolute()  # a run of the service works in another folder
        if not file.is_file():
            raise UsageError(f"there is no file {file} for --source: check the path")
        return str(file)
    built_in = get_args(SourceName)
    if name not in built_in and name not in installed_feeds():
        known = [*built_in, *sorted(installed_feeds())]
        raise UsageError(
            f"source {name!r} is unknown: choose one of {', '.join(known)}, or a file of your own "
            "such as mine.py"
        )
    return name


def open_source(
    name: str, market: Market, *, prices: Path | None = None, index: Path | None = None
) -> Source:
    """Return the source named `name`; `prices` and `index` are the paths that `files` reads.

    A name not built in is a user's own feed, installed or a file, relative to the market's file
    that names it. Raises UsageError for an unknown name, `files` without prices, paths with any
    other source, `index` for a computed index, and what cannot be opened.
    """
    if index is not None and market.index.of_constituents:
        raise UsageError(
            f"the index of {market.name} is computed from its constituents: leave out its file "
            "(--index, index=... in a notebook, or index under [second_source] in the market's "
            "file)"
        )
    if not is_feed_file(name):
        # Called for its error. A file is not looked for here: `FeedCode.of` knows its folder.
        known_source(name)
    if name == "files":
        if prices is None:
            raise UsageError(
                "source 'files' needs a file or folder of prices: give it with --prices, or in a "
                "notebook with prices=Path(...)"
            )
        from dtml.sources.files import FileSource

        return FileSource(market, prices, index)
    if prices is not None or index is not None:
        raise UsageError(
            f"source {name!r} reads no files: leave out --prices and --index, or use --source "
            "files with --prices; in a notebook, leave out index=..., or give prices=... with it"
        )
    if name == "yahoo":
        from dtml.sources.yahoo import YahooSource

        return YahooSource(market)
    if name not in get_args(SourceName):
        from dtml.sources.own_feed.source import FeedCode, OwnFeed

        return OwnFeed(market, FeedCode.of(name, market))
    from dtml.sources.simulated import SimulatedSource

    return SimulatedSource(calendar=market.calendar, index_symbol=market.index.symbol)
