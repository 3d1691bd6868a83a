"""Time the pages of `dtml dashboard` over a filled store, and a night's report of 500 stocks.

`python -m benchmarks.pages`: nights of a simulated market of 500 stocks, then their report, the
median of 5. `python -m benchmarks.view_latency` times the dashboard over ten million predictions.
"""

import http.client
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import uvicorn

from benchmarks.ten_year_rows import STOCKS, run_name
from benchmarks.ten_year_store import BACKTEST, BACKTEST_MARKET, MARKETS, TenYears
from db.engine import open_engine, prepare
from dtml.experiments import nightly_of, vary
from dtml.markets import load_market
from dtml.prices.sessions import sessions_up_to
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.dashboard.app import dashboard
from flows.nightly.context import MarketContext
from flows.nightly.night import run_night
from flows.nightly.report import publish_night

REPEATS = 20
REPORTS = 5
LEADERS, FOLLOWERS = 100, 4  # 500 stocks
NIGHTS = 4
QUICK = {
    "seeds": 3,
    "epochs": 1,
    "first_kept_epoch": 1,
    "train_sessions": 130,
    "validation_sessions": 63,
}


def time_pages(url: str, history: TenYears) -> pd.DataFrame:
    """Return a line for each page, asked over a socket: first on a server that
    has just started, then again.
    """
    past = f"{history.days[len(history.days) // 2]:%Y-%m-%d}"
    newest = run_name(BACKTEST_MARKET, history.days[history.starts[-1]])
    addresses = {
        "every market": "/",
        "a market": f"/market/{MARKETS[3]}",
        "a past night, level 0.8": f"/market/{MARKETS[3]}?as_of={past}&level=0.8",
        "a stock": f"/market/{MARKETS[3]}/stock/{STOCKS[7]}",
        "two runs compared": f"/compare?a={BACKTEST}-1&b={newest}",
    }
    with _served(url) as port:
        lines = []
        for name, address in addresses.items():
            times = [_asked(port, address) for _ in range(REPEATS + 1)]
            line = {"page": name, "first ms": times[0], "p50 ms": statistics.median(times[1:])}
            lines.append(line | {"p95 ms": sorted(times[1:])[-2]})
    return pd.DataFrame(lines)


@contextmanager
def _served(url: str) -> Iterator[int]:
    """The port of a dashboard over a store that is opened read only."""
    engine = open_engine(url, read_only=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(dashboard(engine), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.05)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()
    engine.dispose()


def _asked(port: int, address: str) -> float:
    """Milliseconds until a page is there."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", address)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == http.HTTPStatus.OK, address
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Print how long a report of 500 stocks takes, and its size."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"DTML_DATA": folder, "DTML_REPORTS": folder}
        context = _context(Path(folder))
        days = [
            day.date()
            for day in sessions_up_to(
                context.market.calendar, pd.Timestamp("2024-07-01").date(), NIGHTS
            )
        ]
        for day in days:
            run_night(context, day)
        times = []
        for _ in range(REPORTS):
            began = time.perf_counter()
            page = publish_night(context, days[-1])
            times.append(time.perf_counter() - began)
        size = page.stat().st_size / 1e6
    stocks = len(context.market.symbols)
    print(
        f"a night's report of {stocks} stocks: {statistics.median(times):.2f} s, {size:.2f} MB "
        f"(first {times[0]:.2f} s)"
    )


def _context(folder: Path) -> MarketContext:
    source = SimulatedSource(
        market=SimulatedMarket(
            leaders=LEADERS, followers=FOLLOWERS, start=pd.Timestamp("2023-01-03").date()
        )
    )
    engine = open_engine(f"sqlite:///{folder}/store.sqlite")
    prepare(engine)
    market = load_market("simulated").with_symbols(sorted(source.market.symbols))
    experiment = vary(
        nightly_of(market.model, z_close="adjusted", returns="adj_close", max_return=0.35), QUICK
    )
    return MarketContext(
        replace(market, source="simulated"), source, engine, experiment, "cpu", None
    )


if __name__ == "__main__":
    main()
