"""The check that admits a user's own feed, before any of its bars is stored.

A few stocks and the index are asked for twice for the same sessions, and once for fewer: the bars
must be the same, but for later splits and dividends. Otherwise the stored past would change every
night, and a model would train on prices that nobody could have known.
"""

from collections.abc import Mapping
from datetime import date
from typing import NamedTuple

import pandas as pd

from dtml.prices.bars import BAR_COLUMNS
from dtml.prices.sessions import sessions_between
from dtml.sources import Fetched
from dtml.sources.own_feed.source import FeedError, OwnFeed

SESSIONS = 60
FEWER = 10  # sessions that the third question leaves out
ROUNDING = 1e-6  # relative; a value that is really another one differs by far more
SILENT = ("rate_limited", "unreachable", "not_asked")
KEY = ["symbol", "session"]
NUMBERS = BAR_COLUMNS[2:]


class Unanswered(NamedTuple):
    """Why a feed could not be checked yet: the status of a symbol that shows it, and a line."""

    status: str
    detail: str


def admit(feed: OwnFeed, first: Mapping[str, date], last: date) -> Unanswered | None:
    """Check a feed on some of the symbols that it is to be asked for, from `first` to `last`.

    Returns None, or why it did not answer. Raises FeedError where it is refused, and as
    `OwnFeed.fetch`.
    """
    asked = _probe(feed, first, last)
    questions = [(asked, last), (asked, last)]
    sessions = sessions_between(feed.market.calendar, min(asked.values()), last)
    left_out = min(FEWER, len(sessions) // 2)
    if left_out:  # one session leaves nothing to compare
        earlier_last = sessions[-1 - left_out].date()
        asked_earlier = {symbol: day for symbol, day in asked.items() if day <= earlier_last}
        questions += [(asked_earlier, earlier_last)] if asked_earlier else []
    answers: list[pd.DataFrame] = []
    for question, until in questions:
        answer = feed.fetch(question, until)
        silent = answer.outcomes[answer.outcomes["status"].isin(SILENT)]
        if not silent.empty:
            row = silent.iloc[0]
            detail = row["detail"] or f"{row['status']} for {row['symbol']}"
            return Unanswered(row["status"], f"the feed is not checked yet: {detail}")
        if not answers:
            _require_bars(feed, answer, asked, last)
        answers.append(answer.bars)
    bars, again, *earlier = answers
    found = _difference(_pairs(bars, again))
    if found is not None:
        what, one, other = found
        raise _refused(
            feed,
            f"asked twice, it gave two answers: {what} was {one}, then {other}",
            "let fetch answer the same question in the same way",
        )
    for earlier_bars in earlier:
        is_past = bars["session"] <= pd.Timestamp(earlier_last)
        pairs = _pairs(earlier_bars, bars[is_past])
        found = _difference(_without_actions(pairs, bars[~is_past]))
        if found is not None:
            what, one, other = found
            raise _refused(
                feed,
                f"it restates silently: {what} is {one} if asked for bars up to {earlier_last}, "
                f"but {other} if asked for bars up to {last}, and it gives no split or dividend "
                "between these days that explains this",
                "give prices as they were on their day, or the split or dividend that changed "
                "them, and include the bars of `last` itself",
            )
    return None


def _probe(feed: OwnFeed, first: Mapping[str, date], last: date) -> dict[str, date]:
    """Return the first session to ask for, of `SESSIONS` at most, of the index and three stocks.

    The first, the middle and the last: vendors limit requests.
    """
    index = feed.market.index.symbol
    stocks = [symbol for symbol in first if symbol != index]
    chosen = [index] if index in first else []
    chosen += [stocks[place] for place in (0, len(stocks) // 2, -1) if stocks]
    recent = sessions_between(feed.market.calendar, min(first.values()), last)[-SESSIONS:]
    begin = recent[0].date() if len(recent) else last
    return {symbol: max(first[symbol], begin) for symbol in chosen}


def _require_bars(feed: OwnFeed, answer: Fetched, asked: Mapping[str, date], last: date) -> None:
    """Refuse a feed without bars, with bars on days that are no session, or with two of one day."""
    bars = answer.bars
    if bars.empty:
        details = [str(detail) for detail in answer.outcomes["detail"] if detail]
        reason = f" ({details[0]})" if details else ""
        raise _refused(
            feed,
            f"it gave no bar of {', '.join(asked)} from {min(asked.values())} to {last}{reason}",
            "let fetch return their bars of these days, under these symbols",
        )
    calendar = feed.market.calendar
    days = bars["session"]
    sessions = sessions_between(calendar, days.min().date(), days.max().date())
    off = bars[~days.isin(sessions)]
    if not off.empty:
        bar = off.iloc[0]
        raise _refused(
            feed,
            f"{len(off)} of {len(bars)} bars are on no session of {calendar}, the first of "
            f"{bar['symbol']} on {bar['session']:%A %Y-%m-%d}",
            "give the exchange's own dates and leave out filled-in days, or add the sessions that "
            "the calendar lacks, under [sessions] in the market's file or to calendars.toml in the "
            "data folder",
        )
    doubled = bars[bars.duplicated(KEY)]
    if not doubled.empty:
        bar = doubled.iloc[0]
        raise _refused(
            feed,
            f"it gave {bar['symbol']} two bars of {bar['session']:%Y-%m-%d}",
            "give one bar for each stock and session",
        )


def _pairs(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each value of two answers: `value` and `value_other`, NaN where missing."""
    values = (bars.melt(KEY, NUMBERS, "field") for bars in (one, other))
    return next(values).merge(
        next(values), on=[*KEY, "field"], how="outer", suffixes=("", "_other")
    )


def _without_actions(pairs: pd.DataFrame, later: pd.DataFrame) -> pd.DataFrame:
    """Return pairs whose second values are scaled to the first, where later actions may scale them.

    These actions are the splits and dividends recorded in `later`, the bars after the pairs. The
    factor is that of a stock's first pair that has both values, so a change that is no factor
    stays. The volume of a stock with a split is left out: it is rounded to whole shares.
    """
    has_split, has_dividend = (
        pairs["symbol"].isin(later.loc[later[name].notna(), "symbol"])
        for name in ("split", "dividend")
    )
    is_volume = pairs["field"] == "volume"
    may_change = has_split & (pairs["field"] != "split")
    may_change |= has_dividend & (pairs["field"] == "adj_close")
    ratio = pairs["value"] / pairs["value_other"]
    factor = ratio.groupby([pairs["symbol"], pairs["field"]]).transform("first")
    scaled = pairs["value_other"] * factor.where(may_change & factor.notna(), 1.0)
    return pairs.assign(value_other=scaled)[~(has_split & is_volume)]


def _difference(pairs: pd.DataFrame) -> tuple[str, str, str] | None:
    """Return what two answers first give differently, and both values; None where they agree."""
    one, other = pairs["value"], pairs["value_other"]
    is_same = (one - other).abs() <= ROUNDING * one.abs()
    differing = pairs[~(is_same | (one.isna() & other.isna()))]
    if differing.empty:
        return None
    first = differing.iloc[0]
    one_value, other_value = (
        "missing" if pd.isna(first[name]) else f"{first[name]:.10g}"
        for name in ("value", "value_other")
    )
    what = f"{first['field']} of {first['symbol']} on {first['session']:%Y-%m-%d}"
    return what, one_value, other_value


def _refused(feed: OwnFeed, finding: str, remedy: str) -> FeedError:
    return FeedError(f"{feed.name} is refused: {finding}. Nothing was stored; {remedy}")
