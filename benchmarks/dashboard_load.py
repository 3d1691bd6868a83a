"""Ask the dashboard for 200 pages a second, and hang up on it: what it answers, how fast, and what
it keeps afterwards.

`python -m benchmarks.dashboard_load`: 20 s on a store of each engine; `--engine sqlite` does one. A
quarter of the readers hang up, one in twenty never reads. `--url http://127.0.0.1:8050 --pid PID`
asks a dashboard that is running, as beside `dtml serve`; on this machine alone. Exit 1 on a 5xx, a
missing /health, a failure afterwards, a death.
"""

import argparse
import asyncio
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from benchmarks.store_loading import postgresql
from benchmarks.ten_year_rows import STOCKS, moment
from benchmarks.ten_year_store import MARKETS, TenYears
from db.engine import open_engine, transaction, upgrade
from db.rows import prices

RATE, SECONDS, MOST = 200, 20, 60_000  # requests a second, seconds, requests at all
PREDICTIONS, SESSIONS = 100_000, 9_000
PATIENCE_S = 30  # a request without an answer by then is unanswered
SETTLED_S = 10  # what is kept is looked at after that
# Of twenty readers one never reads, five hang up, four read a CSV, one asks /health, nine read a
# page.
READERS = ("stuck", *["hang up"] * 5, *["csv"] * 4, "health", *["page"] * 9)
LINK = re.compile(r'href="(/[^"#]*)"')
RESET = struct.pack("ii", 1, 0)


@dataclass
class Seen:
    """What came of the requests: the statuses of each kind of reader, and the
    seconds of those answered with 200.
    """

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, status: str, seconds: float) -> None:
        """Count what became of a reader."""
        self.statuses[kind, status] += 1
        if status == "200":
            self.times.setdefault(kind, []).append(seconds)


def main(arguments: Sequence[str] = ()) -> None:
    """Print what the dashboard answered, for each engine or for the one at an address."""
    asked = _arguments(arguments)
    if asked.url:
        verdicts = [measure(asked.url, asked.pid, asked)]
    else:
        verdicts = [
            _measure_engine(engine, asked)
            for engine in ("sqlite", "postgresql")
            if asked.engine in (engine, "both")
        ]
    if not all(verdicts):
        sys.exit(1)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--url", help="of a dashboard that is running on this machine")
    parser.add_argument("--pid", type=int, help="its process, whose memory is measured")
    parser.add_argument("--rate", type=int, default=RATE, help="requests a second")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    asked = parser.parse_args(arguments)
    if asked.url and urlsplit(asked.url).hostname not in ("127.0.0.1", "localhost", "::1"):
        parser.error("--url names a dashboard of this machine alone")
    if not 0 < asked.rate * asked.seconds <= MOST:
        parser.error(f"at most {MOST:,} requests")
    return asked


def _measure_engine(engine: str, asked: argparse.Namespace) -> bool:
    print(f"\n{engine}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if engine == "sqlite":
            return _measure_store(f"sqlite:///{folder}/store.sqlite", asked)
        with postgresql() as server:
            return _measure_store(server.render_as_string(hide_password=False), asked)


def _measure_store(url: str, asked: argparse.Namespace) -> bool:
    fill(url)
    with dashboard_of(url) as (address, process):
        return measure(address, process.pid, asked)


def fill(url: str) -> None:
    """A small store of ten markets, and one stock with as many bars as a long life has."""
    engine = open_engine(url)
    upgrade(engine)
    TenYears.of(PREDICTIONS).fill(engine)
    days = pd.bdate_range(end="2024-12-31", periods=SESSIONS)
    close = 100 + np.arange(SESSIONS) % 50
    bars = pd.DataFrame(
        {"symbol": STOCKS[0], "session": days, "open": close, "high": close, "low": close}
    )
    bars = bars.assign(close=close, adj_close=close, volume=1e6, dividend=np.nan, split=np.nan)
    with transaction(engine) as conn:
        prices.append_prices(
            conn, MARKETS[0], bars, source="files", known_at=moment(days[-1]).to_pydatetime()
        )
    engine.dispose()


@contextmanager
def dashboard_of(url: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A dashboard over a store: its address and its process."""
    command = [str(Path(sys.executable).with_name("dtml")), "dashboard", "--port", "0"]
    environment = os.environ | {"DTML_DATABASE_URL": url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().split()[0], process
        process.send_signal(signal.SIGTERM)


def measure(url: str, pid: int | None, asked: argparse.Namespace) -> bool:
    """Ask for so many seconds and print what came of it; whether all is well."""
    return asyncio.run(_measure(url, pid, asked))


async def _measure(url: str, pid: int | None, asked: argparse.Namespace) -> bool:
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    pages, tables = await _addresses(host, port)
    print(f"{len(pages)} pages, {len(tables)} tables; before: {_kept(pid)}", flush=True)
    seen, stuck = Seen(), list[socket.socket]()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(asked.rate * asked.seconds):
            await asyncio.sleep(max(0.0, began + number / asked.rate - time.perf_counter()))
            kind = READERS[number * 7 % len(READERS)]
            listed = ["/health"] if kind == "health" else pages if kind == "page" else tables
            group.create_task(_read((host, port), listed[number % len(listed)], kind, seen, stuck))
    lasted = time.perf_counter() - began
    print(
        f"{asked.rate * asked.seconds} requests in {asked.seconds} s, the last answer after "
        f"{lasted:.1f} s"
    )
    print(f"loaded: {_kept(pid)}")
    for each in stuck:
        each.close()
    await asyncio.sleep(SETTLED_S)
    after = Seen()
    for address in ("/health", *pages, *tables):
        await _read((host, port), address, "after", after, [])
    return _conclude(seen, after, pid)


async def _addresses(host: str, port: int) -> tuple[list[str], list[str]]:
    """Pages and tables of the first market and its first stock: what a visitor
    finds who follows the first links.
    """
    pages = ["/"]
    tables = ["/sql/rows.csv?q=select+*+from+latest_prediction"]
    for part in (r"/market/[^/?]+$", r"/market/[^/?]+/stock/[^/?]+$", None):
        links = [
            unescape(each)
            for each in LINK.findall((await _asked((host, port), pages[-1]))[1].decode())
        ]
        tables += [each for each in links if each.startswith("/table/") and each not in tables]
        found = next((each for each in links if part and re.match(part, each)), None)
        pages += [found] if found and found not in pages else []
    return pages, tables


async def _read(
    place: tuple[str, int], address: str, kind: str, seen: Seen, stuck: list[socket.socket]
) -> None:
    """One reader: what became of it is added to what was seen."""
    began = time.perf_counter()
    try:
        if kind == "stuck":
            stuck.append(await _stick(place, address))
            status = "never read"
        elif kind == "hang up":
            await asyncio.wait_for(_hang_up(place, address), PATIENCE_S)
            status = "hung up"
        else:
            status, _ = await asyncio.wait_for(_asked(place, address), PATIENCE_S)
    except TimeoutError:
        status = "unanswered"
    except OSError:
        status = "refused"
    seen.add(kind, status, time.perf_counter() - began)


async def _asked(place: tuple[str, int], address: str) -> tuple[str, bytes]:
    """The status of an answer that is read to its end, and its body."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(_request(place, address))
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return head.split()[1].decode() if head else "cut off", body


async def _hang_up(place: tuple[str, int], address: str) -> None:
    """Ask, read a few bytes at most, and reset the connection."""
    reader, writer = await asyncio.open_connection(*place)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.write(_request(place, address))
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(100), 0.2)
    writer.transport.abort()


async def _stick(place: tuple[str, int], address: str) -> socket.socket:
    """Ask through a small buffer and never read; the socket is kept open by the caller."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    kept = socket.socket(family)
    kept.setblocking(False)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await loop.sock_connect(kept, place)
    await loop.sock_sendall(kept, _request(place, address))
    return kept


def _request(place: tuple[str, int], address: str) -> bytes:
    host = f"[{place[0]}]" if ":" in place[0] else place[0]
    return (
        f"GET {address} HTTP/1.1\r\nHost: {host}:{place[1]}\r\nConnection: close\r\n\r\n".encode()
    )


def _kept(pid: int | None) -> str:
    """What a process has: resident MB, threads, sockets and open files."""
    if pid is None:
        return "no --pid, nothing measured"
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        size, threads = (re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "Threads"))
        if size is not None and threads is not None:
            opened = Counter("sockets" if "socket" in each else "files" for each in _opened(pid))
            files = f"{opened['sockets']} sockets, {opened['files']} files"
            return f"{int(size[1]) / 1024:.0f} MB, {threads[1]} threads, {files}"
    return "dead"


def _opened(pid: int) -> Iterator[str]:
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            yield str(each.readlink())


def _conclude(seen: Seen, after: Seen, pid: int | None) -> bool:
    """Print it all; whether nothing failed."""
    for kind in dict.fromkeys(READERS):
        counts = {status: n for (of, status), n in sorted(seen.statuses.items()) if of == kind}
        said = ", ".join(f"{n} {status}" for status, n in counts.items())
        print(f"{kind:>8}: {said}{_percentiles(seen.times.get(kind))}")
    failed = sum(
        n for (_, status), n in (seen.statuses + after.statuses).items() if status.startswith("5")
    )
    healthy = {status for kind, status in seen.statuses if kind == "health"} == {"200"}
    well = set(after.statuses) == {("after", "200")}
    state = _kept(pid)
    print(
        f"5xx: {failed}; /health always: {_said(healthy)}; all pages afterwards: {_said(well)}; "
        f"after: {state}",
        flush=True,
    )
    return failed == 0 and healthy and well and state != "dead"


def _percentiles(times: list[float] | None) -> str:
    if not times:
        return ""
    return "; 200 in " + ", ".join(
        f"p{each} {1000 * np.percentile(times, each):.0f} ms" for each in (50, 95, 99)
    )


def _said(holds: bool) -> str:
    return "yes" if holds else "NO"


if __name__ == "__main__":
    main(sys.argv[1:])
