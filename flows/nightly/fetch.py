"""Fetch the bars that the store lacks, check them, also against it, and store the good ones.

First the fetch, part by part; then its checks.
"""

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from itertools import pairwise
from math import ceil
from pathlib import Path

import pandas as pd
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.read import read
from db.rows import fetches, markets, prices
from db.save import save
from dtml.errors import DtmlError
from dtml.prices.actions import CONTRADICTED, doubtful_actions, has_actions
from dtml.prices.alignment import (
    ENOUGH,
    ENOUGH_OF_INDEX,
    RESCALED,
    SAME_BARS,
    index_fault,
    judged,
    over_corrected,
    redated_symbols,
    rescaled,
    restated_symbols,
    shifted_stocks,
    twin_stocks,
    unadjusted_again,
)
from dtml.prices.bars import BAR_COLUMNS, HINDSIGHT, Checked, check, no_bars
from dtml.prices.returns import doubts, index_of_constituents
from dtml.prices.sessions import (
    last_known_day,
    next_known_session,
    sessions_between,
    sessions_up_to,
)
from dtml.sources import OUTCOME_COLUMNS, Fetched
from flows.markets.files import CALENDARS, settings_place
from flows.nightly.context import MarketContext, save_universe
from flows.settings import data_folder

log = logging.getLogger(__name__)

REJECTED = ["symbol", "session", "reason", "value"]
# A larger share of a symbol's bars on no session means that its dates are wrong. Holidays that a
# source filled in with bars make up to .08, a wrong time zone makes .2.
OFF_CALENDAR = 0.1
# Bars of a symbol from which its dates can be called shifted. Of fewer, all that lie on no session
# may be holidays that a source filled in.
ENOUGH_TO_SHIFT = 6
# Reasons that need a bar before or after: without it, the same bad bar would now pass.
NEEDS_NEIGHBOURS = ("unexplained_return", "repeated_bar", "stale_day", *HINDSIGHT)
OTHER_UNIT = "other_unit"
# Sessions in which the newest bar of a stock is looked for, to compare it with those of the others.
RECENT = 5
# Where a fetch brings at most so many symbols, the index is judged beside the stored stocks too.
FEW_SYMBOLS = 100
DOUBTFUL = ["symbol", "reason", "value"]
FAILURE = ["symbol", "status", "detail"]
SYMBOLS_AT_ONCE = 300  # whose bars are in memory together
# Stored sessions asked for again, to find restatements and to check the returns of new bars.
OVERLAP = 10
# Sessions after an ex-day in which its adjustment is looked for: the next dividend shows it too.
LATE = 63


@dataclass(frozen=True)
class FetchResult:
    """What a fetch brought: counts of bars, and how the source answered for each symbol.

    `restated` are the symbols whose past the source has changed; `unadjusted` the stocks without
    any adjusted close where returns need it, whose returns come from closes. `doubtful` has
    `symbol, reason, value` for each fault that a stock's bars show only together. `first` is the
    first session asked for of each symbol.
    """

    asked: int = 0  # symbols
    fetched: int = 0  # bars
    stored: int = 0  # bars that are new or differ from the stored ones
    rejected: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=REJECTED))
    outcomes: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=OUTCOME_COLUMNS))
    restated: list[str] = field(default_factory=list)
    unadjusted: list[str] = field(default_factory=list)
    doubtful: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=DOUBTFUL))
    first: Mapping[str, date] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: "Sequence[FetchResult]") -> "FetchResult":
        """Return as one what several fetches brought, but for `first`, which `fetch_bars` sets."""
        return cls(
            asked=sum(part.asked for part in parts),
            fetched=sum(part.fetched for part in parts),
            stored=sum(part.stored for part in parts),
            rejected=pd.concat([part.rejected for part in parts], ignore_index=True),
            outcomes=pd.concat([part.outcomes for part in parts], ignore_index=True),
            restated=[symbol for part in parts for symbol in part.restated],
            unadjusted=[symbol for part in parts for symbol in part.unadjusted],
            doubtful=pd.concat([part.doubtful for part in parts], ignore_index=True),
        )

    @property
    def failures(self) -> pd.DataFrame:
        """Return the symbols without a usable answer, and those of which the source has no data."""
        return self.outcomes[self.outcomes["status"] != "ok"]

    @property
    def counts(self) -> dict[str, int]:
        """Return how many bars were fetched, stored and rejected."""
        return {"fetched": self.fetched, "stored": self.stored, "rejected": len(self.rejected)}


@dataclass(frozen=True)
class _Wanted:
    """The `first` session wanted of each symbol, the `last` of all, and what was asked before."""

    first: dict[str, date]
    last: date
    asked_from: dict[str, date]  # the first session that was ever asked for, by symbol
    computed: frozenset[str]  # symbols that no source has
    whole: bool = False  # whether everything that was ever asked for is wanted again

    @property
    def asked(self) -> dict[str, date]:
        """Return the first session of each symbol that the source is asked for."""
        return {symbol: day for symbol, day in self.first.items() if symbol not in self.computed}


def fetch_bars(
    context: MarketContext, as_of: date, known_at: datetime | None = None, *, whole: bool = False
) -> FetchResult:
    """Bring the store up to `as_of`, and record what came and what was rejected.

    Symbols that lack bars are asked for, with some stored sessions, which shows recent
    restatements; with `whole`, all that was ever asked for. A symbol whose adjusted prices were
    restated is fetched again from its start; if that fails, none of its bars are stored. Raises
    DtmlError for wrong dates, a wrong index or a refused feed of the user's own, StoreError under a
    wrong clock.
    """
    with transaction(context.engine) as conn:
        save_universe(conn, context)
    wanted = _wanted(context, as_of, whole=whole)
    if not wanted.first:
        return FetchResult()
    if known_at is None:
        # Raises before the source is asked: under a wrong clock nothing can be stored.
        with reading(context.engine) as conn:
            fetches.require_clocks_agree(conn, context.name)
    # One part waits in memory: only several need a folder, which a killed process leaves behind.
    is_one_part = len(wanted.asked) <= SYMBOLS_AT_ONCE
    with (
        nullcontext("")
        if is_one_part
        else tempfile.TemporaryDirectory(prefix="dtml-fetch-") as folder
    ):
        parts = list(_parts(context, wanted, Path(folder)))
        result = _store_parts(context, as_of, known_at, wanted, parts)
    log.info(
        "%s: %d bars fetched, %d new, %d rejected",
        context.name,
        result.fetched,
        result.stored,
        len(result.rejected),
    )
    return replace(result, first=wanted.asked)


@dataclass(frozen=True)
class _Part:
    """Some symbols' bars, fetched and checked, until all parts are stored together.

    Several parts wait in files, so that memory holds one.
    """

    held: pd.DataFrame | Path
    fetched: FetchResult  # nothing of it stored yet
    judged: Sequence[str]  # the symbols with enough bars for `fetched.doubtful` to judge them
    # Bars that only later ones showed to be bad, with the reason: stored, they are withdrawn.
    shown_bad: pd.DataFrame

    @property
    def accepted(self) -> pd.DataFrame:
        """Return the bars that were accepted."""
        if isinstance(self.held, pd.DataFrame):
            return self.held
        # `astype` restores the types of a bars frame, which the file does not keep.
        return pd.read_parquet(self.held).astype({"symbol": str, "session": "datetime64[ns]"})


def _store_parts(
    context: MarketContext,
    as_of: date,
    known_at: datetime | None,
    wanted: _Wanted,
    parts: Sequence[_Part],
) -> FetchResult:
    """Store all parts in one transaction, so that all bars are known from the same moment."""
    result = FetchResult.of([part.fetched for part in parts])
    computed_index = _computed_index(context, wanted, parts)
    with transaction(context.engine) as conn:
        known_at = known_at or fetches.next_known_at(conn, context.name)
        stored = prices.append_prices(
            conn, context.name, computed_index, source="constituents", known_at=known_at
        )
        for part in parts:
            stored += prices.append_prices(
                conn, context.name, part.accepted, source=context.source.name, known_at=known_at
            )
        for part in parts:
            prices.withdraw(conn, context.name, part.shown_bad, known_at=known_at)
            prices.record_warnings(
                conn, context.name, part.judged, part.fetched.doubtful, known_at=known_at
            )
        if any(part.judged for part in parts):
            twins = same_bars(conn, context, wanted.last)
            prices.record_warnings(
                conn,
                context.name,
                context.market.symbols,
                twins,
                known_at=known_at,
                reason=SAME_BARS,
            )
            doubtful = pd.concat([result.doubtful, twins], ignore_index=True)
            result = replace(result, doubtful=doubtful)
        save(
            conn,
            "rejected_bar",
            result.rejected,
            market=context.name,
            source=context.source.name,
            first_known_at=known_at,
        )
        # The next fetch asks for all other symbols from the same session again.
        answered = set(result.outcomes.loc[result.outcomes["status"] == "ok", "symbol"])
        answered |= set(computed_index["symbol"])
        earlier = {
            symbol: day
            for symbol, day in wanted.first.items()
            if day < wanted.asked_from.get(symbol, date.max)
        }
        markets.note_asked(
            conn, context.name, {symbol: earlier[symbol] for symbol in answered & earlier.keys()}
        )
        result = replace(result, stored=stored)
        save(
            conn,
            "price_fetch",
            {
                "market": context.name,
                "source": context.source.name,
                "code": context.feed_code,
                "known_at": known_at,
                "as_of": as_of,
                "asked": result.asked,
                "restated": result.restated,
                "failures": result.failures[FAILURE].to_dict("records"),
                "fetched": result.fetched,
                "stored": result.stored,
                "rejected": len(result.rejected),
            },
        )
    return result


def _parts(context: MarketContext, wanted: _Wanted, folder: Path) -> Iterator[_Part]:
    """Fetch and check the symbols wanted, at most `SYMBOLS_AT_ONCE` at a time.

    A source that stops answering is not asked again. If only a computed index is wanted, there is
    one empty part.
    """
    asked = list(wanted.asked.items())
    stopped = ""  # the reason why the source stopped answering; empty while it answers
    index_bars = no_bars()
    # Parts of equal size: each stands for the market where the share of stale stocks is judged.
    count = max(1, ceil(len(asked) / SYMBOLS_AT_ONCE))
    ends = [len(asked) * number // count for number in range(count + 1)]
    for number, (begin, end) in enumerate(pairwise(ends)):
        first_sessions = dict(asked[begin:end])
        brought = _ask_source(context, first_sessions, wanted.last, stopped)
        part = _checked_part(context, wanted, brought, index_bars)
        if number == 0:  # the index comes first, so this part has it if any has
            accepted = part.accepted
            index_bars = accepted[accepted["symbol"] == context.market.index.symbol]
        if count > 1:
            file = folder / f"{number}.parquet"
            part.accepted.to_parquet(file, index=False)
            part = replace(part, held=file)
        stopped = stopped or _why_stopped(part.fetched.outcomes)
        yield part


def _why_stopped(outcomes: pd.DataFrame) -> str:
    is_silent = outcomes["status"].isin(["rate_limited", "not_asked"])
    return str(outcomes.loc[is_silent, "detail"].iloc[-1]) if is_silent.any() else ""


def _ask_source(
    context: MarketContext, first_sessions: dict[str, date], last: date, stopped: str
) -> Fetched:
    """Ask the source for some symbols, unless an earlier answer `stopped` the asking."""
    if not stopped:
        return context.source.fetch(first_sessions, last)
    not_asked = [(symbol, "not_asked", 0, stopped) for symbol in first_sessions]
    return Fetched(no_bars(), pd.DataFrame(not_asked, columns=OUTCOME_COLUMNS))


def _checked_part(
    context: MarketContext, wanted: _Wanted, brought: Fetched, index_bars: pd.DataFrame
) -> _Part:
    """Fetch restated symbols of a part again from their start, and check all its bars.

    Raises DtmlError where dates or the index are wrong.
    """
    is_part = len(wanted.asked) > SYMBOLS_AT_ONCE
    market_size = len(brought.outcomes) if is_part else len(context.market.symbols)
    brought, restated, stored, other_unit = _with_restated_histories(context, wanted, brought)
    checked = check_bars(context, brought.bars, wanted.last, market_size)
    accepted = checked.accepted
    rejected = pd.concat([checked.rejected, other_unit], ignore_index=True)
    require_sessions(context, brought.bars)
    # Only later parts are given `index_bars`: the part that brings the index comes first.
    with_index = pd.concat([accepted, index_bars]) if len(index_bars) else accepted
    require_index_in_step(context, with_index)
    return _Part(
        held=accepted,
        fetched=FetchResult(
            asked=len(brought.outcomes),
            fetched=len(brought.bars) + len(other_unit),
            stored=0,
            rejected=rejected,
            outcomes=brought.outcomes,
            restated=restated,
            unadjusted=unadjusted_stocks(context, accepted),
            doubtful=doubtful_stocks(
                context, stored, accepted, with_index, history_start(context, wanted.last)
            ),
        ),
        judged=judged(accepted),
        shown_bad=bars_shown_bad(brought.bars, checked.rejected),
    )


def history_start(context: MarketContext, as_of: date) -> date:
    """Return the first session that a training at `as_of` may read."""
    return sessions_up_to(context.market.calendar, as_of, context.experiment.history)[0].date()


def _wanted(context: MarketContext, as_of: date, *, whole: bool) -> _Wanted:
    """Return what the store lacks up to `as_of`, or with `whole` all of its history.

    A symbol whose prices contradict a dividend is fetched from before its last ex-day.
    """
    with reading(context.engine) as conn:
        stored = prices.last_sessions(conn, context.name)
        asked = (
            read(conn, "instrument", market=context.name, order="symbol")
            .set_index("symbol")["asked_from"]
            .dropna()
        )
        unadjusted_from = _before_unadjusted_dividends(conn, context, as_of)
    newest_stored = {str(symbol): session for symbol, session in stored.items()}
    asked_from = {str(symbol): day.date() for symbol, day in asked.items()}
    start = history_start(context, as_of)
    symbols = (context.market.index.symbol, *context.market.symbols)
    if whole:
        # A restatement may change any stored bar.
        first = {symbol: min(start, asked_from.get(symbol, start)) for symbol in symbols}
        stored_days = [day.date() for symbol, day in newest_stored.items() if symbol in first]
        last = max([as_of, *stored_days])
    else:
        # What is fetched meets what is stored, so that no session between is left out.
        # A symbol without bars begins with the longest history of the market.
        market_start = min([start, *asked_from.values()])
        first = {}
        last = as_of
        for symbol in symbols:
            newest = newest_stored.get(symbol)
            # Nothing was stored or answered, or the history must now begin earlier than it did.
            if newest is None or symbol not in asked_from or start < asked_from[symbol]:
                first[symbol] = market_start if newest is None else start
                # Where the stored bars begin after `as_of`, fetch up to them.
                last = max(last, asked_from.get(symbol, as_of))
            elif newest.date() < as_of:
                # The last stored sessions are fetched again, to be compared.
                overlap = sessions_up_to(context.market.calendar, newest.date(), OVERLAP)
                first[symbol] = overlap[0].date()
        for symbol in first.keys() & unadjusted_from.keys():
            first[symbol] = min(first[symbol], unadjusted_from[symbol])
    index = context.market.index
    return _Wanted(
        first=first,
        last=last,
        asked_from=asked_from,
        computed=frozenset({index.symbol}) if index.of_constituents else frozenset(),
        whole=whole,
    )


def _before_unadjusted_dividends(
    conn: Connection, context: MarketContext, as_of: date
) -> dict[str, date]:
    """Return the session before the last ex-day of each stock whose prices contradict a dividend.

    A source may adjust the past days later; they are asked for again until `LATE` sessions have
    passed.
    """
    calendar = context.market.calendar
    warnings = read(conn, "price_warning", market=context.name, order="symbol, reason")
    stocks = warnings.loc[warnings["reason"] == CONTRADICTED, "symbol"].unique()
    if not len(stocks):
        return {}
    begin = sessions_up_to(calendar, as_of, LATE)[0].date()
    bars = prices.prices(conn, context.name, begin, as_of, symbols=stocks)
    ex_days = bars[bars["dividend"].notna()].groupby("symbol")["session"].max()
    return {
        str(symbol): sessions_up_to(calendar, day.date(), 2)[0].date()
        for symbol, day in ex_days.items()
    }


def _with_restated_histories(
    context: MarketContext, wanted: _Wanted, brought: Fetched
) -> tuple[Fetched, list[str], pd.DataFrame, pd.DataFrame]:
    """Fetch restated symbols again from their start, whose second answers replace the first.

    Returns all that was brought, the restated symbols, the stored bars of the fetched sessions, and
    the bars rejected for another unit. A symbol without a second answer has no bars. Unless the
    whole history is fetched, symbols that lost adjusted closes are left out, and DtmlError is
    raised for bars dated a session off.
    """
    stored = stored_beside(context, brought.bars, wanted.last)
    other_unit = pd.DataFrame(columns=REJECTED)
    if brought.bars.empty:
        return brought, [], stored, other_unit
    if not wanted.whole:  # a fetch of everything may correct what is wrong in the store
        require_dates_as_stored(context, stored, brought.bars)
        brought = without_lost_adjustments(context, stored, brought)
        other_unit = bars_of_other_unit(stored, brought.bars)
        is_kept = ~brought.bars["symbol"].isin(other_unit["symbol"])
        brought = replace(brought, bars=brought.bars[is_kept].reset_index(drop=True))
    restated = restated_symbols(stored, brought.bars)
    lacking = {}  # the first session of each symbol that did not come from its start
    for symbol in restated:
        begin = min(wanted.first[symbol], wanted.asked_from.get(symbol, wanted.last))
        if begin < wanted.first[symbol]:
            lacking[symbol] = begin
    if not lacking:
        return brought, restated, stored, other_unit
    again = _ask_source(context, lacking, wanted.last, _why_stopped(brought.outcomes))
    again = without_lost_adjustments(context, stored, again)
    answered = again.outcomes.loc[again.outcomes["status"] == "ok", "symbol"]
    other_bars = brought.bars[~brought.bars["symbol"].isin(lacking)]
    whole_histories = again.bars[again.bars["symbol"].isin(answered)]
    other_outcomes = brought.outcomes[~brought.outcomes["symbol"].isin(lacking)]
    replaced = Fetched(
        pd.concat([other_bars, whole_histories], ignore_index=True),
        pd.concat([other_outcomes, again.outcomes], ignore_index=True),
    )
    return replaced, restated, stored, other_unit


def _computed_index(
    context: MarketContext, wanted: _Wanted, parts: Sequence[_Part]
) -> pd.DataFrame:
    """Return the bars that the store lacks of an index computed from its constituents.

    It goes on from its stored level, or starts anew where none is stored, the history begins
    earlier, or a whole history is fetched.
    """
    symbol = context.market.index.symbol
    first = wanted.first.get(symbol) if symbol in wanted.computed else None
    if first is None:
        return no_bars()
    with reading(context.engine) as conn:
        stored = prices.prices(conn, context.name, first, wanted.last)[list(BAR_COLUMNS)]
    frames = [part.accepted for part in parts]
    # Of a fetched and a stored bar, the fetched one stays.
    known = pd.concat([*frames, stored]).drop_duplicates(["symbol", "session"], ignore_index=True)
    stored_index = stored[stored["symbol"] == symbol].sort_values("session")
    # An index with stored bars has its `asked_from`, which the same transaction stores. `first` is
    # later only if this fetch goes on from the newest stored sessions.
    if stored_index.empty or first <= wanted.asked_from[symbol]:
        return index_of_constituents(context.market, known)
    # Start from the stored level of the first session that was fetched again, and keep the bars
    # after the last stored one.
    known = known[known["session"] >= stored_index["session"].iloc[0]]
    chained = index_of_constituents(context.market, known, level=stored_index["close"].iloc[0])
    newer: pd.DataFrame = chained[chained["session"] > stored_index["session"].iloc[-1]]
    return newer


def check_bars(context: MarketContext, bars: pd.DataFrame, last: date, market_size: int) -> Checked:
    """Check bars, and reject a symbol's first bar again if an earlier fetch rejected it.

    That fetch compared the bar with its neighbours (`NEEDS_NEIGHBOURS`). This one begins with it,
    so it would accept it and compare the next bar with a bad one. This is repeated until no symbol
    begins with such a bar.
    """
    checked = _check(context, bars, last, market_size)
    set_aside = [checked.rejected[:0]]  # an empty frame with the right columns
    rejected_before = _rejected_before(context, checked.accepted)
    while not rejected_before.empty:
        set_aside.append(rejected_before)
        known_bad = pd.MultiIndex.from_frame(pd.concat(set_aside)[["symbol", "session"]])
        bars = bars[~pd.MultiIndex.from_frame(bars[["symbol", "session"]]).isin(known_bad)]
        checked = _check(context, bars, last, market_size)
        rejected_before = _rejected_before(context, checked.accepted)
    rejected = pd.concat([checked.rejected, *set_aside], ignore_index=True)
    return Checked(checked.accepted, rejected)


def _check(context: MarketContext, bars: pd.DataFrame, last: date, market_size: int) -> Checked:
    market = context.market
    first = last if bars.empty else bars["session"].min().date()
    # The session after `last` may still be open. The check must know it, to tell a bar of it from a
    # bar on no session.
    following = next_known_session(market.calendar, last) or last
    return check(
        bars,
        sessions=sessions_between(market.calendar, first, following),
        closed_until=last,
        checks=market.checks,
        index_symbol=market.index.symbol,
        returns=market.returns,
        market_size=market_size,
    )


def _rejected_before(context: MarketContext, accepted: pd.DataFrame) -> pd.DataFrame:
    """Return the first accepted bar of each symbol that an earlier fetch rejected by a neighbour.

    Columns: symbol, session, reason, value.
    """
    first_bars = accepted.loc[accepted.groupby("symbol")["session"].idxmin(), ["symbol", "session"]]
    if first_bars.empty:
        return pd.DataFrame(columns=REJECTED)
    first = first_bars["session"].min().date()
    last = first_bars["session"].max().date()
    with reading(context.engine) as conn:
        rejected = prices.rejected_bars(conn, context.name, first, last)
    rejected = rejected[rejected["reason"].isin(NEEDS_NEIGHBOURS)]
    # A bar that several fetches rejected may have several reasons.
    rejected = rejected.drop_duplicates(["symbol", "session"])
    return first_bars.merge(rejected[REJECTED], on=["symbol", "session"])


def bars_shown_bad(bars: pd.DataFrame, rejected: pd.DataFrame) -> pd.DataFrame:
    """Return the rejected bars, perhaps stored, that only a later bar showed to be bad."""
    in_hindsight = rejected["reason"].isin(HINDSIGHT)
    reasons = rejected.loc[in_hindsight, ["symbol", "session", "reason"]]
    return bars.merge(reasons, on=["symbol", "session"])


def unadjusted_stocks(context: MarketContext, bars: pd.DataFrame) -> list[str]:
    """Return the stocks without any adjusted close, where the market's returns need one."""
    if context.market.returns == "close":
        return []
    adjusted = bars["adj_close"].notna().groupby(bars["symbol"]).any()
    return sorted(adjusted.index[~adjusted])


def stored_beside(context: MarketContext, bars: pd.DataFrame, last: date) -> pd.DataFrame:
    """Return the stored bars of the symbols of `bars`, from the first session of any to `last`."""
    if bars.empty:
        return no_bars()
    first = bars["session"].min().date()
    symbols = bars["symbol"].unique()
    with reading(context.engine) as conn:
        return prices.prices(conn, context.name, first, last, symbols=symbols)


def without_lost_adjustments(
    context: MarketContext, stored: pd.DataFrame, brought: Fetched
) -> Fetched:
    """Leave out, as `malformed`, symbols whose answer lacks the adjusted closes that the store has.

    Stored, they would turn each dividend into a fall. Nothing is left out where returns come from
    the close.
    """
    symbols = []
    if context.market.returns == "adj_close":
        symbols = unadjusted_again(stored, brought.bars)
    if not symbols:
        return brought
    outcomes = brought.outcomes
    is_left_out = outcomes["symbol"].isin(symbols)
    detail = (
        "no adjusted closes came, though the store has them, so these bars were left out; if they "
        f"are right, store them with `dtml fetch {context.market.name} --again`, with --prices "
        "FILE if the prices come from files"
    )
    return Fetched(
        bars=brought.bars[~brought.bars["symbol"].isin(symbols)].reset_index(drop=True),
        outcomes=outcomes.assign(
            status=outcomes["status"].mask(is_left_out, "malformed"),
            rows=outcomes["rows"].mask(is_left_out, 0),
            detail=outcomes["detail"].mask(is_left_out, outcomes["symbol"] + ": " + detail),
        ),
    )


def bars_of_other_unit(stored: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    """Return as rejected the bars of each symbol that come in another unit, as pence called pounds.

    Without a split, all its closes are then one power of ten of the stored ones.
    """
    found = rescaled(stored, fresh)
    bars = fresh.merge(found[found["is_unit"]], on="symbol")
    values = [
        f"close={row.close:.7g}; the closes of {row.symbol} are {row.factor:.4g} times the stored "
        "ones, and no split explains that"
        for row in bars.itertuples()
    ]
    return bars[["symbol", "session"]].assign(
        reason=OTHER_UNIT, value=pd.Series(values, index=bars.index, dtype=str)
    )


def same_bars(conn: Connection, context: MarketContext, last: date) -> pd.DataFrame:
    """Return `symbol, reason, value` of the stored stocks that have the bars of another one."""
    calendar = context.market.calendar
    recent = sessions_up_to(calendar, last, RECENT)[0].date()
    newest = prices.prices(conn, context.name, recent, last).groupby("symbol").tail(1)
    shared = newest.loc[newest.duplicated(["session", "close", "volume"], keep=False), "symbol"]
    first = sessions_up_to(calendar, last, ENOUGH + RECENT)[0].date()
    bars = prices.prices(conn, context.name, first, last, symbols=shared)
    return twin_stocks(bars, context.market.index.symbol)


def doubtful_stocks(
    context: MarketContext,
    stored: pd.DataFrame,
    accepted: pd.DataFrame,
    with_index: pd.DataFrame,
    begin: date,
) -> pd.DataFrame:
    """Return `symbol, reason, value` of stocks with doubtful dates, closes or actions.

    `stored` are the bars of the sessions fetched, `with_index` the accepted ones with the index's.
    If few bars of a stock with a new action came, its stored ones from `begin` on are added.
    Adjusted closes are judged only where returns come from them.
    """
    market = context.market
    known_actions = stored[has_actions(stored)]
    has_history = accepted["symbol"].isin(judged(accepted))
    key = ["symbol", "session"]
    known_days = pd.MultiIndex.from_frame(known_actions[key])
    is_new = ~pd.MultiIndex.from_frame(accepted[key]).isin(known_days)
    with_new_action = accepted.loc[~has_history & is_new & has_actions(accepted), "symbol"].unique()
    if not len(with_new_action):
        histories = accepted[has_history]
    else:
        new_bars = accepted[accepted["symbol"].isin(with_new_action)]
        last = new_bars["session"].max().date()
        with reading(context.engine) as conn:
            earlier = prices.prices(conn, context.name, begin, last, symbols=with_new_action)
        known = pd.concat([new_bars, earlier[list(BAR_COLUMNS)]])
        known = known.drop_duplicates(key)  # of two, the new one stays
        histories = pd.concat([accepted[has_history], known], ignore_index=True)
    scaled = rescaled(stored, accepted)
    values = [
        f"its closes are {factor:.4g} times those that were stored for the same sessions, and no "
        "split explains that"
        for factor in scaled["factor"]
    ]
    faults = [
        doubts(scaled["symbol"], RESCALED, values),
        shifted_stocks(with_index, market.index.symbol, market.returns),
        doubtful_actions(histories, market.index.symbol, market.returns),
    ]
    if market.returns == "adj_close":
        faults.append(over_corrected(with_index))
    return pd.concat(faults, ignore_index=True)


def require_sessions(context: MarketContext, bars: pd.DataFrame) -> None:
    """Raise DtmlError where `fault_of_dates` finds a fault, with what to do."""
    fault = fault_of_dates(context, bars)
    if fault is None:
        return
    market = context.market
    remedy = f"add the sessions that the calendar lacks to {data_folder() / CALENDARS}"
    if market.file is not None:
        remedy = (
            f"correct `calendar` in {settings_place(market)}, or add the sessions that the "
            "calendar lacks there, under [sessions]"
        )
    raise DtmlError(
        f"{fault}; nothing was stored: use the exchange's own dates or, if these dates are right, "
        f"{remedy}; a date with a time of day and a time zone is converted to the date in "
        f"{market.timezone}, unless every time of its column is midnight"
    )


def fault_of_dates(context: MarketContext, bars: pd.DataFrame) -> str | None:
    """Return in words that more than `OFF_CALENDAR` of a symbol's bars lie on no session, or None.

    A symbol with fewer than `ENOUGH` bars counts only if it has `ENOUGH_TO_SHIFT` or more, and
    these fit the sessions better a day later or earlier. If no symbol is found so, all bars are
    judged together: their dates are wrong if all would lie on sessions a day later, or a day
    earlier.
    """
    if bars.empty:
        return None
    counts = _counts_off_calendar(context, bars)
    is_many = counts["off"] > OFF_CALENDAR * counts["bars"]
    fits_better = counts[["a_day_on", "a_day_back"]].min(axis=1) < counts["off"]
    is_shifted = fits_better & (counts["bars"] >= ENOUGH_TO_SHIFT)
    wrong = counts[is_many & (is_shifted | (counts["bars"] >= ENOUGH))]
    if wrong.empty:
        total = counts[["bars", "off", "a_day_on", "a_day_back"]].sum()
        fits_when_moved = total[["a_day_on", "a_day_back"]].min() == 0
        is_many = total["off"] > OFF_CALENDAR * total["bars"]
        wrong = counts[counts["off"] > 0] if fits_when_moved and is_many else counts[:0]
    if wrong.empty:
        return None
    symbol = str(wrong.index[0])
    counts_of_symbol = wrong.iloc[0]
    return (
        f"{counts_of_symbol['off']:,.0f} of {counts_of_symbol['bars']:,.0f} bars of {symbol} are "
        f"on no session of {context.market.calendar}, the first on "
        f"{counts_of_symbol['first_off']:%A %Y-%m-%d} "
        f"(symbols affected: {len(wrong)}){_better_day_in_words(counts_of_symbol)}"
    )


def _counts_off_calendar(context: MarketContext, bars: pd.DataFrame) -> pd.DataFrame:
    """Count each symbol's `bars`, and those `off` all sessions, now, `a_day_on` and `a_day_back`.

    `first_off` is the first date on no session, missing if there is none.
    """
    calendar = context.market.calendar
    day = pd.Timedelta(days=1)
    known_to = pd.Timestamp(last_known_day(calendar))
    first = bars["session"].min()
    last = min(bars["session"].max() + day, known_to)
    sessions = sessions_between(calendar, first.date(), last.date())
    is_off = {}
    for name, moved in (("off", day * 0), ("a_day_on", day), ("a_day_back", -day)):
        days = bars["session"] + moved
        # Days before all bars or after the calendar's end cannot be judged: they count as sessions.
        is_off[name] = ~days.isin(sessions) & days.between(first, known_to)
    flags = pd.DataFrame(is_off).assign(bars=True)
    counts = flags.groupby(bars["symbol"]).sum()
    dates_off = bars["session"].where(is_off["off"])
    return counts.assign(first_off=dates_off.groupby(bars["symbol"]).min())


def _better_day_in_words(counts: pd.Series) -> str:
    """Return in words how many bars would lie on no session a day later or earlier, if fewer."""
    fewest = min(counts["a_day_on"], counts["a_day_back"])
    if fewest >= counts["off"]:
        return ""
    is_later = counts["a_day_on"] <= counts["a_day_back"]
    side = "later" if is_later else "earlier"
    return f"; dated a day {side}, only {fewest:,.0f} would be"


def require_dates_as_stored(
    context: MarketContext, stored: pd.DataFrame, fresh: pd.DataFrame
) -> None:
    """Raise DtmlError for fresh bars whose closes are stored for the session before or after."""
    redated = redated_symbols(stored, fresh)
    if not redated:
        return
    symbol, shift = next(iter(redated.items()))  # -1: dated a session early, 1: late
    name = f"the index {symbol}" if symbol == context.market.index.symbol else symbol
    side = "early" if shift < 0 else "late"
    neighbour = "next" if shift < 0 else "previous"
    raise DtmlError(
        f"{name} is dated 1 session {side}: its closes are those stored for the {neighbour} "
        f"session (symbols affected: {len(redated)}); nothing was stored: correct the dates or, if "
        f"the stored ones are wrong, replace them with `dtml fetch {context.market.name} --again`, "
        "with --prices FILE if the prices come from files"
    )


def require_index_in_step(context: MarketContext, accepted: pd.DataFrame) -> None:
    """Raise DtmlError where the index is dated early or late, or has the closes of a stock.

    With at most `FEW_SYMBOLS` symbols, it is compared with stored bars too; with `ENOUGH_OF_INDEX`
    or fewer bars, not at all.
    """
    index = context.market.index.symbol
    sessions = accepted.loc[accepted["symbol"] == index, "session"]
    if len(sessions) <= ENOUGH_OF_INDEX:
        return
    known = accepted
    if accepted["symbol"].nunique() <= FEW_SYMBOLS:
        with reading(context.engine) as conn:
            stored = prices.prices(conn, context.name, sessions.min().date(), sessions.max().date())
        known = pd.concat([accepted, stored[list(BAR_COLUMNS)]])
        known = known.drop_duplicates(["symbol", "session"])  # of two, the accepted one stays
    fault = index_fault(known, index, context.market.returns)
    if fault is not None:
        raise DtmlError(
            f"{fault}; nothing was stored: correct the bars of {index}, or name another index in "
            f"{settings_place(context.market)}; if the prices are files, --index takes a file of "
            "the index alone"
        )
