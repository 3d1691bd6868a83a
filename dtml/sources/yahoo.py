"""Bars from Yahoo Finance through the unmodified yfinance client, one request for each symbol.

Yahoo's prices are split-adjusted already, its adjusted close takes dividends out too, and both are
restated over the whole past after every such event. yfinance hides failures as empty tables unless
told otherwise; here every symbol has an outcome, and the bars that arrived before a failure are
returned.
"""

import atexit
import logging
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from dtml.errors import UsageError
from dtml.markets import Market
from dtml.prices.bars import BAR_COLUMNS, PRICES, bars_frame, no_bars
from dtml.sources import OUTCOME_COLUMNS, Fetched, Source, Status

THREADS = 4  # more of them bring on the rate limit
OUTAGE = 5  # symbols in a row without a usable answer: the service or the network is down
NO_DATA = (
    "no price data found",
    "no data found",
    "data doesn't exist",
)  # of a symbol, or of these dates
FIELDS = ("Open", "High", "Low", "Close", "Adj Close", "Volume", "Dividends", "Stock Splits")
COLUMNS = dict(zip(FIELDS, BAR_COLUMNS[2:], strict=True))


@dataclass(frozen=True)
class YahooSource(Source):
    """Daily bars of `market` from Yahoo; `threads` requests at a time, each
    given up after `timeout` seconds.
    """

    market: Market
    threads: int = THREADS
    timeout: float = 10.0
    name: str = "yahoo"

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its own first session to `last`, as Yahoo adjusts
        them today.

        A session under way may be among them. At the first rate limit, or after `OUTAGE` symbols in
        a row without a usable answer, the symbols left are `not_asked`. Raises UsageError for a
        symbol that the market does not list.
        """
        names = {each.symbol: each.source_symbol for each in self.market.constituents}
        names[self.market.index.symbol] = self.market.index.source_symbol
        unlisted = [symbol for symbol in first if symbol not in names]
        if unlisted:
            raise UsageError(
                f"market {self.market.name} does not list {', '.join(unlisted)}; list it there"
            )
        sources = [names[symbol] for symbol in first]
        batch = _Batch(_client(sources, self.market.timezone), last, self.timeout)
        with ThreadPoolExecutor(self.threads) as pool:
            answers = list(pool.map(batch.ask, first, sources, first.values()))
        pairs = zip(first, answers, strict=True)
        told = [(symbol, status, len(found), detail) for symbol, (status, detail, found) in pairs]
        bars = pd.concat([no_bars(), *(found for _, _, found in answers)], ignore_index=True)
        return Fetched(bars, pd.DataFrame(told, columns=list(OUTCOME_COLUMNS)))


class _Batch:
    """The symbols of one fetch, requested from several threads until Yahoo stops answering."""

    def __init__(self, client: Any, last: date, timeout: float) -> None:
        self._client, self._last, self._timeout = client, last, timeout
        self._lock, self._unanswered, self._stopped = threading.Lock(), 0, ""

    def ask(self, symbol: str, source_symbol: str, first: date) -> tuple[Status, str, pd.DataFrame]:
        """Request the bars of one symbol, unless an earlier answer said to
        stop; with none, return why.
        """
        if self._stopped:
            return "not_asked", self._stopped, no_bars()
        status, detail, table = self._request(source_symbol, first)
        bars = no_bars() if table is None else _bars(table, symbol, first, self._last)
        if status == "ok" and bars.empty:
            status, detail = "no_data", f"{source_symbol}: no row from {first} to {self._last}"
        self._note(status)
        return status, " ".join(detail.split())[:200], bars

    def _request(self, source_symbol: str, first: date) -> tuple[Status, str, pd.DataFrame | None]:
        """Request a history and classify what yfinance returns or raises; its
        own classes of errors say too little.
        """
        errors = self._client.exceptions
        try:
            return "ok", "", self._history(source_symbol, first)
        except errors.YFRateLimitError as error:
            return "rate_limited", f"{source_symbol}: {error}", None
        except errors.YFTickerMissingError as error:
            reason = getattr(error, "yahoo_reason", None) or "no price data found"
            known = any(phrase in reason.lower() for phrase in NO_DATA)
            return ("no_data" if known else "malformed"), f"{source_symbol}: {reason}", None
        except errors.YFDataException as error:
            return "unreachable", f"{source_symbol}: {error}", None
        except (errors.YFException, ValueError, LookupError, TypeError, AttributeError) as error:
            return (
                "malformed",
                f"{source_symbol}: no price table: {type(error).__name__}: {error}",
                None,
            )
        except OSError as error:  # time-outs, refused and broken connections of curl_cffi
            return "unreachable", f"{source_symbol}: {type(error).__name__}: {error}", None

    def _history(self, source_symbol: str, first: date) -> pd.DataFrame:
        span = {"start": first, "end": self._last + timedelta(days=1)}  # Yahoo's end is exclusive
        how = {"interval": "1d", "auto_adjust": False, "actions": True, "timeout": self._timeout}
        how |= {"keepna": True}  # a bar without prices is rejected with its reason, not lost
        table: pd.DataFrame = self._client.Ticker(source_symbol).history(**span, **how)
        return table

    def _note(self, status: Status) -> None:
        with self._lock:
            self._unanswered = self._unanswered + 1 if status in ("unreachable", "malformed") else 0
            if status == "rate_limited":
                self._stopped = "Yahoo's rate limit was reached"
            elif self._unanswered >= OUTAGE and not self._stopped:
                self._stopped = f"{self._unanswered} symbols in a row had no usable answer"


def _bars(table: pd.DataFrame, symbol: str, first: date, last: date) -> pd.DataFrame:
    """Return the bars frame of one answer, whose index is midnight in the exchange's time zone."""
    renamed = table.rename(columns=COLUMNS)[list(COLUMNS.values())].astype(np.float64)
    without_price = renamed[list(PRICES)].isna().all(axis=1)
    renamed["volume"] = renamed["volume"].mask(
        without_price
    )  # yfinance writes 0 for a missing volume
    session = pd.DatetimeIndex(table.index).tz_localize(None).normalize()
    bars = bars_frame(renamed.assign(symbol=symbol, session=session))
    return bars[bars["session"].between(pd.Timestamp(first), pd.Timestamp(last))].reset_index(
        drop=True
    )


def _client(source_symbols: list[str], timezone: str) -> Any:
    """Return yfinance, ready to request these symbols anew with one request each."""
    client = _quiet_client()
    # Responses of past spans, errors included, are kept for the life of the process otherwise.
    client.data.YfData.cache_get.cache_clear()
    zones = client.cache.get_tz_cache()
    for source_symbol in source_symbols:  # knowing the time zone saves one request in two
        zones.store(source_symbol.upper(), timezone)
    return client


@cache
def _quiet_client() -> Any:
    """Import yfinance and set it up once: failures raised, warnings and logs
    off, its caches apart.
    """
    import yfinance

    warnings.filterwarnings(
        "ignore", module=r"yfinance(\..*)?"
    )  # it turns its own warnings on when imported
    logging.getLogger("yfinance").setLevel(logging.CRITICAL)  # outcomes say what its log would
    yfinance.config.debug.hide_exceptions = False
    yfinance.config.network.retries = 1  # of time-outs and broken connections, after a second
    folder = tempfile.mkdtemp(
        prefix="dtml-yfinance-"
    )  # a shared one gets locked, and holds pickled cookies
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    yfinance.set_tz_cache_location(folder)
    return yfinance
