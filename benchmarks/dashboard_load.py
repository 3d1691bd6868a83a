"""Load the dashboard with 200 requests a second, and read its pages meanwhile.

`python -m benchmarks.dashboard_load [--engine sqlite postgresql] [--rate 200] [--seconds 20]`: on a
store of each engine, three loads in turn. Readers: of twenty, one never reads, five hang up, the
others read pages and CSV files. Statements that never end: as a page of another site asks in a
browser, and as a program asks. On this machine alone. Exit 1 after a 5xx, where /alive fails,
where a page fails afterwards, where memory grows, or where a statement goes on without its reader.
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
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
from sqlalchemy import make_url

from benchmarks.stores import ENGINES, database_on
from benchmarks.ten_year_store import MARKETS, STOCKS, TenYears
from db.admin.roles import grant_reader
from db.engine import open_engine, upgrade

PREDICTIONS = 100_000
PATIENCE_S = 30  # a request without an answer by then is unanswered
PAGE_EVERY_S = 0.5
HEALTH_EVERY_S = 0.25
SETTLED_S = 10  # after the last request, before the pages are read again
GROWTH_MB = 20
PAGES = ("/", f"/market/{MARKETS[0]}", f"/market/{MARKETS[0]}/stock/{STOCKS[0]}", "/tables")
CSV = "/sql/rows.csv?q=select+*+from+latest_prediction"
ENDLESS = (
    "with recursive n(i) as (select cast(1 as bigint) union all select i + 1 from n) select "
    "max(i) from n"
)
CROSS_SITE = {
    "Origin": "http://elsewhere.example",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Dest": "empty",
}
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing the socket resets the connection
VISITOR = "visitor_under_load"

Place = tuple[str, int]  # host and port
Load = Callable[[Place, int], Coroutine[object, object, str]]  # of a request by number


@dataclass
class Answers:
    """The statuses of requests, and the seconds of those that were answered."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    async def add(self, asked: Coroutine[object, object, str]) -> None:
        """Wait for an answer and count its status."""
        start = time.perf_counter()
        status = "cancelled"
        try:
            status = await asyncio.wait_for(asked, PATIENCE_S)
        except TimeoutError:
            status = "unanswered"
        except OSError:
            status = "refused"
        finally:
            self.statuses[status] += 1
        self.seconds.append(time.perf_counter() - start)

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        median, p95 = 1000 * np.percentile(self.seconds or [0.0], [50, 95])
        return f"{counts}; median {median:.0f} ms, p95 {p95:.0f} ms"


async def ask(place: Place, address: str, headers: Mapping[str, str] | None = None) -> str:
    """Read an answer to its end; return its status."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(_request(place, address, headers or {}))
        head = await reader.read(-1)
    finally:
        writer.close()
    return head.split(maxsplit=2)[1].decode() if head else "cut off"


async def hang_up(place: Place, address: str) -> str:
    """Send a request, read a few bytes at most, and reset the connection."""
    reader, writer = await asyncio.open_connection(*place)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.write(_request(place, address, {}))
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(100), 0.2)
    writer.transport.abort()
    return "hung up"


async def never_read(place: Place, address: str) -> str:
    """Send a request through a small buffer, and read nothing for as long as others wait."""
    loop = asyncio.get_running_loop()
    with socket.socket() as stuck:
        stuck.setblocking(False)
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(stuck, place)
        await loop.sock_sendall(stuck, _request(place, address, {}))
        await asyncio.sleep(PATIENCE_S - 1)
    return "never read"


def _request(place: Place, address: str, headers: Mapping[str, str]) -> bytes:
    host, port = place
    lines = [f"GET {address} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def readers(place: Place, number: int) -> str:
    """Be one of twenty readers."""
    kind = number * 7 % 20
    if kind == 0:
        return await never_read(place, CSV)
    if kind <= 5:
        return await hang_up(place, CSV)
    return await ask(place, CSV if kind <= 9 else PAGES[number % len(PAGES)])


def endless(headers: Mapping[str, str]) -> Load:
    """Return a load of statements that never end."""
    address = f"/sql?q={quote(ENDLESS)}"
    return lambda place, _number: ask(place, address, headers)


LOADS: Mapping[str, Load] = {
    "readers of whom a quarter hang up": readers,
    "endless statements of a page of another site": endless(CROSS_SITE),
    "endless statements of a program": endless({}),
}


def main(arguments: Sequence[str] = ()) -> None:
    """Print what each load and a reader beside it were answered."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--rate", type=int, default=200, help="requests a second")
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args(arguments)
    verdicts = []
    for engine in options.engine:
        with database_on(engine) as url, dashboard_of(filled(url)) as (place, pid):
            for name, load in LOADS.items():
                print(f"\n{engine}, {name}", flush=True)
                verdicts.append(
                    asyncio.run(measure(place, pid, load, options.rate, options.seconds))
                )
    if not all(verdicts):
        sys.exit(1)


def filled(url: str) -> str:
    """Fill a small store of ten markets; return the URL of a role that may type SQL."""
    engine = open_engine(url)
    upgrade(engine)
    TenYears.of(PREDICTIONS).fill(engine)
    if engine.dialect.name == "postgresql":
        grant_reader(engine, VISITOR)
        url = make_url(url).set(username=VISITOR).render_as_string(hide_password=False)
    engine.dispose()
    return url


@contextmanager
def dashboard_of(url: str) -> Iterator[tuple[Place, int]]:
    """Start a dashboard over a store; yield its place and its process."""
    command = [str(Path(sys.executable).with_name("dtml")), "dashboard", "--port", "0"]
    environment = os.environ | {"DTML_DATABASE_URL": url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = urlsplit(process.stdout.readline().split()[0])
        yield (address.hostname or "", address.port or 80), process.pid
        process.send_signal(signal.SIGTERM)


async def measure(place: Place, pid: int, load: Load, rate: int, seconds: int) -> bool:
    """Load the dashboard; print the answers; return whether all is well."""
    for page in PAGES:
        await ask(place, page)
    quarter_mb = 0.0
    answers, pages, health, later = Answers(), Answers(), Answers(), Answers()
    ended = asyncio.Event()
    watchers = [
        asyncio.create_task(_repeat(ended, place, PAGES, PAGE_EVERY_S, pages)),
        asyncio.create_task(_repeat(ended, place, ("/alive",), HEALTH_EVERY_S, health)),
    ]
    tasks = []
    start = time.perf_counter()
    for number in range(rate * seconds):
        await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(answers.add(load(place, number))))
        if number == rate * seconds // 4:
            quarter_mb = _resident_mb(pid)
    loaded_mb = _resident_mb(pid)
    ended.set()
    await asyncio.gather(*watchers)
    for task in tasks:  # those that still wait hang up
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(SETTLED_S)
    used_s = _processor_seconds(pid)
    await asyncio.sleep(1)
    used_s = _processor_seconds(pid) - used_s
    for address in ("/alive", *PAGES, CSV):
        await later.add(ask(place, address))
    print(f"load: {answers}\na reader's pages: {pages}\n/alive: {health}\nafterwards: {later}")
    print(
        f"memory {quarter_mb:.0f} MB after a quarter, {loaded_mb:.0f} MB at the end; {used_s:.2f} "
        f"s of the processor in a second, {SETTLED_S} s after the last request",
        flush=True,
    )
    statuses = answers.statuses + pages.statuses + later.statuses
    return (
        not any(status.startswith("5") for status in statuses)
        and set(health.statuses) == set(later.statuses) == {"200"}
        and loaded_mb - quarter_mb < GROWTH_MB
        and used_s < 0.5
    )


async def _repeat(
    ended: asyncio.Event, place: Place, addresses: Sequence[str], every_s: float, answers: Answers
) -> None:
    number = 0
    while not ended.is_set():
        await answers.add(ask(place, addresses[number % len(addresses)]))
        number += 1
        await asyncio.sleep(every_s)


def _resident_mb(pid: int) -> float:
    (resident_kb,) = re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(resident_kb) / 1024


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process and of its database so far, in seconds.

    PostgreSQL's sessions are processes of their own, whose command line names the role.
    """
    ticks = _processor_ticks(pid)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if VISITOR.encode() in (process / "cmdline").read_bytes():
                ticks += _processor_ticks(int(process.name))
    return ticks / os.sysconf("SC_CLK_TCK")


def _processor_ticks(pid: int) -> int:
    """Return the clock ticks of a process, its own and those of the system on its behalf."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    user_ticks, system_ticks = after_name.split()[11:13]
    return int(user_ticks) + int(system_ticks)


if __name__ == "__main__":
    main(sys.argv[1:])
