"""Request 200 pages a second from the dashboard, and hang up on it.

Prints what it answers, how fast, and what it holds afterwards. `python -m
benchmarks.dashboard_load`: 20 s on a store of each engine; `--engine sqlite` does one. A quarter of
the readers hang up, one in twenty never reads. `--url http://127.0.0.1:8050 --pid PID` uses a
dashboard that is running, as beside `dtml serve`; on this machine only. Exit 1 on a 5xx, a missing
/alive, a failure afterwards, a death.
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

RATE = 200  # requests a second
SECONDS = 20
MOST = 60_000  # requests in all
PREDICTIONS = 100_000
SESSIONS = 9_000
PATIENCE_S = 30  # a request without an answer by then is unanswered
SETTLED_S = 10  # after the last request, before the pages are read again
# Of twenty readers one never reads, five hang up, four read a CSV, one reads /alive, nine read a
# page.
READERS = ("stuck", *["hang up"] * 5, *["csv"] * 4, "health", *["page"] * 9)
LINK = re.compile(r'href="(/[^"#]*)"')
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing the socket resets the connection


@dataclass
class Answers:
    """The statuses of the requests of each kind of reader, and the seconds of those with 200."""

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, status: str, seconds: float) -> None:
        """Count the status of a reader's request."""
        self.statuses[kind, status] += 1
        if status == "200":
            self.times.setdefault(kind, []).append(seconds)


def main(arguments: Sequence[str] = ()) -> None:
    """Print what the dashboard answered, for each engine or for the one at an address."""
    options = _arguments(arguments)
    if options.url:
        verdicts = [measure(options.url, options.pid, options)]
    else:
        verdicts = [
            _measure_engine(engine, options)
            for engine in ("sqlite", "postgresql")
            if options.engine in (engine, "both")
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
    options = parser.parse_args(arguments)
    if options.url and urlsplit(options.url).hostname not in ("127.0.0.1", "localhost", "::1"):
        parser.error("--url names a dashboard of this machine alone")
    if not 0 < options.rate * options.seconds <= MOST:
        parser.error(f"at most {MOST:,} requests")
    return options


def _measure_engine(engine: str, options: argparse.Namespace) -> bool:
    print(f"\n{engine}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if engine == "sqlite":
            return _measure_store(f"sqlite:///{folder}/store.sqlite", options)
        with postgresql() as server:
            return _measure_store(server.render_as_string(hide_password=False), options)


def _measure_store(url: str, options: argparse.Namespace) -> bool:
    fill(url)
    with dashboard_of(url) as (address, process):
        return measure(address, process.pid, options)


def fill(url: str) -> None:
    """Write a small store of ten markets, with a stock that has 35 years of bars."""
    engine = open_engine(url)
    upgrade(engine)
    TenYears.of(PREDICTIONS).fill(engine)
    days = pd.bdate_range(end="2024-12-31", periods=SESSIONS)
    close = 100 + np.arange(SESSIONS) % 50
    bars = pd.DataFrame(
        {
            "symbol": STOCKS[0],
            "session": days,
            "open": close,
            "high": close,
            "low": close,
            "close": close,
            "adj_close": close,
            "volume": 1e6,
            "dividend": np.nan,
            "split": np.nan,
        }
    )
    known_at = moment(days[-1]).to_pydatetime()
    with transaction(engine) as conn:
        prices.append_prices(conn, MARKETS[0], bars, source="files", known_at=known_at)
    engine.dispose()


@contextmanager
def dashboard_of(url: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Start a dashboard over a store; yield its address and its process."""
    command = [str(Path(sys.executable).with_name("dtml")), "dashboard", "--port", "0"]
    environment = os.environ | {"DTML_DATABASE_URL": url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().split()[0]
        yield address, process
        process.send_signal(signal.SIGTERM)


def measure(url: str, pid: int | None, options: argparse.Namespace) -> bool:
    """Send requests for some seconds and print the answers; return whether all is well."""
    return asyncio.run(_measure(url, pid, options))


async def _measure(url: str, pid: int | None, options: argparse.Namespace) -> bool:
    place = place_of(url)
    pages, tables = await _addresses(place)
    print(f"{len(pages)} pages, {len(tables)} tables; before: {_resources(pid)}", flush=True)
    addresses = {"health": ["/alive"], "page": pages}
    requests = options.rate * options.seconds
    answers = Answers()
    stuck_sockets: list[socket.socket] = []
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(requests):
            await asyncio.sleep(max(0.0, start + number / options.rate - time.perf_counter()))
            kind = READERS[number * 7 % len(READERS)]
            choices = addresses.get(kind, tables)
            address = choices[number % len(choices)]
            group.create_task(_read(place, address, kind, answers, stuck_sockets))
    seconds = time.perf_counter() - start
    print(f"{requests} requests in {options.seconds} s, the last answer after {seconds:.1f} s")
    print(f"loaded: {_resources(pid)}")
    for stuck_socket in stuck_sockets:
        stuck_socket.close()
    await asyncio.sleep(SETTLED_S)
    later_answers = Answers()
    for address in ("/alive", *pages, *tables):
        await _read(place, address, "after", later_answers, [])
    return _conclude(answers, later_answers, pid)


def place_of(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


async def _addresses(place: tuple[str, int]) -> tuple[list[str], list[str]]:
    """Return the pages of the first market and its first stock, and the tables on them.

    A visitor who follows the first links finds these.
    """
    pages = ["/"]
    tables = ["/sql/rows.csv?q=select+*+from+latest_prediction"]
    await _follow(place, pages, tables, next_page=r"/market/[^/?]+$")
    await _follow(place, pages, tables, next_page=r"/market/[^/?]+/stock/[^/?]+$")
    await _follow(place, pages, tables, next_page=None)
    return pages, tables


async def _follow(
    place: tuple[str, int], pages: list[str], tables: list[str], *, next_page: str | None
) -> None:
    """Add the tables that the last page links to, and the first page of a pattern."""
    _, body = await _answer_of(place, pages[-1])
    links = [unescape(link) for link in LINK.findall(body.decode())]
    tables += [link for link in links if link.startswith("/table/") and link not in tables]
    if next_page is None:
        return
    for link in links:
        if re.match(next_page, link):
            if link not in pages:
                pages.append(link)
            return


async def _read(
    place: tuple[str, int],
    address: str,
    kind: str,
    answers: Answers,
    stuck_sockets: list[socket.socket],
) -> None:
    """Send the request of a reader of some kind, and add its status to the answers."""
    start = time.perf_counter()
    try:
        if kind == "stuck":
            stuck_sockets.append(await _stick(place, address))
            status = "never read"
        elif kind == "hang up":
            await asyncio.wait_for(_hang_up(place, address), PATIENCE_S)
            status = "hung up"
        else:
            status, _ = await asyncio.wait_for(_answer_of(place, address), PATIENCE_S)
    except TimeoutError:
        status = "unanswered"
    except OSError:
        status = "refused"
    answers.add(kind, status, time.perf_counter() - start)


async def _answer_of(place: tuple[str, int], address: str) -> tuple[str, bytes]:
    """Return the status of an answer that is read to its end, and its body."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(_request(place, address))
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = head.split()[1].decode() if head else "cut off"
    return status, body


async def _hang_up(place: tuple[str, int], address: str) -> None:
    """Send a request, read a few bytes at most, and reset the connection."""
    reader, writer = await asyncio.open_connection(*place)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.write(_request(place, address))
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(100), 0.2)
    writer.transport.abort()


async def _stick(place: tuple[str, int], address: str) -> socket.socket:
    """Send a request through a small buffer and never read; the caller keeps the socket open."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    stuck_socket = socket.socket(family)
    stuck_socket.setblocking(False)
    stuck_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await loop.sock_connect(stuck_socket, place)
    await loop.sock_sendall(stuck_socket, _request(place, address))
    return stuck_socket


def _request(place: tuple[str, int], address: str) -> bytes:
    host, port = place
    if ":" in host:  # an address of IPv6
        host = f"[{host}]"
    lines = [f"GET {address} HTTP/1.1", f"Host: {host}:{port}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode()


def _resources(pid: int | None) -> str:
    """Return what a process holds: resident MB, threads, sockets and open files."""
    if pid is None:
        return "no --pid, nothing measured"
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        resident_kb = re.search(r"VmRSS:\s+(\d+)", status)
        threads = re.search(r"Threads:\s+(\d+)", status)
        if resident_kb is not None and threads is not None:
            targets = list(_open_targets(pid))
            sockets = sum("socket" in target for target in targets)
            files = f"{sockets} sockets, {len(targets) - sockets} files"
            return f"{int(resident_kb[1]) / 1024:.0f} MB, {threads[1]} threads, {files}"
    return "dead"


def _open_targets(pid: int) -> Iterator[str]:
    """Yield what each file descriptor of a process leads to."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            yield str(descriptor.readlink())


def _conclude(answers: Answers, later_answers: Answers, pid: int | None) -> bool:
    """Print the results; return whether nothing failed."""
    for kind in dict.fromkeys(READERS):
        counts = [
            f"{count} {status}"
            for (reader, status), count in sorted(answers.statuses.items())
            if reader == kind
        ]
        print(f"{kind:>8}: {', '.join(counts)}{_percentiles(answers.times.get(kind))}")
    failures = 0
    for (_, status), count in (answers.statuses + later_answers.statuses).items():
        if status.startswith("5"):
            failures += count
    health_statuses = {status for kind, status in answers.statuses if kind == "health"}
    is_healthy = health_statuses == {"200"}
    is_well = set(later_answers.statuses) == {("after", "200")}
    state = _resources(pid)
    print(
        f"5xx: {failures}; /alive always: {_yes_or_no(is_healthy)}; "
        f"all pages afterwards: {_yes_or_no(is_well)}; after: {state}",
        flush=True,
    )
    return failures == 0 and is_healthy and is_well and state != "dead"


def _percentiles(times: list[float] | None) -> str:
    if not times:
        return ""
    percentiles = [
        f"p{share} {1000 * np.percentile(times, share):.0f} ms" for share in (50, 95, 99)
    ]
    return "; 200 in " + ", ".join(percentiles)


def _yes_or_no(holds: bool) -> str:
    return "yes" if holds else "NO"


if __name__ == "__main__":
    main(sys.argv[1:])
