"""Compare the bars that a fetch has stored with those of the market's second source.

What differs is stored and said; nothing is refused, and a source that fails ends no night.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, TypeVar

import pandas as pd

from db.engine import reading, transaction
from db.read import read
from db.rows import fetches, prices
from dtml.errors import DtmlError, one_line
from dtml.markets.definition import SecondSource
from dtml.pages.figures import counted, records
from dtml.pages.second_source import comparison_words, difference_words, differences
from dtml.prices.alignment import redated_symbols
from dtml.prices.disagreement import BAR, Comparison, compare
from dtml.prices.sessions import sessions_between, sessions_up_to
from dtml.sources import Fetched
from dtml.sources.second import open_second_source
from flows.nightly.context import MarketContext
from flows.nightly.fetch import (
    FAILURE,
    OVERLAP,
    SYMBOLS_AT_ONCE,
    FetchResult,
    fault_of_dates,
    fetch_bars,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
ANSWERED = ("ok", "no_data")  # statuses after which a missing bar is one that a source lacks
LONGEST_FAILURE = 500  # characters: room for what to do, with which most messages end
WRONG_DATES = (
    "correct the dates of that source, or name another second_source.source in the market's file"
)


class SecondSourceError(DtmlError):
    """Say why the bars of a second source could not be compared."""


@dataclass
class _Found:
    """What a comparison has found so far, in batches of symbols.

    `unanswered` have `FAILURE`; `failure` says why it ended early or found nothing.
    """

    parts: list[Comparison] = field(default_factory=list)
    unanswered: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None


def fetch_and_compare(context: MarketContext, as_of: date, *, whole: bool = False) -> FetchResult:
    """Fetch as `fetch_bars` does, then compare with the market's second source if it has one."""
    fetched = fetch_bars(context, as_of, whole=whole)
    compare_sources(context, as_of, fetched)
    return fetched


def compare_sources(context: MarketContext, as_of: date, fetched: FetchResult) -> None:
    """Compare the stored bars up to `as_of` with the second source's; store and say what differs.

    Does nothing without a second source. Replaces an earlier comparison up to the same session.
    """
    second = context.market.second_source
    if second is None:
        return
    first_sessions = _first_sessions(context, as_of, fetched)
    if not first_sessions:
        return
    found = _compare(context, second, as_of, first_sessions)
    differing = pd.concat([pd.DataFrame(), *(part.differing for part in found.parts)])
    row: dict[str, Any] = {
        "market": context.name,
        "source": second.source,
        "known_at": datetime.now(UTC),
        "as_of": as_of,
        "symbols": sum(len(part.symbols) for part in found.parts),
        "bars": sum(part.bars for part in found.parts),
        "differing": len(differing),
        "failures": found.unanswered,
        "failure": found.failure,
    }
    with transaction(context.engine) as conn:
        fetches.save_comparison(conn, row, differing)
    words = comparison_words(row)
    if found.failure is None:
        log.info("%s: second source: %s", context.name, words)
    else:
        log.warning("%s: second source: %s; the next fetch compares again", context.name, words)
    for sentence in difference_words(differences(differing, row["symbols"])):
        log.warning("%s: %s", context.name, sentence)


def words_of_lost_bars(context: MarketContext, session: date) -> str:
    """Say, in half a sentence, that the second source has bars that the store lacks."""
    with reading(context.engine) as conn:
        lost = read(
            conn,
            "price_disagreement",
            market=context.name,
            as_of=session,
            session=session,
            field=BAR,
            first_value=None,
        )
    if lost.empty:
        return ""
    source = lost["source"].iloc[0]
    symbols = counted(len(lost), "symbol")
    return f"; the second source, {source}, has that session for {symbols}"


def _first_sessions(context: MarketContext, as_of: date, fetched: FetchResult) -> dict[str, date]:
    """Return the first session to compare of each symbol: that of the fetch, or of OVERLAP + 1
    sessions.

    Unanswered symbols and a computed index are left out.
    """
    market = context.market
    usual = sessions_up_to(market.calendar, as_of, OVERLAP + 1)[0].date()
    is_unanswered = ~fetched.outcomes["status"].isin(ANSWERED)
    left_out = set(fetched.outcomes.loc[is_unanswered, "symbol"])
    symbols = market.symbols
    if not market.index.of_constituents:
        symbols = (market.index.symbol, *symbols)
    first = {symbol: fetched.first.get(symbol, usual) for symbol in symbols}
    return {symbol: day for symbol, day in first.items() if symbol not in left_out and day <= as_of}


def _compare(
    context: MarketContext, second: SecondSource, as_of: date, first_sessions: Mapping[str, date]
) -> _Found:
    """Ask the second source for some symbols at a time, until an error or a limit, and compare."""
    found = _Found()
    clock = _Clock(second.seconds)
    waiting = list(first_sessions)
    asked: list[str] = []
    try:
        source = clock.within(lambda: open_second_source(context.market))
        has = clock.within(source.fields)
        fields = [name for name in second.fields if name in has]
        while waiting:
            asked, waiting = waiting[:SYMBOLS_AT_ONCE], waiting[SYMBOLS_AT_ONCE:]
            first = {symbol: first_sessions[symbol] for symbol in asked}
            answer = clock.within(partial(source.fetch, first, as_of))
            found.parts.append(_compare_batch(context, fields, as_of, first, answer))
            unanswered = answer.outcomes.loc[answer.outcomes["status"] != "ok", FAILURE]
            found.unanswered += records(unanswered)
            asked = []
            if answer.outcomes["status"].isin(["rate_limited", "not_asked"]).any():
                break
    except SecondSourceError as error:
        found.failure = str(error)
    if asked or found.parts:  # else the source failed before it was asked, which `failure` says
        found.unanswered += _failures(asked, "unreachable", found.failure)
        found.unanswered += _failures(waiting, "not_asked", "the comparison had ended")
    if found.failure is None and not any(part.symbols for part in found.parts):
        found.failure = _why_nothing(found.unanswered, len(first_sessions))
    return found


def _failures(symbols: Sequence[str], status: str, detail: str | None) -> list[dict[str, Any]]:
    return [dict(zip(FAILURE, (symbol, status, detail), strict=True)) for symbol in symbols]


def _compare_batch(
    context: MarketContext,
    fields: Sequence[str],
    as_of: date,
    first: Mapping[str, date],
    answer: Fetched,
) -> Comparison:
    begin = min(first.values())
    with reading(context.engine) as conn:
        stored = prices.prices(conn, context.name, begin, as_of, symbols=list(first))
    fault = fault_of_dates(context, answer.bars) if len(answer.bars) else None
    if fault is not None:
        raise SecondSourceError(f"{_one_line(fault)}: {WRONG_DATES}")
    redated = redated_symbols(stored, answer.bars)
    if redated:
        symbol, shift = next(iter(redated.items()))  # -1: dated a session early, 1: late
        side = "early" if shift < 0 else "late"
        count = sum(other == shift for other in redated.values())
        whom = symbol if count == 1 else f"{count:,} symbols, such as {symbol}"
        raise SecondSourceError(f"its dates are a session {side} for {whom}: {WRONG_DATES}")
    return compare(
        stored,
        answer.bars,
        sessions=sessions_between(context.market.calendar, begin, as_of),
        fields=fields,
        index_symbol=context.market.index.symbol,
    )


def _why_nothing(unanswered: Sequence[Mapping[str, Any]], asked: int) -> str:
    if not unanswered:
        return (
            f"it has no close on a session of the store for any of {asked:,} symbols: "
            "check the dates and the closes of its bars"
        )
    first = unanswered[0]
    detail = f" ({first['detail']})" if first["detail"] else ""
    return _one_line(
        f"no answer for {len(unanswered):,} of {asked:,} symbols: {first['status']}{detail}"
    )


def _one_line(message: object) -> str:
    words = one_line(message)
    return words if len(words) <= LONGEST_FAILURE else f"{words[: LONGEST_FAILURE - 3]}..."


class _Clock:
    """Give up work of the second source once its time is over; its thread goes on unwaited for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    def within(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; raise SecondSourceError where it fails or takes too long."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:  # noqa: BLE001 - no failure of another source ends a night
                answer.set_exception(error)

        threading.Thread(target=run, name="second-source", daemon=True).start()
        try:
            return answer.result(timeout=max(0, self._ends - time.monotonic()))
        except Exception as error:
            if not answer.done():
                raise SecondSourceError(
                    f"it took longer than {self._seconds:g} s in all; if the source is slow, raise "
                    "second_source.seconds in the market's file"
                ) from None
            is_expected = isinstance(error, DtmlError | OSError)
            message = error if is_expected else f"{type(error).__name__}: {error}"
            raise SecondSourceError(_one_line(message)) from error
