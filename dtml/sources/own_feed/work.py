"""The program that runs a user's own feed and answers a question.

Tasks: `describe` (its stocks and its last session), `fetch` (bars). Environment variables that the
market's file names are set for this process alone, and their values are blotted out in errors and
in the details of outcomes, as an address with its key often stands in an error.

Nothing of an answer is guessed: a session with a time of day may be another day on the exchange,
and a symbol that became a number has lost its zeros.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, get_args
from urllib.parse import quote, quote_plus

import numpy as np
import pandas as pd

from dtml.errors import one_line
from dtml.markets import load_market, load_market_file
from dtml.markets.definition import is_symbol
from dtml.own.confinement import (
    FORBIDDEN,
    LONGEST,
    Answer,
    Arrays,
    Description,
    Question,
    described,
    serve,
)
from dtml.prices.bars import BAR_COLUMNS, bars_frame
from dtml.sources import Fetched, Status
from dtml.sources.own_feed.source import FeedError

REQUIRED = ("symbol", "session", "close")
NUMBERS = BAR_COLUMNS[2:]
COLUMN_WORDS = (
    "symbol, session, close and, if known, open, high, low, adj_close, volume, dividend and split"
)
# What pandas calls a column of these values, which it would read as nanoseconds since 1970.
NO_DATES = ("integer", "floating", "mixed-integer", "mixed-integer-float", "decimal", "boolean")


def fetched_of(answer: object, first: Mapping[str, date], last: date) -> Fetched:
    """Return what the feed's `fetch` answered, with an outcome for each symbol of `first`.

    A `Fetched`, or a table of bars, whose symbols without a row are `no_data`. Earlier bars and
    other symbols are dropped; bars after `last` stay, to be refused. Raises FeedError for anything
    else.
    """
    table = answer.bars if isinstance(answer, Fetched) else answer
    bars = bars_of(table)

    def missing(symbol: str) -> str:
        return f"no bar of {symbol} from {first[symbol]} to {last}"

    fetched = Fetched.of(bars, first, missing)
    if not isinstance(answer, Fetched):
        return fetched
    return Fetched(fetched.bars, _outcomes(answer.outcomes, fetched))


def bars_of(table: object) -> pd.DataFrame:
    """Return a feed's table as a bars frame, missing columns NaN.

    Raises FeedError, naming column and value, where it is no table of bars.
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
    for symbol in rows["symbol"].unique():
        if not isinstance(symbol, str):
            raise FeedError(
                f"the column symbol holds {symbol!s}, which is not a string: give each bar the "
                "symbol of its stock as a string, because a number loses its leading zeros"
            )
    columns = {"symbol": rows["symbol"].astype(str), "session": _sessions(rows)}
    for name in NUMBERS:
        if name in rows:
            values = rows[name]
            numbers = pd.to_numeric(values, errors="coerce").astype(np.float64)
            is_text = numbers.isna() & values.notna()
            is_wrong = is_text | np.isinf(numbers)
            if is_wrong.any():
                bar = rows[is_wrong].iloc[0]
                raise FeedError(
                    f"the column {name} holds {bar[name]!s} for {bar['symbol']} on "
                    f"{bar['session']!s:.10}: give a finite number, or NaN where there is none"
                )
            columns[name] = numbers
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


def _sessions(rows: pd.DataFrame) -> pd.Series:
    """Return the sessions, dates or such texts in ISO 8601; raise FeedError for anything else."""
    values = rows["session"]
    if pd.api.types.infer_dtype(values, skipna=True) in NO_DATES:
        raise FeedError("the column session holds numbers: give dates such as 2026-01-20")
    # Of texts, only those of one unambiguous form are read: 03/04/2026 is two dates.
    sessions = pd.Series(pd.to_datetime(values, format="ISO8601", errors="coerce"))
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


def _outcomes(table: object, fetched: Fetched) -> pd.DataFrame:
    """Return a feed's own outcomes, with bars counted as in `fetched`; of several the first.

    One `ok` without a bar stays. Raises FeedError for an unknown status, and for no table of them.
    """
    if not isinstance(table, pd.DataFrame) or not {"symbol", "status"} <= set(table):
        raise FeedError(
            f"the outcomes are {_kind(table)}: return a pandas DataFrame with the columns symbol "
            "and status"
        )
    counted = fetched.outcomes
    own = table.drop_duplicates("symbol").set_index("symbol").reindex(counted["symbol"])
    unknown = own[~own["status"].isin(get_args(Status))]
    if not unknown.empty:
        raise FeedError(
            f"the outcomes give {unknown.index[0]} the status {unknown['status'].iloc[0]}: give "
            f"each symbol asked for one of {', '.join(get_args(Status))}"
        )
    details = own.get("detail", pd.Series("", index=own.index)).fillna("").map(one_line)
    given = counted.assign(status=own["status"].to_numpy(), detail=details.to_numpy())
    is_empty = (given["status"] == "ok") & (given["rows"] == 0)
    return given.where(~is_empty, counted)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


MODULE = "own_feed"  # the name under which a file is imported
SOURCE = "SOURCE"  # the name in a file of a feed that is an object or a class
LONGEST_DETAIL = 200  # characters of an outcome's detail
# A shorter value of a variable is no secret, and would be blotted out of ordinary words.
SHORTEST_SECRET = 4
BLOT = "***"
TOO_MANY_REQUESTS = 429


def answer(question: Question, _: Arrays) -> Answer:
    """Return the answer of a task as JSON holds it, and the bars as arrays by column.

    `describe` is answered by `symbols`, `last_session` and `code` (the text that is recorded of the
    feed) and without arrays; `fetch` by `outcomes`, an object for each symbol, and the bars.
    """
    feed, code = load(question)
    if question["task"] == "describe":
        last = last_session_of(_asked(feed, "last_session"))
        description = {
            "symbols": stocks_of(_asked(feed, "symbols")),
            "last_session": None if last is None else last.isoformat(),
            "code": code,
        }
        return description, {}
    first = {symbol: date.fromisoformat(day) for symbol, day in question["first"].items()}
    last_asked = date.fromisoformat(question["last"])
    # A copy, so that a feed that changes what it is given changes no check.
    fetched = fetched_of(feed.fetch(dict(first), last_asked), first, last_asked)
    outcomes = fetched.outcomes.to_dict("records")
    for outcome in outcomes:
        outcome["detail"] = blotted(outcome["detail"], question, LONGEST_DETAIL)
    return {"outcomes": outcomes}, arrays_of(fetched.bars)


def arrays_of(bars: pd.DataFrame) -> Arrays:
    """Return a bars frame as arrays that can be read without running anything."""
    arrays = {name: bars[name].to_numpy() for name in BAR_COLUMNS[2:]}
    arrays["symbol"] = bars["symbol"].to_numpy(dtype=np.str_)
    arrays["session"] = bars["session"].to_numpy("datetime64[ns]")
    return arrays


def load(task: Question) -> tuple[Any, str]:
    """Run the code of a feed, and return the feed with the text that is recorded of it.

    The object `SOURCE` of a file, or its functions; an entry point's object, class or module.
    Raises FeedError without `fetch`, and whatever the code raises.
    """
    feed: Any
    if task["entry"]:
        entry = EntryPoint(name=task["name"], value=task["entry"], group="")
        feed = entry.load()
        package = entry.module.partition(".")[0]
        try:
            number = version(package)
        except PackageNotFoundError:  # the distribution has another name than its package
            number = "of unknown version"
        file = getattr(sys.modules[entry.module], "__file__", None)
        text = Path(file).read_text(encoding="utf-8") if file else ""
        code = f"# {package} {number}, {entry.value}\n{text}"
    else:
        feed = ModuleType(MODULE)
        feed.__file__ = task["path"]
        sys.modules[MODULE] = feed  # where `dataclass`, for one, looks up the module of a class
        exec(compile(task["text"], task["name"], "exec"), feed.__dict__)  # noqa: S102 - it is what the user asks for
        feed = getattr(feed, SOURCE, feed)
        code = task["text"]
    if isinstance(feed, type):  # a class gets the market, as it may need more than symbols
        if task["market_file"]:
            market = load_market_file(Path(task["market_file"]), task["market_text"])
        else:
            market = load_market(task["market"])
        feed = feed(market)
    if not callable(getattr(feed, "fetch", None)):
        raise FeedError(
            "it has no fetch: write a function `fetch(first, last)`, or assign an object that has "
            f"one to the name {SOURCE}; let an entry point name an object, a class or a module "
            "that has one"
        )
    return feed, code


def _asked(feed: Any, name: str) -> object:
    """Return the answer of a method that a feed may lack; None where it does."""
    method = getattr(feed, name, None)
    return method() if callable(method) else None


def failed(error: Exception, question: Question) -> Description:
    """Describe an exception: in words, and with a status where the feed could not be reached."""
    message = described(error, question["name"], FeedError)
    description = {"error": blotted(message, question, LONGEST)}
    response = getattr(error, "response", None)  # of the packages requests and httpx
    numbers = (getattr(error, "code", None), getattr(response, "status_code", None))
    if TOO_MANY_REQUESTS in numbers:
        description["status"] = "rate_limited"
    # Of the network, of a file that is not there yet, and of the package requests.
    elif isinstance(error, OSError) and error.errno not in FORBIDDEN:
        description["status"] = "unreachable"
    return description


def blotted(text: str, question: Question, longest: int) -> str:
    """Return a text cut to a length, without the values of the question's environment variables.

    They are blotted out plain, as Python's repr writes them, and as an address does.
    """
    secrets = [os.environ.get(name, "") for name in question["environment"]]
    forms = {form(secret) for secret in secrets for form in (str, repr, quote_plus)}
    forms |= {quote(secret, safe="") for secret in secrets}
    # The longest first, and all before the cut: cut in two, one would no longer be found.
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= SHORTEST_SECRET:
            text = text.replace(form, BLOT)
    return text[:longest]


if __name__ == "__main__":
    serve(answer, failed)
