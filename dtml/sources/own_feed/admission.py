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

STOCKS = 3  # asked for beside the index: vendors limit the number of requests
SESSIONS = 60
FEWER = 10  # sessions that the third question leaves out
ROUNDING = 1e-6  # relative; a value that is really another one differs by far more
SILENT = ("rate_limited", "unreachable", "not_asked")
NUMBERS = BAR_COLUMNS[2:]
# What a later dividend, or a later split, may scale.
OF_DIVIDENDS = ("adj_close",)
OF_SPLITS = ("open", "high", "low", "close", "adj_close", "dividend")


class Unanswered(NamedTuple):
    """Why a feed could not be checked yet: the status of a symbol that shows it, and a line."""

    status: str
    detail: str


class _Difference(NamedTuple):
    """A value of a bar that two answers give differently."""

    symbol: str
    session: pd.Timestamp
    column: str
    one: float
    other: float


def admit(feed: OwnFeed, first: Mapping[str, date], last: date) -> Unanswered | None:
    """Check a feed on some of the symbols that it is to be asked for, from `first` to `last`.

    Returns None where the feed is admitted, and the reason where it did not answer. Raises
    FeedError, with the name of the feed, what was found and what to do, where it is refused; errors
    of `OwnFeed.fetch` are raised too.
    """
    asked = _probe(feed, first, last)
    answer = feed.fetch(asked, last)
    silent = _why_silent(answer)
    if silent is not None:
        return silent
    if not len(answer.bars):
        details = [str(detail) for detail in answer.outcomes["detail"] if detail]
        reason = f" ({details[0]})" if details else ""
        raise _refused(
            feed,
            f"it gave no bar of {', '.join(asked)} from {min(asked.values())} to {last}{reason}",
            "let fetch return their bars of these days, under these symbols",
        )
    _require_sessions(feed, answer.bars)
    doubled = answer.bars[answer.bars.duplicated(["symbol", "session"])]
    if not doubled.empty:
        bar = doubled.iloc[0]
        raise _refused(
            feed,
            f"it gave {bar['symbol']} two bars of {bar['session']:%Y-%m-%d}",
            "give one bar for each stock and session",
        )
    again = feed.fetch(asked, last)
    silent = _why_silent(again)
    if silent is not None:
        return silent
    remedy = "let fetch answer the same question in the same way"
    only = _in_one_alone(answer.bars, again.bars)
    if only is not None:
        raise _refused(
            feed,
            f"asked twice, it gave a bar of {only['symbol']} on {only['session']:%Y-%m-%d} only "
            "once",
            remedy,
        )
    found = _difference(_pairs(answer.bars, again.bars))
    if found is not None:
        raise _refused(
            feed,
            f"asked twice, it gave two values: {_place(found)} was {found.one:.10g}, then "
            f"{found.other:.10g}",
            remedy,
        )
    begin = min(asked.values())
    # Never empty: the bars that were checked above lie on some of these sessions.
    sessions = sessions_between(feed.market.calendar, begin, last)
    left_out = min(FEWER, len(sessions) // 2)
    earlier_last = sessions[-1 - left_out].date()
    asked_earlier = {symbol: day for symbol, day in asked.items() if day <= earlier_last}
    if left_out == 0 or not asked_earlier:  # too few sessions leave nothing to compare
        return None
    earlier = feed.fetch(asked_earlier, earlier_last)
    silent = _why_silent(earlier)
    if silent is None:
        _require_past_stays(feed, earlier.bars, answer.bars, earlier_last, last)
    return silent


def _probe(feed: OwnFeed, first: Mapping[str, date], last: date) -> dict[str, date]:
    """Return the symbols to ask for, each with the first session to ask for.

    These are the index, if it is in `first`, and the first, the middle and the last of the stocks.
    A symbol is asked for from its first session on, but only for the last `SESSIONS` sessions.
    """
    index = feed.market.index.symbol
    stocks = [symbol for symbol in first if symbol != index]
    places = sorted({0, len(stocks) // 2, len(stocks) - 1}) if stocks else []
    chosen = [stocks[place] for place in places[:STOCKS]]
    if index in first:
        chosen.insert(0, index)
    recent = sessions_between(feed.market.calendar, min(first.values()), last)[-SESSIONS:]
    begin = recent[0].date() if len(recent) else last
    return {symbol: max(first[symbol], begin) for symbol in chosen}


def _why_silent(answer: Fetched) -> Unanswered | None:
    outcomes = answer.outcomes
    silent = outcomes[outcomes["status"].isin(SILENT)]
    if silent.empty:
        return None
    row = silent.iloc[0]
    detail = row["detail"] or f"{row['status']} for {row['symbol']}"
    return Unanswered(row["status"], f"the feed is not checked yet: {detail}")


def _require_sessions(feed: OwnFeed, bars: pd.DataFrame) -> None:
    calendar = feed.market.calendar
    first = bars["session"].min().date()
    last = bars["session"].max().date()
    off = bars[~bars["session"].isin(sessions_between(calendar, first, last))]
    if off.empty:
        return
    bar = off.iloc[0]
    raise _refused(
        feed,
        f"{len(off)} of {len(bars)} bars are on no session of {calendar}, the first of "
        f"{bar['symbol']} on {bar['session']:%A %Y-%m-%d}",
        "give the exchange's own dates and leave out filled-in days, or add the sessions that the "
        "calendar lacks, under [sessions] in the market's file or to calendars.toml in the data "
        "folder",
    )


def _require_past_stays(
    feed: OwnFeed, earlier: pd.DataFrame, bars: pd.DataFrame, earlier_last: date, last: date
) -> None:
    """Refuse a feed whose bars up to `earlier_last` depend on whether it is asked for later ones.

    Of a stock with a dividend after `earlier_last`, the adjusted closes may differ by a factor; of
    one with a split, all prices and dividends may, and volumes are not compared.
    """
    is_past = bars["session"] <= pd.Timestamp(earlier_last)
    past = bars[is_past]
    only = _in_one_alone(earlier, past)
    if only is not None:
        raise _refused(
            feed,
            f"whether it gives a bar of {only['symbol']} on {only['session']:%Y-%m-%d} depends on "
            f"whether it is asked for bars up to {earlier_last} or to {last}",
            "let the bars of a day depend on no later day, and include those of `last` itself",
        )
    found = _difference(_without_actions(_pairs(earlier, past), bars[~is_past]))
    if found is not None:
        raise _refused(
            feed,
            f"it restates silently: {_place(found)} is {found.one:.10g} if asked for bars up "
            f"to {earlier_last}, but {found.other:.10g} if asked for bars up to {last}, and it "
            "gives no split or dividend between these days that explains this",
            "give prices as they were on their day, or the split or dividend that changed them",
        )


def _in_one_alone(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series | None:
    """Return the first bar that only one of two answers has; None where both have the same."""
    key = ["symbol", "session"]
    both = one[key].merge(other[key], on=key, how="outer", indicator=True)
    alone = both[both["_merge"] != "both"]
    return None if alone.empty else alone.iloc[0]


def _pairs(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return the bars of two answers side by side; columns of the second end with `_other`."""
    return one.merge(other, on=["symbol", "session"], suffixes=("", "_other"))


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
    """Return the first value in which two answers differ; None where they agree."""
    for column in NUMBERS:
        one = pairs[column]
        other = pairs[f"{column}_other"]
        is_close = (one - other).abs() <= ROUNDING * one.abs()
        differs = ~(is_close | (one.isna() & other.isna()))
        if differs.any():
            place = int(differs.to_numpy().argmax())
            return _Difference(
                symbol=pairs["symbol"].iloc[place],
                session=pairs["session"].iloc[place],
                column=column,
                one=one.iloc[place],
                other=other.iloc[place],
            )
    return None


def _place(found: _Difference) -> str:
    return f"{found.column} of {found.symbol} on {found.session:%Y-%m-%d}"


def _refused(feed: OwnFeed, finding: str, remedy: str) -> FeedError:
    return FeedError(f"{feed.name} is refused: {finding}. Nothing was stored; {remedy}")
