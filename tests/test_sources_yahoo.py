import multiprocessing
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import date

import numpy as np
import pandas as pd
import pytest
from fake_yahoo import FakeYahoo

from dtml.bars import BAR_COLUMNS, bars_frame
from dtml.errors import UsageError
from dtml.markets import Constituent, Index, Market
from dtml.sources import Fetched
from dtml.sources.yahoo import YahooSource, restated_symbols

SESSIONS = pd.bdate_range("2024-03-04", periods=13)  # the clocks change in between
FIRST, LAST = date(2024, 3, 4), SESSIONS[-1].date()
SYMBOLS = ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF", "GGG", "HHH")


def history(level: float, sessions: pd.DatetimeIndex = SESSIONS) -> pd.DataFrame:
    close = level + np.arange(len(sessions)) / 4
    table = pd.DataFrame({"symbol": "as asked", "session": sessions, "open": close - 0.5, "close": close})
    return bars_frame(table.assign(high=close + 1, low=close - 1, adj_close=close * 0.9, volume=1000.0))


def prices(*symbols: str) -> dict[str, pd.DataFrame]:
    return {symbol: history(50 + 10 * place) for place, symbol in enumerate(symbols)}


def market(*symbols: str) -> Market:
    constituents = tuple(Constituent(symbol.lower(), symbol) for symbol in symbols)
    return Market(
        name="small",
        title="Small",
        calendar="XNYS",
        timezone="America/New_York",
        currency="USD",
        index=Index("index", "^IDX", "The index"),
        constituents=constituents,
    )


def fetch(where: Market, first: Mapping[str, date], last: date, timeout: float, threads: int, times: int) -> list[Fetched]:
    source = YahooSource(where, threads=threads, timeout=timeout)
    return [source.fetch(first, last) for _ in range(times)]


def ask(
    yahoo: FakeYahoo,
    where: Market,
    *,
    first: Mapping[str, date] | None = None,
    last: date = LAST,
    timeout: float = 5.0,
    threads: int = 4,
    times: int = 1,
) -> list[Fetched]:
    """Run the real client in a process of its own, whose environment leads it to the stand-in."""
    asked = first or {symbol: FIRST for symbol in [*where.symbols, where.index.symbol]}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in yahoo.environment().items():
            patch.setenv(name, value)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(fetch, where, asked, last, timeout, threads, times).result()


def statuses(fetched: Fetched) -> dict[str, str]:
    return dict(zip(fetched.outcomes["symbol"], fetched.outcomes["status"], strict=True))

def test_try():
    with FakeYahoo(prices("AAA","BBB","^IDX")) as yahoo:
        t=time.time()
        f, = ask(yahoo, market("AAA","BBB"))
        print(time.time()-t, f.bars.head(3).to_string(), f.outcomes, yahoo.requests, yahoo.spans)
    with FakeYahoo(prices(*SYMBOLS,"^IDX"), faults=dict(AAA="500",BBB="html",CCC="slow",DDD="empty",EEE="delisted",FFF="nan_last",GGG="internal_error")) as yahoo:
        t=time.time()
        f, = ask(yahoo, market(*SYMBOLS,"ZZZ"),timeout=1)
        print(time.time()-t, f.outcomes.to_string(), yahoo.requests)
        print(f.bars.tail(15))
    with FakeYahoo(prices(*SYMBOLS,"^IDX"), rate_limit_after=3) as yahoo:
        t=time.time()
        f, = ask(yahoo, market(*SYMBOLS,"ZZZ"),timeout=1)
        print(time.time()-t, f.outcomes.to_string(), yahoo.requests, yahoo.refused)
