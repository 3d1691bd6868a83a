"""A stand-in for Yahoo Finance on this machine, for the unmodified yfinance client in another
process.

It is a CONNECT proxy that ends TLS itself, with a certificate of its own authority, and answers for
every host: cookie, crumb and chart JSON. A client needs nothing but two environment variables:

    with FakeYahoo({"AAA": bars}) as yahoo:
        subprocess.run([...], env=yahoo.environment())
    assert yahoo.requests == {"AAA": 1}

`bars` are bars frames (or parts: session, open, high, low, close are needed), as Yahoo would hold
them today. `prices`, `faults` and `rate_limit_after` may be changed while it runs; a symbol that
has no prices is answered as delisted. Missing sessions, rows on holidays, restated pasts and new
names are matters of `prices`: tests/support/price_history.py tells them.
"""

import json
import math
import os
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pandas as pd
import trustme

Fault = Literal[
    "rate_limit",
    "500",
    "html",
    "slow",
    "empty",
    "nan_last",
    "open_row",
    "delisted",
    "internal_error",
    "invalid_crumb",
    "no_adjclose",
    "twice_today",
]
HOSTS = ("*.yahoo.com", "*.finance.yahoo.com", "yahoo.com", "localhost")
OPENING = pd.Timedelta(hours=9, minutes=30)


def _failure(code: str, description: str, member: str = "chart") -> str:
    return json.dumps(
        {member: {"result": None, "error": {"code": code, "description": description}}}
    )


ANSWERS = {  # status and body of the faults that need no prices
    "rate_limit": (429, "Too Many Requests"),
    "500": (500, "<html>Internal Server Error</html>"),
    "html": (200, "<html>Please log in to this network</html>"),
    "empty": (200, json.dumps({"chart": {"result": [], "error": None}})),
    "delisted": (404, _failure("Not Found", "No data found, symbol may be delisted")),
    "internal_error": (500, _failure("Internal Server Error", "Something went wrong")),
    "invalid_crumb": (401, _failure("Unauthorized", "Invalid Crumb", "finance")),
}


class FakeYahoo:
    """Serve `prices`; count each symbol's chart requests in `requests`, in
    `refused` past the rate limit.
    """

    def __init__(
        self,
        prices: Mapping[str, pd.DataFrame],
        *,
        faults: Mapping[str, Fault] | None = None,
        rate_limit_after: int | None = None,
        timezone: str = "America/New_York",
        slowness: float = 3.0,
    ) -> None:
        self.prices = dict(prices)
        self.faults: dict[str, Fault] = dict(faults or {})
        # so many symbols are served, the others told to wait
        self.rate_limit_after = rate_limit_after
        self.timezone = timezone
        self.slowness = slowness  # seconds before a slow answer
        self.requests: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.spans: list[
            tuple[str, str, str]
        ] = []  # of each chart served: symbol, first day, last day
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="fake-yahoo-")
        authority = trustme.CA()
        self._authority = Path(self._folder.name) / "authority.pem"
        authority.cert_pem.write_to_path(str(self._authority))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*HOSTS).configure_cert(context)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.yahoo, self._server.tls = self, context
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    def environment(self) -> dict[str, str]:
        """This process's environment, with what sends a client's HTTPS requests here."""
        proxy = f"http://127.0.0.1:{self._server.server_port}"
        direct = {"NO_PROXY": "", "no_proxy": "", "REQUESTS_CA_BUNDLE": str(self._authority)}
        return dict(os.environ) | {"HTTPS_PROXY": proxy, "https_proxy": proxy} | direct

    def answer(self, url: str) -> tuple[int, str]:
        """Status and body for a request, by any host name."""
        address = urlsplit(url)
        path, query = address.path, parse_qs(address.query)
        if path.endswith("/getcrumb"):
            return 200, "crumb"
        if "/v8/finance/chart/" not in path:
            return 404, "<html></html>"
        symbol = unquote(path.rsplit("/", 1)[1])
        with self._lock:
            full = self.rate_limit_after is not None and len(self.requests) >= self.rate_limit_after
            limited = full and symbol not in self.requests
            (self.refused if limited else self.requests)[symbol] += 1
        return (429, "Too Many Requests") if limited else self._chart(symbol, query)

    def _chart(self, symbol: str, query: Mapping[str, list[str]]) -> tuple[int, str]:
        fault = self.faults.get(symbol, "delisted" if symbol not in self.prices else None)
        if fault in ANSWERS:
            return ANSWERS[fault]
        if fault == "slow":
            time.sleep(self.slowness)
        return 200, json.dumps({"chart": {"result": [self._result(symbol, query)], "error": None}})

    def _result(self, symbol: str, query: Mapping[str, list[str]]) -> dict[str, Any]:
        """The chart of the days asked for: those from period1 to before
        period2, or the last one.
        """
        bars = self.prices[symbol].sort_values("session", kind="stable", ignore_index=True)
        instants = bars["session"].dt.tz_localize(self.timezone) + OPENING
        seconds = (instants - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)
        if "period1" in query:
            start, end = int(query["period1"][0]), int(query["period2"][0])
            asked = (seconds >= start) & (seconds < end)
            if (
                self.faults.get(symbol) == "open_row"
            ):  # the session under way, whatever was asked for
                asked |= asked.shift(1, fill_value=False)
            with self._lock:
                self.spans.append((symbol, self._day(start), self._day(end - 1)))
        else:
            asked = pd.Series(range(len(bars))) == len(bars) - 1
        bars, seconds = bars[asked], seconds[asked]
        fault = self.faults.get(symbol)
        if fault == "twice_today":  # the row of a live price, hours after that of the session
            bars = pd.concat([bars, _moved(bars.tail(1), 1.01)])
            seconds = pd.concat([seconds, seconds.tail(1) + 6 * 3600])
        return _chart_result(symbol, self.timezone, bars, seconds, fault)

    def _day(self, second: int) -> str:
        return str(pd.Timestamp(second, unit="s", tz="UTC").tz_convert(self.timezone).date())


def _moved(bars: pd.DataFrame, factor: float) -> pd.DataFrame:
    prices = [name for name in ("open", "high", "low", "close", "adj_close") if name in bars]
    moved = bars.assign(**{name: bars[name] * factor for name in prices})
    events = [name for name in ("dividend", "split") if name in bars]
    return moved.assign(**dict.fromkeys(events, math.nan))


def _chart_result(
    symbol: str,
    timezone: str,
    bars: pd.DataFrame,
    seconds: pd.Series,
    fault: Fault | None,
) -> dict[str, Any]:
    period = {"timezone": "X", "start": 0, "end": 0, "gmtoffset": 0}
    meta = {
        "symbol": symbol,
        "currency": "USD",
        "instrumentType": "INDEX" if symbol.startswith("^") else "EQUITY",
        "exchangeTimezoneName": timezone,
        "timezone": "X",
        "gmtoffset": 0,
        "priceHint": 2,
        "dataGranularity": "1d",
        "validRanges": ["1d", "5d", "1mo", "1y", "max"],
        "currentTradingPeriod": {"pre": period, "regular": period, "post": period},
    }
    if bars.empty:
        return {"meta": meta, "indicators": {"quote": [{}], "adjclose": [{}]}}
    quote = {name: _values(bars, name) for name in ("open", "high", "low", "close", "volume")}
    adjusted = _values(bars, "adj_close" if "adj_close" in bars else "close")
    if fault == "nan_last":  # the last session's prices are out hours after its volume
        for name in ("open", "high", "low", "close"):
            quote[name][-1] = None
        adjusted[-1] = None
    return {
        "meta": meta,
        "timestamp": [int(second) for second in seconds],
        "events": _events(bars, seconds),
        "indicators": {"quote": [quote]}
        | ({} if fault == "no_adjclose" else {"adjclose": [{"adjclose": adjusted}]}),
    }


def _values(bars: pd.DataFrame, name: str) -> list[float | None]:
    if name not in bars:
        return [None] * len(bars)
    return [float(value) if math.isfinite(value) else None for value in bars[name]]


def _events(bars: pd.DataFrame, seconds: pd.Series) -> dict[str, Any]:
    events: dict[str, Any] = {}
    for second, bar in zip(seconds, bars.itertuples(index=False), strict=True):
        dividend, split = getattr(bar, "dividend", math.nan), getattr(bar, "split", math.nan)
        if math.isfinite(dividend):
            paid = {"date": int(second), "amount": dividend}
            events.setdefault("dividends", {})[str(second)] = paid
        if math.isfinite(split):
            ratio = {"numerator": split, "denominator": 1.0, "splitRatio": f"{split:g}:1"}
            events.setdefault("splits", {})[str(second)] = {"date": int(second), **ratio}
    return events


class _Server(ThreadingHTTPServer):
    yahoo: FakeYahoo
    tls: ssl.SSLContext

    def handle_error(self, request: object, client_address: object) -> None:
        """Pass over clients that hang up: those that time out or have heard enough do."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    """A proxy's side of CONNECT, then the hidden server's side of HTTPS on the same socket."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def do_GET(self) -> None:
        status, body = self.server.yahoo.answer(self.path)
        content = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Set-Cookie", "A3=baked; Domain=.yahoo.com; Path=/; Max-Age=86400")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: a test's output is for failures."""
