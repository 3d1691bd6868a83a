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
from datetime import date
from pathlib import Path

import pandas as pd
import uvicorn

from benchmarks.ten_year_rows import STOCKS, run_name
from benchmarks.ten_year_store import BACKTEST_MARKET, MARKETS, TenYears
from db.engine import open_engine, prepare
from dtml.experiments import nightly_of, vary
from dtml.markets import load_market
from dtml.prices.sessions import sessions_up_to
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.dashboard.app import dashboard
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.night import run_night
from flows.nightly.report import publish_night

REPEATS = 20
REPORTS = 5
LEADERS = 100
FOLLOWERS = 4  # of each leader: 500 stocks in all
NIGHTS = 4
QUICK = {
    "seeds": 3,
    "epochs": 1,
    "first_kept_epoch": 1,
    "train_sessions": 130,
    "validation_sessions": 63,
}


def time_pages(url: str, history: TenYears) -> pd.DataFrame:
    """Return a line for each page, requested over a socket.

    The first request of a page is reported apart from the others.
    """
    past = f"{history.days[len(history.days) // 2]:%Y-%m-%d}"
    newest = run_name(BACKTEST_MARKET, history.days[history.starts[-1]])
    addresses = {
        "every market": "/",
        "a market": f"/market/{MARKETS[3]}",
        "a past night": f"/market/{MARKETS[3]}?as_of={past}",
        "a stock": f"/market/{MARKETS[3]}/stock/{STOCKS[7]}",
        "a run": f"/table/run_log?run_id={newest}",
    }
    with _served(url) as port:
        lines = []
        for name, address in addresses.items():
            first, *others = [_milliseconds_of(port, address) for _ in range(REPEATS + 1)]
            lines.append(
                {
                    "page": name,
                    "first ms": first,
                    "p50 ms": statistics.median(others),
                    "p95 ms": sorted(others)[-2],
                }
            )
    return pd.DataFrame(lines)


@contextmanager
def _served(url: str) -> Iterator[int]:
    """Serve a dashboard over a store that is opened read only; yield its port."""
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


def _milliseconds_of(port: int, address: str) -> float:
    """Return the milliseconds from the request of a page until it is read."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", address)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == http.HTTPStatus.OK, address
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Print how long a report of 500 stocks takes, and its size."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"DTML_DATA": folder, "DTML_REPORTS": folder}
        context = _context(Path(folder))
        sessions = sessions_up_to(context.market.calendar, date(2024, 7, 1), NIGHTS)
        days = [session.date() for session in sessions]
        for day in days:
            run_night(context, day)
        times = []
        for _ in range(REPORTS):
            start = time.perf_counter()
            page = publish_night(Tonight(context, days[-1]))
            times.append(time.perf_counter() - start)
        size = page.stat().st_size / 1e6
    stocks = len(context.market.symbols)
    print(
        f"a night's report of {stocks} stocks: {statistics.median(times):.2f} s, {size:.2f} MB "
        f"(first {times[0]:.2f} s)"
    )


def _context(folder: Path) -> MarketContext:
    """Return a simulated market of 500 stocks with an empty store, and a quick training."""
    simulated_market = SimulatedMarket(leaders=LEADERS, followers=FOLLOWERS, start=date(2023, 1, 3))
    source = SimulatedSource(market=simulated_market)
    engine = open_engine(f"sqlite:///{folder}/store.sqlite")
    prepare(engine)
    market = load_market("simulated").with_symbols(sorted(simulated_market.symbols))
    market = replace(market, source="simulated")
    experiment = nightly_of(market.model, z_close="adjusted", returns="adj_close", max_return=0.35)
    return MarketContext(market, source, engine, vary(experiment, QUICK), "cpu")


if __name__ == "__main__":
    main()
