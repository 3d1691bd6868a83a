"""Read what the code of a feed returns, and refuse what is no table of bars.

This runs in the feed's process. Nothing is repaired or guessed: a session with a time of day may be
another day on the exchange, and a symbol that became a number has lost its zeros.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, get_args

import numpy as np
import pandas as pd

from dtml.markets.definition import is_symbol
from dtml.prices.bars import BAR_COLUMNS, bars_frame
from dtml.sources import OUTCOME_COLUMNS, Fetched, Status
from dtml.sources.own_feed.code import FeedError

REQUIRED = ("symbol", "session", "close")
NUMBERS = BAR_COLUMNS[2:]
COLUMN_WORDS = (
    "symbol, session, close and, if known, open, high, low, adj_close, volume, dividend and split"
)
# What pandas calls a column of these values, which it would read as nanoseconds since 1970.
NO_DATES = ("integer", "floating", "mixed-integer", "mixed-integer-float", "decimal", "boolean")


def fetched_of(answer: object, first: Mapping[str, date], last: date) -> Fetched:
    """Return what the feed's `fetch` answered, with an outcome for each symbol of `first`.

    The answer is a `Fetched`, or a table of bars alone, whose symbols without a row are `no_data`.
    Bars before a symbol's first session, and bars of other symbols, are dropped. Those after `last`
    stay: for them `OwnFeed.fetch` refuses the feed. Raises FeedError for anything else.
    """
    table = answer.bars if isinstance(answer, Fetched) else answer
    bars = bars_of(table)

    def missing(symbol: str) -> str:
        return f"no bar of {symbol} from {first[symbol]} to {last}"

    fetched = Fetched.of(bars, first, missing)
    if not isinstance(answer, Fetched):
        return fetched
    return Fetched(fetched.bars, _outcomes(answer.outcomes, first, fetched))


def bars_of(table: object) -> pd.DataFrame:
    """Return a table of a feed as a bars frame; columns that it lacks are NaN, others are dropped.

    Raises FeedError where it is no table of bars, naming the column and, if one shows it, a value.
    """
    if not isinstance(table, pd.DataFrame):
        raise FeedError(
            f"fetch returned {_kind(table)}: return a pandas DataFrame with the columns "
            f"{COLUMN_WORDS}"
        )
    missing = [name for name in REQUIRED if name not in table]
    if missing:
        raise FeedError(
            f"fetch returned a table without {' and '.join(missing)}; it has "
            f"{', '.join(map(str, table.columns)) or 'no column'}: name its columns {COLUMN_WORDS}"
        )
    if not table.columns.is_unique:
        repeated = table.columns[table.columns.duplicated()][0]
        raise FeedError(
            f"fetch returned a table with two columns named {repeated!s}: rename one of them"
        )
    rows = table.reset_index(drop=True)
    columns = {"symbol": _symbols(rows["symbol"]), "session": _sessions(rows)}
    for name in NUMBERS:
        if name in rows:
            columns[name] = _numbers(rows, name)
    return bars_frame(pd.DataFrame(columns))


def stocks_of(answer: object) -> list[str] | None:
    """Return the answer of the feed's `symbols`; raise FeedError where it is no list of symbols."""
    if answer is None:
        return None
    if isinstance(answer, str) or not isinstance(answer, list | tuple | pd.Index | pd.Series):
        raise FeedError(f"symbols returned {_kind(answer)}: return a list of strings, or None")
    symbols = list(answer)
    counts = Counter(symbols)
    for symbol in symbols:
        if not isinstance(symbol, str) or not is_symbol(symbol):
            raise FeedError(
                f"symbols returned {symbol!r}, which is not a symbol: return strings of at most 24 "
                "characters: ASCII letters and digits, with single . - & = _ / or blanks between "
                "them, and with ^ in front if you like"
            )
        if counts[symbol] > 1:
            raise FeedError(f"symbols returned {symbol!r} {counts[symbol]} times: return it once")
    return symbols


def last_session_of(answer: object) -> date | None:
    """Return the answer of the feed's `last_session`; raise FeedError where it is no date."""
    if answer is None:
        return None
    is_moment = isinstance(answer, datetime)  # which pandas' Timestamp is too
    if not isinstance(answer, date) or is_moment:
        raise FeedError(f"last_session returned {_kind(answer)}: return a datetime.date, or None")
    return answer


def _symbols(values: pd.Series) -> pd.Series:
    for value in values.unique():
        if not isinstance(value, str):
            raise FeedError(
                f"the column symbol holds {value!s}, which is not a string: give each bar the "
                "symbol of its stock as a string, because a number loses its leading zeros"
            )
    return values.astype(str)


def _sessions(rows: pd.DataFrame) -> pd.Series:
    """Return the sessions, dates or such texts in ISO 8601; raise FeedError for anything else."""
    values = rows["session"]
    if pd.api.types.infer_dtype(values, skipna=True) in NO_DATES:
        raise FeedError("the column session holds numbers: give dates such as 2026-01-20")
    try:
        # Of texts, only those of one unambiguous form are read: 03/04/2026 is two dates.
        sessions = pd.Series(pd.to_datetime(values, format="ISO8601"))
    except (ValueError, TypeError, OverflowError) as problem:
        raise FeedError(
            f"the column session holds a value that is not a date ({problem}): give dates such as "
            "2026-01-20"
        ) from problem
    if getattr(sessions.dtype, "tz", None) is not None:
        raise FeedError(
            f"the column session has a time zone, {sessions.dt.tz}: give the exchange's dates, "
            "without a time zone"
        )
    is_other = sessions.isna() | (sessions != sessions.dt.normalize())
    if is_other.any():
        symbol = rows.loc[is_other, "symbol"].iloc[0]
        raise FeedError(
            f"the column session holds {values[is_other].iloc[0]!s} for {symbol}, which is not a "
            "date: give each bar the exchange's date, without a time of day"
        )
    return sessions.astype("datetime64[ns]")


def _numbers(rows: pd.DataFrame, name: str) -> pd.Series:
    """Return a column as numbers; raise FeedError for a text, and for an infinite number."""
    values = rows[name]
    numbers = pd.to_numeric(values, errors="coerce").astype(np.float64)
    is_text = numbers.isna() & values.notna()
    is_wrong = is_text | np.isinf(numbers)
    if is_wrong.any():
        bar = rows[is_wrong].iloc[0]
        raise FeedError(
            f"the column {name} holds {bar[name]!s} for {bar['symbol']} on {bar['session']!s:.10}: "
            "give a finite number, or NaN where there is none"
        )
    return numbers


def _outcomes(table: object, first: Mapping[str, date], fetched: Fetched) -> pd.DataFrame:
    """Return a feed's own outcomes in the order of `first`, with the bars counted anew.

    `fetched` has the feed's bars and the outcomes that follow from them. Of several outcomes of a
    symbol the first counts. One that is `ok` without a bar becomes `no_data`, with the detail in
    `fetched`. Raises FeedError where a symbol has none, for an unknown status, and for what is no
    table with the columns `symbol` and `status`.
    """
    if not isinstance(table, pd.DataFrame):
        raise FeedError(
            f"the outcomes are of type {type(table).__name__}: return a pandas DataFrame with the "
            "columns symbol and status"
        )
    for name in ("symbol", "status"):
        if name not in table:
            raise FeedError(f"the outcomes lack the column {name}: add it")
    rows = table.drop_duplicates("symbol").set_index("symbol").reindex(list(first))
    without = [str(symbol) for symbol in rows.index[rows["status"].isna()]]
    if without:
        raise FeedError(
            f"the outcomes have no status for {without[0]}: give one for each symbol asked for"
        )
    unknown = set(rows["status"]) - set(get_args(Status))
    if unknown:
        raise FeedError(
            f"the status {min(map(str, unknown))!r} is unknown: use one of "
            f"{', '.join(get_args(Status))}"
        )
    counted = fetched.outcomes.set_index("symbol").reindex(list(first))
    details = rows["detail"] if "detail" in rows else pd.Series("", index=rows.index)
    is_empty = (rows["status"] == "ok") & (counted["rows"] == 0)
    outcomes = pd.DataFrame(
        {
            "symbol": list(first),
            "status": rows["status"].mask(is_empty, "no_data").to_numpy(),
            "rows": counted["rows"].to_numpy(),
            "detail": details.mask(is_empty, counted["detail"]).map(_line).to_numpy(),
        }
    )
    return outcomes[list(OUTCOME_COLUMNS)]


def _line(detail: Any) -> str:
    """Return a detail as one line; empty for a missing one."""
    return "" if pd.isna(detail) else " ".join(str(detail).split())


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
