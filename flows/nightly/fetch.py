"""Fetch the bars that the store lacks, check them, and store them."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pandas as pd
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.rows import fetches, markets, prices
from dtml.errors import DtmlError
from dtml.prices.actions import doubtful_actions, has_actions
from dtml.prices.alignment import (
    ENOUGH,
    index_fault,
    judged,
    over_corrected,
    restated_symbols,
    shifted_stocks,
)
from dtml.prices.bars import BAR_COLUMNS, HINDSIGHT, Checked, check, no_bars
from dtml.prices.returns import index_of_constituents
from dtml.prices.sessions import next_session, sessions_between, sessions_up_to
from dtml.sources import OUTCOME_COLUMNS, Fetched
from flows.nightly.context import MarketContext

log = logging.getLogger(__name__)

REJECTED = ["symbol", "session", "reason", "value"]
FRAMES = ("rejected", "outcomes", "doubtful")
DOUBTFUL, FAILURE = ["symbol", "reason", "value"], ["symbol", "status", "detail"]
# share of a symbol's bars on no session: filled-in holidays make up to .08, a wrong time zone .2
OFF_CALENDAR = 0.1
FEW = 100  # symbols with which an index does not come to be judged
SYMBOLS_AT_ONCE = 300  # whose bars are in memory together
OVERLAP = (
    10  # stored sessions asked for again, to find restatements and to check the returns of new bars
)


@dataclass(frozen=True)
class FetchResult:
    """Hold what a fetch brought: counts of bars, and how the source answered for each symbol.

    `unadjusted` are the stocks without any adjusted close in a market whose returns are of that
    price; the close stands in. `doubtful` are stocks whose prices show a fault that no single bar
    does: symbol, reason, value in words.
    """

    asked: int = 0
    fetched: int = 0
    stored: int = 0
    rejected: pd.DataFrame = field(default_factory=partial(pd.DataFrame, columns=REJECTED))
    outcomes: pd.DataFrame = field(default_factory=partial(pd.DataFrame, columns=OUTCOME_COLUMNS))
    restated: list[str] = field(default_factory=list)
    unadjusted: list[str] = field(default_factory=list)
    doubtful: pd.DataFrame = field(default_factory=partial(pd.DataFrame, columns=DOUBTFUL))

    @classmethod
    def of(cls, parts: "Sequence[FetchResult]") -> "FetchResult":
        """Return what several fetches of different symbols brought together."""
        told = {each.name: [getattr(part, each.name) for part in parts] for each in fields(cls)}
        frames = {
            name: pd.concat(each, ignore_index=True)
            for name, each in told.items()
            if name in FRAMES
        }
        return cls(
            **{
                name: sum(each, type(each[0])())
                for name, each in told.items()
                if name not in FRAMES
            }
            | frames
        )

    @property
    def failures(self) -> pd.DataFrame:
        """Return the symbols that the source could not answer for."""
        return self.outcomes[self.outcomes["status"] != "ok"]

    @property
    def counts(self) -> dict[str, int]:
        """Return how many bars were fetched, stored and rejected."""
        return {"fetched": self.fetched, "stored": self.stored, "rejected": len(self.rejected)}


@dataclass(frozen=True)
class _Wanted:
    """Say what to ask for: the first session of each symbol, the last of all,
    and what was asked for before.
    """

    first: dict[str, date]
    last: date
    since: dict[str, date]
    made: frozenset[str]  # symbols that no source has
    held: dict[str, pd.Timestamp]  # the last session of each symbol in the store

    @property
    def asked(self) -> dict[str, date]:
        """Return the first session of each symbol that the source is asked for."""
        return {symbol: day for symbol, day in self.first.items() if symbol not in self.made}


def fetch_bars(
    context: MarketContext, as_of: date, known_at: datetime | None = None, *, whole: bool = False
) -> FetchResult:
    """Bring the store up to `as_of`, asking only for what it lacks, and record what came and what
    was rejected.

    The bars are known from the moment they are stored; a test may set `known_at`. With `whole`,
    everything that was ever asked for is asked for again, which finds bars restated long ago.

    A symbol whose adjusted prices were restated, as after a split or a dividend, is fetched again
    from its start; if that fails, none of its bars are stored, and the next fetch finds the
    restatement again.
    """
    with transaction(context.engine) as conn:
        save_universe(conn, context)
    wanted = _wanted(context, as_of, whole=whole)
    if not wanted.first:
        return FetchResult()
    if known_at is None:
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
        result = _stored(context, as_of, known_at, wanted, parts)
    log.info("%s: %d bars fetched, %d new, %d rejected", context.name, *result.counts.values())
    return result


@dataclass(frozen=True)
class _Part:
    """Some symbols' bars, fetched and checked; of several parts each waits in a
    file, so that memory holds one.
    """

    held: pd.DataFrame | Path
    fetched: FetchResult  # nothing of it stored yet
    judged: Sequence[str]
    shown_bad: (
        pd.DataFrame
    )  # bars that only later ones showed to be bad, with the reason: stored, they are withdrawn

    @property
    def accepted(self) -> pd.DataFrame:
        """Return the bars that were accepted."""
        if isinstance(self.held, pd.DataFrame):
            return self.held
        return pd.read_parquet(self.held).astype({"symbol": str, "session": "datetime64[ns]"})


def _parts(context: MarketContext, wanted: _Wanted, folder: Path) -> Iterator[_Part]:
    """Fetch and check the symbols wanted, some at a time; once a source stops
    answering, it is asked no more.
    """
    asked, stopped, index = list(wanted.asked.items()), "", no_bars()
    for number, begin in enumerate(range(0, len(asked) or 1, SYMBOLS_AT_ONCE)):
        some = dict(asked[begin : begin + SYMBOLS_AT_ONCE])
        part = _checked(context, wanted, _asked(context, some, wanted.last, stopped), index)
        if not number:
            index = part.accepted[part.accepted["symbol"] == context.market.index.symbol]
        if len(asked) > SYMBOLS_AT_ONCE:
            part.accepted.to_parquet(file := folder / f"{number}.parquet", index=False)
            part = replace(part, held=file)
        silent = part.fetched.outcomes["status"].isin(["rate_limited", "not_asked"])
        stopped = stopped or str(
            part.fetched.outcomes.loc[silent, "detail"].iloc[-1] if silent.any() else ""
        )
        yield part


def _asked(context: MarketContext, some: dict[str, date], last: date, stopped: str) -> Fetched:
    """Ask the source for some symbols, unless an earlier answer `stopped` the asking."""
    told = pd.DataFrame(
        [(symbol, "not_asked", 0, stopped) for symbol in some], columns=OUTCOME_COLUMNS
    )
    return Fetched(no_bars(), told) if stopped else context.source.fetch(some, last)


def _checked(
    context: MarketContext, wanted: _Wanted, brought: Fetched, index: pd.DataFrame
) -> _Part:
    """Check what a source brought; `index` holds the bars of the index that
    came in an earlier part.
    """
    brought, restated = _with_restated_histories(context, wanted, brought)
    checked = _checked_bars(context, brought.bars, wanted.last)
    _require_sessions(context, brought.bars, checked.rejected)
    together = pd.concat([checked.accepted, index]) if len(index) else checked.accepted
    _require_index_in_step(context, together)
    fetched = FetchResult(
        len(brought.outcomes),
        len(brought.bars),
        0,
        checked.rejected,
        brought.outcomes,
        restated,
        _unadjusted(context, checked.accepted),
        _doubtful(context, wanted, checked.accepted, together),
    )
    return _Part(
        checked.accepted,
        fetched,
        judged(checked.accepted),
        _shown_bad(brought.bars, checked.rejected),
    )


def _shown_bad(bars: pd.DataFrame, rejected: pd.DataFrame) -> pd.DataFrame:
    """Return the bars that only later ones showed to be bad, as the source has
    them, with the reason.
    """
    found = rejected.loc[rejected["reason"].isin(HINDSIGHT), ["symbol", "session", "reason"]]
    return bars.merge(found, on=["symbol", "session"])


def _stored(
    context: MarketContext,
    as_of: date,
    known_at: datetime | None,
    wanted: _Wanted,
    parts: Sequence[_Part],
) -> FetchResult:
    """Store all parts, known from one moment, or nothing."""
    result, source = FetchResult.of([part.fetched for part in parts]), context.source.name
    # A symbol without an answer, or of which a source knows nothing, is asked for as a whole again.
    answered = set(result.outcomes.loc[result.outcomes["status"] == "ok", "symbol"])
    made = _made_index(context, wanted, parts)
    answered |= set(made["symbol"])
    with transaction(context.engine) as conn:
        known_at = known_at or fetches.next_known_at(conn, context.name)
        stored = prices.append_prices(
            conn, context.name, made, source="constituents", known_at=known_at
        )
        for part in parts:
            stored += prices.append_prices(
                conn, context.name, part.accepted, source=source, known_at=known_at
            )
            prices.withdraw(conn, context.name, part.shown_bad, known_at=known_at)
            prices.record_warnings(
                conn, context.name, part.judged, part.fetched.doubtful, known_at=known_at
            )
        prices.record_rejected(
            conn, context.name, result.rejected, source=source, known_at=known_at
        )
        earlier = {
            symbol: day
            for symbol, day in wanted.first.items()
            if day < wanted.since.get(symbol, date.max)
        }
        markets.note_asked(
            conn, context.name, {symbol: earlier[symbol] for symbol in answered & earlier.keys()}
        )
        result = replace(result, stored=stored)
        told = {
            "market": context.name,
            "source": source,
            "known_at": known_at,
            "as_of": as_of,
            "asked": result.asked,
        }
        told |= {
            "restated": result.restated,
            "failures": result.failures[FAILURE].to_dict("records"),
        }
        fetches.save_fetch(conn, told | result.counts)
    return result


def _doubtful(
    context: MarketContext, wanted: _Wanted, accepted: pd.DataFrame, together: pd.DataFrame
) -> pd.DataFrame:
    """Return the stocks whose dates, adjusted closes or recorded actions look
    wrong: symbol, reason, value.
    """
    market = context.market
    histories = _histories(context, wanted, accepted)
    found = [
        shifted_stocks(together, market.index.symbol, market.returns),
        doubtful_actions(histories, market.index.symbol, market.returns),
    ]
    if market.returns == "adj_close":
        found.append(over_corrected(together))
    return pd.concat(found, ignore_index=True)


def _histories(context: MarketContext, wanted: _Wanted, accepted: pd.DataFrame) -> pd.DataFrame:
    """Return the bars of the stocks that come with a history, and of those with
    a new split or dividend.
    """
    # Of the latter a night fetches too few to know an ordinary day by: the store has the others.
    whole = accepted["symbol"].isin(judged(accepted))
    newest = pd.to_datetime(accepted["symbol"].map(wanted.held))
    is_new = newest.isna() | (accepted["session"] > newest)
    acting = accepted.loc[~whole & is_new & has_actions(accepted), "symbol"].unique()
    if not len(acting):
        return accepted[whole]
    few = accepted[accepted["symbol"].isin(acting)]
    with reading(context.engine) as conn:
        begin = history_start(context, few["session"].min().date())
        stored = prices.prices(conn, context.name, begin, wanted.last, symbols=acting)
    known = pd.concat([few, stored[list(BAR_COLUMNS)]]).drop_duplicates(["symbol", "session"])
    return pd.concat([accepted[whole], known], ignore_index=True)


def _unadjusted(context: MarketContext, bars: pd.DataFrame) -> list[str]:
    if context.market.returns == "close":
        return []
    adjusted = bars["adj_close"].notna().groupby(bars["symbol"]).any()
    return sorted(adjusted.index[~adjusted])


def history_start(context: MarketContext, as_of: date) -> date:
    """Return the first session that a training at `as_of` may read."""
    return sessions_up_to(context.market.calendar, as_of, context.experiment.history)[0].date()


def save_universe(conn: Connection, context: MarketContext) -> None:
    """Record the market's index and stocks, and when each was a constituent."""
    market = context.market
    if market.file is not None:
        markets.save_file(
            conn, market.name, str(market.file[0]), market.file[1], saved_at=datetime.now(UTC)
        )
    columns = ["symbol", "source_symbol", "name", "sector", "valid_from", "valid_to"]
    listed = [
        (c.symbol, c.source_symbol, c.name, c.sector, c.since, c.until) for c in market.constituents
    ]
    stays = pd.DataFrame(listed, columns=columns)
    stocks = stays[columns[:4]].drop_duplicates("symbol").assign(kind="stock")
    index = pd.DataFrame(
        [(market.index.symbol, market.index.source_symbol, market.index.name)], columns=columns[:3]
    )
    named = pd.concat([stocks, index.assign(kind="index", sector=None)], ignore_index=True)
    markets.save_instruments(conn, market.name, named)
    said_by = market.facts[0] if market.facts else f"the file of market {market.name}"
    stays = stays.assign(source=said_by).astype(
        {"valid_from": "datetime64[ns]", "valid_to": "datetime64[ns]"}
    )
    markets.save_memberships(conn, market.name, stays)


def _wanted(context: MarketContext, as_of: date, *, whole: bool) -> _Wanted:
    """Return what the store lacks up to `as_of`: the newest sessions, and
    earlier ones that were never asked for.
    """
    # With `whole`, also everything that it holds.
    with reading(context.engine) as conn:
        stored = prices.last_sessions(conn, context.name)
        asked = markets.instruments(conn, context.name).set_index("symbol")["asked_from"].dropna()
    start = history_start(context, as_of)
    since = {str(symbol): day.date() for symbol, day in asked.items()}
    index = context.market.index
    symbols, made = (
        (index.symbol, *context.market.symbols),
        frozenset([index.symbol] * index.of_constituents),
    )
    first, last = {}, as_of
    held = {str(symbol): session for symbol, session in stored.items()}
    if whole:  # sessions after `as_of` too: a restatement changes them all
        first = {symbol: min(start, since.get(symbol, start)) for symbol in symbols}
        last = max([as_of, *(day.date() for symbol, day in stored.items() if symbol in first)])
        return _Wanted(first, last, since, made, held)
    begun = min([start, *since.values()])  # a stock without bars begins where the market did
    for symbol in symbols:
        newest = stored.get(symbol)
        if newest is None or symbol not in since or start < since[symbol]:
            first[symbol] = begun if newest is None else start
            last = max(last, since.get(symbol, as_of))  # no hole before what is stored
        elif newest.date() < as_of:
            # No hole after it either.
            first[symbol] = sessions_up_to(context.market.calendar, newest.date(), OVERLAP)[
                0
            ].date()
    return _Wanted(first, last, since, made, held)


def _with_restated_histories(
    context: MarketContext, wanted: _Wanted, brought: Fetched
) -> tuple[Fetched, list[str]]:
    """Replace the bars of restated symbols by their whole history, or by
    nothing when it does not come.
    """
    if brought.bars.empty:
        return brought, []
    with reading(context.engine) as conn:
        first, symbols = brought.bars["session"].min().date(), brought.bars["symbol"].unique()
        stored = prices.prices(conn, context.name, first, wanted.last, symbols=symbols)
    restated = restated_symbols(stored, brought.bars)
    if not restated:
        return brought, []
    begun = {
        symbol: min(wanted.first[symbol], wanted.since.get(symbol, wanted.last))
        for symbol in restated
    }
    lacking = {symbol: day for symbol, day in begun.items() if day < wanted.first[symbol]}
    if not lacking:
        return brought, restated
    again = context.source.fetch(lacking, wanted.last)
    whole = again.outcomes.loc[again.outcomes["status"] == "ok", "symbol"]
    kept = brought.bars[~brought.bars["symbol"].isin(lacking)]
    bars = pd.concat([kept, again.bars[again.bars["symbol"].isin(whole)]], ignore_index=True)
    others = brought.outcomes[~brought.outcomes["symbol"].isin(lacking)]
    return Fetched(bars, pd.concat([others, again.outcomes], ignore_index=True)), restated


def _made_index(context: MarketContext, wanted: _Wanted, parts: Sequence[_Part]) -> pd.DataFrame:
    """Return the bars of an index of constituents that the store lacks, chained
    to the last one that it holds.
    """
    # A history that begins earlier than before, or that is asked for as a whole, gets a new chain
    # from its start.
    symbol = context.market.index.symbol
    first = wanted.first.get(symbol) if symbol in wanted.made else None
    if first is None:
        return no_bars()
    with reading(context.engine) as conn:
        stored = prices.prices(conn, context.name, first, wanted.last)[list(BAR_COLUMNS)]
    accepted = (part.accepted for part in parts)
    known = pd.concat([*accepted, stored]).drop_duplicates(["symbol", "session"])
    held = stored[stored["symbol"] == symbol].sort_values("session")
    if held.empty or first <= wanted.since[symbol]:
        return index_of_constituents(context.market, known)
    known = known[known["session"] >= held["session"].iloc[0]]
    made = index_of_constituents(context.market, known, level=held["close"].iloc[0])
    newer: pd.DataFrame = made[made["session"] > held["session"].iloc[-1]]
    return newer


def _check(context: MarketContext, bars: pd.DataFrame, last: date) -> Checked:
    first = last if bars.empty else bars["session"].min().date()
    return check(
        bars,
        sessions=sessions_between(
            context.market.calendar, first, next_session(context.market.calendar, last)
        ),
        closed_until=last,
        checks=context.market.checks,
        index_symbol=context.market.index.symbol,
        returns=context.market.returns,
        market_size=len(context.market.symbols),
    )


def _checked_bars(context: MarketContext, bars: pd.DataFrame, last: date) -> Checked:
    """Check bars, and reject the first of each symbol again that an earlier
    fetch compared with the one before it.
    """
    # Here nothing lies before it: it would pass, and the next bar would be compared with it.
    checked = _check(context, bars, last)
    set_aside = [checked.rejected[:0]]
    while not (again := _rejected_before(context, checked.accepted)).empty:
        set_aside.append(again)
        known = pd.MultiIndex.from_frame(pd.concat(set_aside)[["symbol", "session"]])
        bars = bars[~pd.MultiIndex.from_frame(bars[["symbol", "session"]]).isin(known)]
        checked = _check(context, bars, last)
    return Checked(checked.accepted, pd.concat([checked.rejected, *set_aside], ignore_index=True))


def _rejected_before(context: MarketContext, accepted: pd.DataFrame) -> pd.DataFrame:
    """Return the first accepted bars of symbols that an earlier fetch rejected:
    symbol, session, reason, value.
    """
    opening = accepted.loc[accepted.groupby("symbol")["session"].idxmin(), ["symbol", "session"]]
    if opening.empty:
        return pd.DataFrame(columns=REJECTED)
    with reading(context.engine) as conn:
        span = opening["session"].min().date(), opening["session"].max().date()
        known = prices.rejected_bars(conn, context.name, *span)
    known = known[known["reason"].isin(["unexplained_return", "stale_day", *HINDSIGHT])]
    known = known.drop_duplicates(["symbol", "session"])
    return opening.merge(known[["symbol", "session", "reason", "value"]], on=["symbol", "session"])


def _require_sessions(context: MarketContext, bars: pd.DataFrame, rejected: pd.DataFrame) -> None:
    """Raise DtmlError when too many bars of a symbol lie on no session: its
    dates are shifted, or of elsewhere.
    """
    off, market = rejected[rejected["reason"] == "not_a_session"], context.market
    counts = pd.DataFrame(
        {"bars": bars["symbol"].value_counts(), "off": off["symbol"].value_counts()}
    )
    wrong = counts[(counts["bars"] >= ENOUGH) & (counts["off"] > OFF_CALENDAR * counts["bars"])]
    if wrong.empty:
        return
    symbol, found = str(wrong.index[0]), wrong.iloc[0]
    first = off.loc[off["symbol"] == symbol, "session"].min()
    raise DtmlError(
        f"{found['off']:,.0f} of {found['bars']:,.0f} bars of {symbol} lie on no session of "
        f"{market.calendar}, the "
        f"first on {first:%A %Y-%m-%d} (symbols like this: {len(wrong)}): give the dates of the "
        "exchange; a date with "
        f"a time zone is taken as an instant and becomes the date in {market.timezone}"
    )


def _require_index_in_step(context: MarketContext, accepted: pd.DataFrame) -> None:
    """Raise DtmlError for an index of other dates than its stocks, when enough
    of its bars come to judge it.
    """
    # Where few stocks come with it, the others are read from the store.
    index = context.market.index.symbol
    sessions = accepted.loc[accepted["symbol"] == index, "session"]
    if len(sessions) <= ENOUGH:
        return
    known = accepted
    if accepted["symbol"].nunique() <= FEW:
        with reading(context.engine) as conn:
            stored = prices.prices(conn, context.name, sessions.min().date(), sessions.max().date())
        known = pd.concat([accepted, stored[list(BAR_COLUMNS)]]).drop_duplicates(
            ["symbol", "session"]
        )
    if (fault := index_fault(known, index, context.market.returns)) is not None:
        raise DtmlError(
            f"{fault}; nothing was stored: correct the index, or name its own file with --index"
        )
