"""Bars from Yahoo Finance through the unmodified yfinance client, one request for each symbol.

Yahoo's prices are adjusted for splits, its adjusted close for dividends too, restated after each
event. yfinance hides failures as empty tables, and misreads refusals, missing adjusted closes,
pence and foreign dividends: its session reads each answer first, and every symbol has an outcome.
"""

import atexit
import json
import logging
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
from curl_cffi.requests import Response, Session

from dtml.errors import UsageError, one_line
from dtml.markets import Market
from dtml.prices.bars import PRICES, bars_frame, no_bars
from dtml.sources import OUTCOME_COLUMNS, Fetched, Source, Status

REFUSED = (401, 403)  # statuses of HTTP: an invalid crumb or cookie, or an address that is blocked
# Yahoo's names of units that are a part of a currency, with that currency and how many are one.
UNITS = {
    "GBp": ("GBP", 100),
    "GBX": ("GBP", 100),
    "ZAc": ("ZAR", 100),
    "ILA": ("ILS", 100),
}
IN_CURRENCY = {"open", "high", "low", "close", "adjclose"}  # Yahoo's columns of prices
DISTRIBUTIONS = ("dividends", "capitalGains")  # Yahoo's names of events with an amount per share

Json = dict[str, Any]


class AnswerError(Exception):
    """An answer of Yahoo that holds no chart; `status` says what that means for the symbol."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class AnswerOfYahoo(Response):
    """A response of the session that yfinance uses."""

    def json(self) -> Json:  # type: ignore[override] # no caller here gives options of the parser
        """Return the chart that yfinance reads, in currency units; AnswerError without one."""
        host = urlsplit(self.url).hostname or "an unknown host"
        return read_chart(self.status_code, host, self.content)


def read_chart(http_status: int, host: str, content: bytes) -> Json:
    """Return Yahoo's answer to a request for a chart, in currency units.

    Prices in pence are divided by 100; adjusted closes left out are null, an index's its closes; a
    dividend in another currency is left out. A chart without data is returned as it is. Raises
    AnswerError for a refused request, a web page, and whatever else is no chart.
    """
    answer = _parsed(content)
    is_page = content.lstrip().startswith(b"<")
    kind = "a web page from {} instead of prices" if is_page else "an unreadable answer from {}"
    reason = _reason(answer) or kind.format(host)
    if http_status in REFUSED:
        raise AnswerError("unreachable", f"Yahoo refused the request: HTTP {http_status}, {reason}")
    if "chart" not in answer:
        raise AnswerError("malformed", f"Yahoo sent no prices: HTTP {http_status}, {reason}")
    chart = answer["chart"] or {}
    for result in chart.get("result") or []:
        _convert(result)
    return answer


def _parsed(content: bytes) -> Json:
    """Return the JSON object of an answer; an empty one for what is none, such as a web page."""
    try:
        answer = json.loads(content)
    except ValueError:  # no JSON, or bytes that are no text
        return {}
    return answer if isinstance(answer, dict) else {}


def _reason(answer: Json) -> str:
    """Return Yahoo's own words, in `chart` or `finance`, for why it gives no data, or ""."""
    for part in answer.values():
        error = part.get("error") if isinstance(part, dict) else None
        if isinstance(error, dict):
            return str(error.get("description") or error.get("code") or "")
    return ""


def _convert(result: Json) -> None:
    """Fill in adjusted closes, and convert prices and distributions to currency units, in place."""
    meta = result.get("meta") or {}
    indicators = result.get("indicators") or {}
    quote = _first(indicators.get("quote"))
    adjusted = _first(indicators.get("adjclose"))
    closes = quote.get("close")
    # yfinance would take a stock's closes for missing adjusted ones; those of an index are its
    # closes.
    if closes is not None and adjusted.get("adjclose") is None:
        is_index = meta.get("instrumentType") == "INDEX"
        adjusted = {"adjclose": list(closes) if is_index else [None] * len(closes)}
        indicators["adjclose"] = [adjusted]
    quoted_in = meta.get("currency") or ""
    currency, unit = UNITS.get(quoted_in, (quoted_in, 1))
    if unit != 1:
        meta["currency"] = currency
        for columns in (quote, adjusted):
            for name in columns.keys() & IN_CURRENCY:
                columns[name] = [_divided(price, unit) for price in columns[name] or []]
    events = result.get("events") or {}
    for kind in DISTRIBUTIONS:
        paid = (events.get(kind) or {}).items()
        converted = {moment: _in_currency(event, quoted_in) for moment, event in paid}
        events[kind] = {moment: event for moment, event in converted.items() if event is not None}


def _in_currency(event: Json, quoted_in: str) -> Json | None:
    """Return a dividend in whole units of the prices' currency; None if it is in another.

    By default it is in their unit, `quoted_in`.
    """
    currency, _ = UNITS.get(quoted_in, (quoted_in, 1))
    paid_in = event.get("currency") or quoted_in
    own_currency, unit = UNITS.get(paid_in, (paid_in, 1))
    if own_currency != currency:
        return None
    without_currency = {name: value for name, value in event.items() if name != "currency"}
    return without_currency | {"amount": _divided(event.get("amount"), unit)}


def _divided(value: Any, unit: int) -> Any:
    """Return a number divided by `unit`; null and whatever else is no number as it is."""
    return value / unit if isinstance(value, int | float) else value


def _first(columns: Any) -> Json:
    """Return the object in a list of one, as Yahoo wraps columns; an empty one without it."""
    return columns[0] if isinstance(columns, list) and columns and columns[0] else {}


THREADS = 4  # more of them trigger the rate limit
OUTAGE = 5  # symbols in a row without a usable answer: the service or the network is down
LONGEST_DETAIL = 200  # characters of an outcome's detail
# Yahoo's words for a symbol, or for dates, without data
NO_DATA = (
    "no price data found",
    "no data found",
    "data doesn't exist",
)
COLUMNS = {  # yfinance's names, in the order of `BAR_COLUMNS`
    "Open": "open",
    "High": "high",
    "Low": "low",
    "Close": "close",
    "Adj Close": "adj_close",
    "Volume": "volume",
    "Dividends": "dividend",
    "Stock Splits": "split",
}


@dataclass(frozen=True)
class YahooSource(Source):
    """Daily bars of `market` from Yahoo.

    `threads` requests run at a time; each is given up after `timeout` seconds, and made once more.
    """

    market: Market
    threads: int = THREADS
    timeout: float = 10.0
    name: str = "yahoo"

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its first session to `last`, as adjusted today, even
        under way.

        At the first rate limit, or after `OUTAGE` symbols in a row without an answer, the rest is
        `not_asked`. Raises UsageError for a symbol that the market does not list.
        """
        names = {stock.symbol: stock.source_symbol for stock in self.market.constituents}
        names[self.market.index.symbol] = self.market.index.source_symbol
        unlisted = [symbol for symbol in first if symbol not in names]
        if unlisted:
            raise UsageError(
                f"market {self.market.name} does not list {', '.join(unlisted)}: list every stock "
                "to be fetched under [constituents] of the market's file"
            )
        sources = [names[symbol] for symbol in first]
        client = _client(sources, self.market.timezone)
        batch = _Batch(client, _session(), last, self.timeout)
        with ThreadPoolExecutor(self.threads) as pool:
            answers = list(pool.map(batch.ask, first, sources, first.values()))
        outcomes = [
            (symbol, answer.status, len(answer.bars), answer.detail)
            for symbol, answer in zip(first, answers, strict=True)
        ]
        tables = [answer.bars for answer in answers]
        bars = pd.concat([no_bars(), *tables], ignore_index=True)
        return Fetched(
            bars=bars,
            outcomes=pd.DataFrame(outcomes, columns=list(OUTCOME_COLUMNS)),
        )


class _Answer(NamedTuple):
    """The result of a request for one symbol; `detail` is a line for people, empty when ok."""

    status: Status
    detail: str
    bars: pd.DataFrame


@dataclass
class _Batch:
    """The symbols of one fetch, requested from several threads until Yahoo stops answering."""

    client: Any
    session: "Session[AnswerOfYahoo]"
    last: date
    timeout: float
    unanswered: int = 0  # symbols in a row without a usable answer
    stopped: str = ""  # why no more symbols are requested; empty while they are
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, symbol: str, source_symbol: str, first: date) -> _Answer:
        """Request the bars of one symbol since `first`, unless the batch has stopped."""
        # Read without the lock: requests that are under way when the batch stops are completed.
        if self.stopped:
            return _Answer("not_asked", self.stopped, no_bars())
        answer = self._request(symbol, source_symbol, first)
        with self.lock:
            if answer.status in ("unreachable", "malformed"):
                self.unanswered += 1
            else:
                self.unanswered = 0
            if answer.status == "rate_limited":
                self.stopped = "Yahoo's rate limit was reached"
            # Once stopped, answers that are still under way do not change the number in its reason.
            elif self.unanswered >= OUTAGE and not self.stopped:
                self.stopped = (
                    f"{self.unanswered} symbols in a row had no usable answer, such as "
                    f"{answer.detail}"
                )
        return answer

    def _request(self, symbol: str, source_symbol: str, first: date) -> _Answer:
        errors = self.client.exceptions
        status: Status = "no_data"
        detail = f"no row from {first} to {self.last}"
        try:
            ticker = self.client.Ticker(source_symbol, session=self.session)
            table: pd.DataFrame = ticker.history(
                start=first,
                end=self.last + timedelta(days=1),  # Yahoo's end is exclusive
                interval="1d",
                auto_adjust=False,
                actions=True,
                keepna=True,  # a bar without prices is rejected with its reason, not lost
                timeout=self.timeout,
            )
            bars = _bars(table, symbol, first, self.last)
            if not bars.empty:
                return _Answer("ok", "", bars)
        except AnswerError as error:
            status = error.status
            detail = str(error)
        except errors.YFTickerMissingError as error:
            # It may be a ticker without data or an answer of another shape, which only Yahoo's
            # reason tells.
            detail = getattr(error, "yahoo_reason", None) or "no price data found"
            says_no_data = any(phrase in detail.lower() for phrase in NO_DATA)
            status = "no_data" if says_no_data else "malformed"
        except (errors.YFRateLimitError, errors.YFDataException) as error:
            is_limit = isinstance(error, errors.YFRateLimitError)
            status = "rate_limited" if is_limit else "unreachable"
            detail = str(error)
        except (errors.YFException, ValueError, LookupError, TypeError, AttributeError) as error:
            status = "malformed"
            detail = f"no price table: {type(error).__name__}: {error}"
        except OSError as error:  # time-outs, refused and broken connections of curl_cffi
            status = "unreachable"
            detail = f"{type(error).__name__}: {error}"
        words = one_line(f"{source_symbol}: {detail}")[:LONGEST_DETAIL]
        return _Answer(status, words, no_bars())


def _bars(table: pd.DataFrame, symbol: str, first: date, last: date) -> pd.DataFrame:
    """Return the bars frame of one answer, whose index is midnight in the exchange's zone."""
    columns = list(COLUMNS.values())
    with_gains = table.assign(Dividends=_distributions(table))
    renamed = with_gains.rename(columns=COLUMNS)[columns].astype(np.float64)
    without_price = renamed[list(PRICES)].isna().all(axis=1)
    # yfinance writes 0 for a missing volume
    renamed["volume"] = renamed["volume"].mask(without_price)
    session = pd.DatetimeIndex(table.index).tz_localize(None).normalize()
    bars = bars_frame(renamed.assign(symbol=symbol, session=session))
    is_inside = bars["session"].between(pd.Timestamp(first), pd.Timestamp(last))
    return bars[is_inside].reset_index(drop=True)


def _distributions(table: pd.DataFrame) -> "pd.Series[float]":
    """Return the cash paid per share in each session: the dividend, and a fund's capital gain.

    Some dividends contain the gain (yfinance#2666): where it is at least as large, and the close
    falls by about the dividend alone.
    """
    dividend = table["Dividends"]
    if "Capital Gains" not in table:  # yfinance has it for funds alone
        return dividend
    gain = table["Capital Gains"]
    fall = table["Close"].shift() - table["Close"]  # NaN where either close is missing
    dividend_and_gain = dividend + gain
    is_nearer = (fall - dividend).abs() < (fall - dividend_and_gain).abs()
    return dividend.where((dividend >= gain) & is_nearer, dividend_and_gain)


def _client(source_symbols: list[str], timezone: str) -> Any:
    """Return yfinance, set up to request each of these symbols once, without cached answers."""
    client = _quiet_client()
    # Otherwise responses to earlier fetches, errors included, stay cached in this process.
    client.data.YfData.cache_get.cache_clear()
    zones = client.cache.get_tz_cache()
    for source_symbol in source_symbols:  # knowing the time zone saves one request in two
        zones.store(source_symbol.upper(), timezone)
    return client


@cache
def _session() -> "Session[AnswerOfYahoo]":
    """Return this process's session, yfinance's but for reading answers, with its cookies."""
    return Session(impersonate="chrome", response_class=AnswerOfYahoo)


@cache
def _quiet_client() -> Any:
    """Import yfinance once: it raises failures, is silent, and caches in a temporary folder."""
    import yfinance

    # It turns its own warnings on when imported.
    warnings.filterwarnings("ignore", module=r"yfinance(\..*)?")
    logging.getLogger("yfinance").setLevel(logging.CRITICAL)  # outcomes say what its log would
    yfinance.config.debug.hide_exceptions = False
    yfinance.config.network.retries = 1  # of time-outs and broken connections, after a second
    # A shared folder would get locked, and holds pickled cookies.
    folder = tempfile.mkdtemp(prefix="dtml-yfinance-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    yfinance.set_tz_cache_location(folder)
    return yfinance
