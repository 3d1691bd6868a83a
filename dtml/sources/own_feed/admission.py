"""The check that admits a user's own feed, before any of its bars is stored.

A few stocks and the index are asked for three times: twice for the same sessions, and once for
fewer. An honest feed gives the same bars each time. Asked for fewer sessions, it knows no later
ones: a bar that then differs was changed by something that came later, which only a split or a
dividend may do. The stored past would otherwise change every night, and a model would train on
prices that nobody could have known.
"""

from collections.abc import Mapping
from datetime import date
from typing import NamedTuple

import pandas as pd

from dtml.prices.bars import BAR_COLUMNS
from dtml.prices.sessions import sessions_between
from dtml.sources import Fetched
from dtml.sources.own_feed.code import FeedError
from dtml.sources.own_feed.source import OwnFeed

SESSIONS = 60
FEWER = 10  # sessions that the third question leaves out
ROUNDING = 1e-6  # relative; a value that is really another one differs by far more
SILENT = ("rate_limited", "unreachable", "not_asked")
KEY = ["symbol", "session"]
NUMBERS = BAR_COLUMNS[2:]
# What a later dividend, or a later split, may scale.
OF_DIVIDENDS = ("adj_close",)
OF_SPLITS = ("open", "high", "low", "close", "adj_close", "dividend")


class Unanswered(NamedTuple):
    """Why a feed could not be checked yet: the status of a symbol that shows it, and a line."""

    status: str
    detail: str


class _Difference(NamedTuple):
    """What two answers give differently, and what each gives."""

    what: str
    one: str
    other: str


def admit(feed: OwnFeed, first: Mapping[str, date], last: date) -> Unanswered | None:
    """Check a feed on some of the symbols that it is to be asked for, from `first` to `last`.

    Returns None where the feed is admitted, and the reason where it did not answer. Raises
    FeedError, with the name of the feed, what was found and what to do, where it is refused; errors
    of `OwnFeed.fetch` are raised too.
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
        raise _refused(
            feed,
            f"asked twice, it gave two answers: {found.what} was {found.one}, then {found.other}",
            "let fetch answer the same question in the same way",
        )
    for earlier_bars in earlier:
        is_past = bars["session"] <= pd.Timestamp(earlier_last)
        pairs = _pairs(earlier_bars, bars[is_past])
        found = _difference(_without_actions(pairs, bars[~is_past]))
        if found is not None:
            raise _refused(
                feed,
                f"it restates silently: {found.what} is {found.one} if asked for bars up to "
                f"{earlier_last}, but {found.other} if asked for bars up to {last}, and it gives "
                "no split or dividend between these days that explains this",
                "give prices as they were on their day, or the split or dividend that changed "
                "them, and include the bars of `last` itself",
            )
    return None


def _probe(feed: OwnFeed, first: Mapping[str, date], last: date) -> dict[str, date]:
    """Return the symbols to ask for, each with the first session to ask for.

    These are the index, if it is in `first`, and the first, the middle and the last of the stocks:
    vendors limit the number of requests. A symbol is asked for from its first session on, but only
    for the last `SESSIONS` sessions.
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
    """Return the bars of two answers side by side; columns of the second end with `_other`."""
    return one.merge(other, on=KEY, how="outer", suffixes=("", "_other"), indicator="given")


def _without_actions(pairs: pd.DataFrame, later: pd.DataFrame) -> pd.DataFrame:
    """Return pairs whose second values are scaled to the first, where later actions may scale them.

    These actions are the splits and dividends recorded in `later`, the bars after the pairs. The
    factor is that of a stock's first pair that has both values, so a change that is no factor
    stays. The volume of a stock with a split is made the same in both answers, so that it is not
    compared: it is rounded to whole shares.
    """
    splits = set(later.loc[later["split"].notna(), "symbol"])
    dividends = set(later.loc[later["dividend"].notna(), "symbol"])
    has_split = pairs["symbol"].isin(splits)
    has_any = has_split | pairs["symbol"].isin(dividends)
    pairs = pairs.copy()
    for column in OF_SPLITS:
        other = f"{column}_other"
        ratio = (pairs[column] / pairs[other]).groupby(pairs["symbol"]).transform("first")
        may_change = has_any if column in OF_DIVIDENDS else has_split
        pairs[other] = pairs[other].where(~may_change, pairs[other] * ratio)
    pairs["volume_other"] = pairs["volume_other"].where(~has_split, pairs["volume"])
    return pairs


def _difference(pairs: pd.DataFrame) -> _Difference | None:
    """Return the first bar or value in which two answers differ; None where they agree."""
    alone = pairs[pairs["given"] != "both"]
    if not alone.empty:
        bar = alone.iloc[0]
        words = ("given", "missing") if bar["given"] == "left_only" else ("missing", "given")
        return _Difference(f"a bar of {bar['symbol']} on {bar['session']:%Y-%m-%d}", *words)
    for column in NUMBERS:
        one = pairs[column]
        other = pairs[f"{column}_other"]
        is_close = (one - other).abs() <= ROUNDING * one.abs()
        differing = pairs[~(is_close | (one.isna() & other.isna()))]
        if not differing.empty:
            bar = differing.iloc[0]
            return _Difference(
                what=f"{column} of {bar['symbol']} on {bar['session']:%Y-%m-%d}",
                one=f"{bar[column]:.10g}",
                other=f"{bar[f'{column}_other']:.10g}",
            )
    return None


def _refused(feed: OwnFeed, finding: str, remedy: str) -> FeedError:
    return FeedError(f"{feed.name} is refused: {finding}. Nothing was stored; {remedy}")
