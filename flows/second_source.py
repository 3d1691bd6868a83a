"""Compare the bars that a fetch has stored with those of the market's second source.

What differs is stored and said. Nothing is refused for it, and a second source that fails, hangs or
is empty ends no night.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from typing import Any, TypeVar

import pandas as pd
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.rows import fetches, prices
from db.save import save
from dtml.errors import DtmlError
from dtml.markets.definition import SecondSource
from dtml.pages.second_source import comparison_words, difference_words
from dtml.prices.alignment import redated_symbols
from dtml.prices.bars import BAR_COLUMNS, bars_frame
from dtml.prices.disagreement import BAR, Comparison, compare
from dtml.prices.sessions import sessions_between, sessions_up_to
from dtml.sources import OUTCOME_COLUMNS, Fetched, Source
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
# Sessions in which values that differ are compared again every night, to see whether they agree by
# now. Older ones are compared when the source restates the stock, and by `dtml fetch --again`.
LOOK_BACK = 64
ANSWERED = ("ok", "no_data")  # statuses after which a missing bar is one that a source lacks
LONGEST_FAILURE = 500  # characters: room for what to do, with which most messages end
WRONG_DATES = (
    "correct the dates of that source, or name another second_source.source in the market's file"
)


class SecondSourceError(DtmlError):
    """Say why the bars of a second source could not be compared."""


@dataclass
class _Found:
    """What a comparison has found so far, and why it failed or ended early.

    `parts` has an item for each batch of symbols that was compared, and `outcomes` frames with the
    second source's status for each symbol (`OUTCOME_COLUMNS`). `failure` is None if none occurred.
    """

    parts: list[Comparison] = field(default_factory=list)
    outcomes: list[pd.DataFrame] = field(default_factory=list)
    failure: str | None = None

    @property
    def symbol_count(self) -> int:
        """Return how many symbols were compared."""
        return sum(len(part.symbols) for part in self.parts)

    def failures(self) -> pd.DataFrame:
        """Return the symbols that the second source did not answer: symbol, status, detail."""
        if not self.outcomes:
            return pd.DataFrame(columns=FAILURE)
        outcomes = pd.concat(self.outcomes, ignore_index=True)
        return outcomes.loc[outcomes["status"] != "ok", FAILURE]


def fetch_and_compare(context: MarketContext, as_of: date, *, whole: bool = False) -> FetchResult:
    """Fetch as `fetch_bars` does, then compare with the market's second source if it has one."""
    fetched = fetch_bars(context, as_of, whole=whole)
    compare_sources(context, as_of, fetched)
    return fetched


def compare_sources(context: MarketContext, as_of: date, fetched: FetchResult) -> None:
    """Compare the stored bars up to `as_of` with the second source's; store and say what differs.

    Does nothing for a market without a second source, or if no symbol is left to compare. The
    sessions of a symbol are those that the fetch asked for. Where it asked for none, they are the
    last OVERLAP + 1, for which a night asks as a rule: OVERLAP stored ones and a new one. They
    begin earlier where values that differed before are compared again (`_first_sessions`). A symbol
    that the first source did not answer is left out: the store lacks its bars for another reason. A
    second comparison up to the same session that finds nothing new, and fails for the same symbols
    and reasons, adds no row (`_is_same`); what the first one found is said again.
    """
    second = context.market.second_source
    if second is None:
        return
    with reading(context.engine) as conn:
        differing = fetches.disagreements(conn, context.name, last=as_of)
    first_sessions = _first_sessions(context, as_of, fetched, differing)
    if not first_sessions:
        return
    found = _compare(context, second, as_of, first_sessions, differing)
    with transaction(context.engine) as conn:
        row = _store(conn, context.name, second.source, as_of, found)
        newly_found = fetches.disagreements_found(conn, context.name, row["known_at"])
    level = logging.INFO if row["failure"] is None else logging.WARNING
    words = comparison_words(row)
    if row["failure"] is not None:
        words = f"{words}; the next fetch compares again"
    log.log(level, "%s: second source: %s", context.name, words)
    for sentence in difference_words(newly_found, row["symbols"]):
        log.warning("%s: %s", context.name, sentence)
    if row["settled"]:
        log.info("%s: %d values agree with the second source again", context.name, row["settled"])


def words_of_lost_bars(context: MarketContext, session: date) -> str:
    """Say that the second source has bars of a session that the store lacks; empty if it has none.

    The text continues a sentence.
    """
    if context.market.second_source is None:
        return ""
    with reading(context.engine) as conn:
        rows = fetches.disagreements(conn, context.name, session, session)
    lost = rows[(rows["field"] == BAR) & rows["first_value"].isna()]
    if lost.empty:
        return ""
    source = context.market.second_source.source
    noun = "symbol" if len(lost) == 1 else "symbols"
    return f"; the second source, {source}, has that session for {len(lost):,} {noun}"


def page_words(conn: Connection, market: str, since: date, as_of: date) -> list[str]:
    """Return what the page of a night says of the second source; empty without a comparison.

    The comparison is the night's own or, where it has none, that of a later night. The sentences
    are about sessions since..as_of, with what is known of them now.
    """
    comparison = fetches.comparison(conn, market, since=as_of)
    if comparison is None:
        return []
    rows = fetches.disagreements(conn, market, since, as_of)
    sentences = difference_words(rows, comparison["symbols"])
    return [comparison_words(comparison), *sentences]


def _first_sessions(
    context: MarketContext, as_of: date, fetched: FetchResult, differing: pd.DataFrame
) -> dict[str, date]:
    """Return the first session to compare of each symbol.

    `differing` are the values that differed so far. Those of the last LOOK_BACK sessions, and all
    those of stocks that the fetch found restated, are compared again. A symbol that the first
    source did not answer, one that the fetch asked for only after `as_of`, and an index computed
    from the constituents are left out.
    """
    market = context.market
    usual_first = sessions_up_to(market.calendar, as_of, OVERLAP + 1)[0].date()
    look_back = sessions_up_to(market.calendar, as_of, LOOK_BACK)[0]
    is_recent = differing["session"] >= look_back
    is_restated = differing["symbol"].isin(fetched.restated)
    compared_again = differing[is_recent | is_restated]
    earliest = compared_again.groupby("symbol")["session"].min()
    # An adjusted close is compared by its change from the session before. And a bar that neither
    # source has any more is settled only if one of them has an earlier bar: otherwise a
    # disagreement about it that is older than OVERLAP would stay open.
    is_of_two_sessions = compared_again["field"].isin(["adj_close", BAR])
    needs_one_more = set(compared_again.loc[is_of_two_sessions, "symbol"])
    is_unanswered = ~fetched.outcomes["status"].isin(ANSWERED)
    left_out = set(fetched.outcomes.loc[is_unanswered, "symbol"])
    if market.index.of_constituents:
        left_out.add(market.index.symbol)  # no source has it
    first_sessions = {}
    for symbol in (market.index.symbol, *market.symbols):
        first = fetched.first.get(symbol, usual_first)
        if symbol in earliest.index:
            begin = earliest[symbol].date()
            session_count = 2 if symbol in needs_one_more else 1
            first = min(first, sessions_up_to(market.calendar, begin, session_count)[0].date())
        if symbol not in left_out and first <= as_of:
            first_sessions[symbol] = first
    return first_sessions


def _compare(
    context: MarketContext,
    second: SecondSource,
    as_of: date,
    first_sessions: Mapping[str, date],
    differing: pd.DataFrame,
) -> _Found:
    """Ask the second source for some symbols at a time, and compare what it answers.

    `first_sessions` has the first session to compare of each symbol, and `differing` the values
    that differed before. An error or a limit of the source ends the comparison; what was found by
    then is kept.
    """
    found = _Found()
    clock = _Clock(second.seconds)
    # `_batches` takes its symbols from this iterator: those left in it at the end were not asked.
    symbols = iter(first_sessions)
    batch: Mapping[str, date] = {}  # in progress: the first session of each of its symbols
    try:
        source = clock.within(lambda: open_second_source(context.market))
        fields_of_source = clock.within(source.fields)
        fields = tuple(name for name in second.fields if name in fields_of_source)
        for batch in _batches(symbols, first_sessions):
            answer = clock.within(_asking(source, batch, as_of))
            found.outcomes.append(answer.outcomes)
            found.parts.append(_compare_batch(context, fields, as_of, batch, answer, differing))
            if answer.outcomes["status"].isin(["rate_limited", "not_asked"]).any():
                break
    except SecondSourceError as error:
        found.failure = str(error)
        answered = {symbol for outcomes in found.outcomes for symbol in outcomes["symbol"]}
        rows = [
            (symbol, "unreachable", 0, found.failure) for symbol in batch if symbol not in answered
        ]
        if rows:
            found.outcomes.append(pd.DataFrame(rows, columns=list(OUTCOME_COLUMNS)))
    not_asked = [(symbol, "not_asked", 0, "the comparison had ended") for symbol in symbols]
    # Without any outcome the source failed before the first batch: `failure` says so for all.
    if not_asked and found.outcomes:
        found.outcomes.append(pd.DataFrame(not_asked, columns=list(OUTCOME_COLUMNS)))
    if found.failure is None and not found.symbol_count:
        found.failure = _why_nothing(found.failures(), len(first_sessions))
    return found


def _batches(
    symbols: Iterator[str], first_sessions: Mapping[str, date]
) -> Iterator[dict[str, date]]:
    while batch := list(islice(symbols, SYMBOLS_AT_ONCE)):
        yield {symbol: first_sessions[symbol] for symbol in batch}


def _asking(source: Source, first: Mapping[str, date], last: date) -> Callable[[], Fetched]:
    """Return a function that asks a source, and brings its bars into the types of a bars frame.

    The function raises SecondSourceError for an answer that lacks a column.
    """

    def ask() -> Fetched:
        answer = source.fetch(first, last)
        lacking = {*BAR_COLUMNS, *OUTCOME_COLUMNS} - {*answer.bars, *answer.outcomes}
        if lacking:
            raise SecondSourceError(
                f"its answer lacks {', '.join(sorted(lacking))}, which is a fault of the source: "
                "name another second_source.source in the market's file"
            )
        return Fetched(bars_frame(answer.bars), answer.outcomes)

    return ask


def _compare_batch(
    context: MarketContext,
    fields: Sequence[str],
    as_of: date,
    batch: Mapping[str, date],
    answer: Fetched,
    differing: pd.DataFrame,
) -> Comparison:
    begin = min(batch.values())
    with reading(context.engine) as conn:
        stored = prices.prices(conn, context.name, begin, as_of, symbols=list(batch))
    if len(answer.bars):
        fault = fault_of_dates(context, answer.bars)
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
        before=differing[differing["symbol"].isin(list(batch))],
        sessions=sessions_between(context.market.calendar, begin, as_of),
        fields=fields,
        index_symbol=context.market.index.symbol,
    )


def _why_nothing(failures: pd.DataFrame, asked: int) -> str:
    if failures.empty:
        return (
            f"it has no close on a session of the store for any of {asked:,} symbols: "
            "check the dates and the closes of its bars"
        )
    first = failures.iloc[0]
    detail = f" ({first['detail']})" if first["detail"] else ""
    return _one_line(
        f"no answer for {len(failures):,} of {asked:,} symbols: {first['status']}{detail}"
    )


def _one_line(message: object) -> str:
    words = " ".join(str(message).split())
    return words if len(words) <= LONGEST_FAILURE else f"{words[: LONGEST_FAILURE - 3]}..."


class _Clock:
    """Give up work of the second source once its time is over.

    The work runs in a thread, which goes on without anybody waiting for it: nothing can end it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    def within(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; raise SecondSourceError where it fails or takes too long."""
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((work(), None))
            except Exception as error:  # noqa: BLE001 - no failure of another source ends a night
                answers.put((None, error))

        threading.Thread(target=run, name="second-source", daemon=True).start()
        try:
            answer, error = answers.get(timeout=max(0, self._ends - time.monotonic()))
        except queue.Empty:
            raise SecondSourceError(
                f"it took longer than {self._seconds:g} s in all; if the source is slow, raise "
                "second_source.seconds in the market's file"
            ) from None
        if error is not None:
            is_expected = isinstance(error, DtmlError | OSError)
            message = error if is_expected else f"{type(error).__name__}: {error}"
            raise SecondSourceError(_one_line(message)) from error
        result: T = answer
        return result


def _store(
    conn: Connection, market: str, source: str, as_of: date, found: _Found
) -> dict[str, Any]:
    """Store what a comparison found; return its row of price_comparison.

    Where it found nothing new and is the same as the comparison before (`_is_same`), no row is
    added and the row of the one before is returned.
    """
    known_at = fetches.next_compared_at(conn, market)
    differing = _joined([part.differing for part in found.parts])
    agreeing = _joined([part.agreeing for part in found.parts])
    new_count = fetches.append_disagreements(
        conn,
        market,
        differing.assign(settled_by=None),  # they differ still
        source=source,
        known_at=known_at,
    )
    settled_count = fetches.append_disagreements(
        conn, market, agreeing, source=source, known_at=known_at
    )
    row = {
        "market": market,
        "source": source,
        "known_at": known_at,
        "as_of": as_of,
        "symbols": found.symbol_count,
        "bars": sum(part.bars for part in found.parts),
        "differing": len(differing),
        "found": new_count,
        "settled": settled_count,
        "failures": found.failures().to_dict("records"),
        "failure": found.failure,
    }
    last = fetches.comparison(conn, market)
    has_news = new_count > 0 or settled_count > 0
    if last is not None and not has_news and _is_same(last, row):
        return last
    save(conn, "price_comparison", row)
    return row


def _is_same(last: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    names = ("as_of", "source", "failures", "failure")
    return all(last[name] == row[name] for name in names)


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()
