"""Ask the dashboard for endless SQL 200 times a second, and read its pages meanwhile.

`python -m benchmarks.dashboard_siege`: 20 s on a store of each engine, once as a page of another
site asks in a browser and once as a program asks that says nothing of itself. On this machine
alone. Exit 1 when a reader waits longer than 2 s for a page, when /health fails, when memory grows,
or when a statement goes on without its reader.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
from sqlalchemy import make_url

from benchmarks.dashboard_load import MOST, RATE, SECONDS, dashboard_of, fill
from benchmarks.store_loading import postgresql
from benchmarks.ten_year_store import MARKETS
from db.admin.roles import grant_reader
from db.engine import open_engine

ENDLESS = (
    "with recursive n(i) as (select cast(1 as bigint) union all select i + 1 from n) select "
    "max(i) from n"
)
STATEMENT = f"/sql?q={quote(ENDLESS)}"
CROSS_SITE = {
    "Origin": "http://elsewhere.example",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Dest": "empty",
}
ATTACKS: Mapping[str, Mapping[str, str]] = {"a page of another site": CROSS_SITE, "a program": {}}
PAGES = ("/", f"/market/{MARKETS[0]}", "/tables")
PAGE_EVERY_S, HEALTH_EVERY_S, MEMORY_EVERY_S = 0.5, 0.25, 0.5
PAGE_LIMIT_S = 2.0  # for a reader's page
ATTACKER_WAITS_S = 30
PEACE_S = 6
SETTLED_S = 3  # after the last attacker left
GROWTH_MB = 20
VISITOR = "visitor_of_siege"


@dataclass
class Siege:
    """What came of an attack: statuses of its statements, and the seconds of
    pages and of /health for a reader.
    """

    place: tuple[str, int]
    statements: Counter[str] = field(default_factory=Counter)
    pages: Counter[str] = field(default_factory=Counter)
    page_times: list[float] = field(default_factory=list)
    health: Counter[str] = field(default_factory=Counter)
    health_times: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] = ()) -> None:
    """Print what a reader saw during each attack, on each engine."""
    asked = _arguments(arguments)
    engines = [engine for engine in ("sqlite", "postgresql") if asked.engine in (engine, "both")]
    verdicts = [verdict for engine in engines for verdict in _measure_engine(engine, asked)]
    if not all(verdicts):
        sys.exit(1)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--rate", type=int, default=RATE, help="statements a second")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    asked = parser.parse_args(arguments)
    if not 0 < asked.rate * asked.seconds <= MOST:
        parser.error(f"at most {MOST:,} requests")
    return asked


def _measure_engine(engine: str, asked: argparse.Namespace) -> list[bool]:
    with tempfile.TemporaryDirectory() as folder:
        if engine == "sqlite":
            url = f"sqlite:///{folder}/store.sqlite"
            fill(url)
            return _measure_attacks(engine, url, asked)
        with postgresql() as server:
            url = server.render_as_string(hide_password=False)
            fill(url)
            return _measure_attacks(engine, _as_visitor(url), asked)


def _as_visitor(url: str) -> str:
    """The store as a role that reads it: a superuser may type no SQL."""
    owner = open_engine(url)
    grant_reader(owner, VISITOR)
    owner.dispose()
    return make_url(url).set(username=VISITOR).render_as_string(hide_password=False)


def _measure_attacks(engine: str, url: str, asked: argparse.Namespace) -> list[bool]:
    verdicts = []
    for attacker, headers in ATTACKS.items():
        with dashboard_of(url) as (address, process):
            print(f"\n{engine}, statements of {attacker}", flush=True)
            verdicts.append(asyncio.run(_besiege(address, process.pid, headers, asked)))
    return verdicts


async def _besiege(
    address: str, pid: int, headers: Mapping[str, str], asked: argparse.Namespace
) -> bool:
    siege = Siege((urlsplit(address).hostname or "", urlsplit(address).port or 80))
    for page in PAGES:
        await _status(siege.place, page)
    await _read_in_peace(siege.place)
    ended = asyncio.Event()
    watchers = [
        asyncio.create_task(_read_pages(siege, ended)),
        asyncio.create_task(_ask_health(siege, ended)),
        asyncio.create_task(_watch_memory(siege, pid, ended)),
    ]
    await _attack(siege, headers, asked)
    ended.set()
    await asyncio.gather(*watchers)
    await asyncio.sleep(SETTLED_S)
    before = _processor_seconds(pid)
    await asyncio.sleep(1)
    return _conclude(siege, _processor_seconds(pid) - before)


async def _read_in_peace(place: tuple[str, int]) -> None:
    """Print what the reader's pages take without an attack: what they are to be
    compared with on this machine.
    """
    alone, ended = Siege(place), asyncio.Event()
    reading = asyncio.create_task(_read_pages(alone, ended))
    await asyncio.sleep(PEACE_S)
    ended.set()
    await reading
    print(f"pages before: {_counted(alone.pages)}; {_times(alone.page_times)}")


async def _attack(siege: Siege, headers: Mapping[str, str], asked: argparse.Namespace) -> None:
    """Send the statements at their rate; when the time is over, hang up on
    those that are not answered.
    """
    began = time.perf_counter()
    tasks = []
    for number in range(asked.rate * asked.seconds):
        await asyncio.sleep(max(0.0, began + number / asked.rate - time.perf_counter()))
        tasks.append(asyncio.create_task(_ask_statement(siege, headers)))
    await asyncio.sleep(1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _ask_statement(siege: Siege, headers: Mapping[str, str]) -> None:
    status = "unanswered"
    try:
        status = await _status(siege.place, STATEMENT, headers, ATTACKER_WAITS_S)
    finally:
        siege.statements[status] += 1


async def _read_pages(siege: Siege, ended: asyncio.Event) -> None:
    number = 0
    while not ended.is_set():
        began = time.perf_counter()
        siege.pages[await _status(siege.place, PAGES[number % len(PAGES)])] += 1
        siege.page_times.append(time.perf_counter() - began)
        number += 1
        await asyncio.sleep(PAGE_EVERY_S)


async def _ask_health(siege: Siege, ended: asyncio.Event) -> None:
    while not ended.is_set():
        began = time.perf_counter()
        siege.health[await _status(siege.place, "/health")] += 1
        siege.health_times.append(time.perf_counter() - began)
        await asyncio.sleep(HEALTH_EVERY_S)


async def _watch_memory(siege: Siege, pid: int, ended: asyncio.Event) -> None:
    while not ended.is_set():
        siege.memory.append(_resident_mb(pid))
        await asyncio.sleep(MEMORY_EVERY_S)


async def _status(
    place: tuple[str, int],
    address: str,
    headers: Mapping[str, str] | None = None,
    limit_s: float = 60,
) -> str:
    """The status of an answer that is read to its end; "unanswered" after the
    limit, "refused" without a connection.
    """
    try:
        return await asyncio.wait_for(_answered(place, address, headers or {}), limit_s)
    except TimeoutError:
        return "unanswered"
    except OSError:
        return "refused"


async def _answered(place: tuple[str, int], address: str, headers: Mapping[str, str]) -> str:
    reader, writer = await asyncio.open_connection(*place)
    try:
        said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = (
            f"GET {address} HTTP/1.1\r\nHost: {place[0]}:{place[1]}\r\n{said}Connection: "
            "close\r\n\r\n"
        )
        writer.write(request.encode())
        head = await reader.read(-1)
    finally:
        writer.close()
    return head.split(maxsplit=2)[1].decode() if head else "cut off"


def _resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _processor_seconds(pid: int) -> float:
    """What a process and its database have used of the processors: PostgreSQL's
    sessions are processes beside it.
    """
    used = _processor_ticks(pid)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if VISITOR.encode() in (process / "cmdline").read_bytes():
                used += _processor_ticks(int(process.name))
    return used / os.sysconf("SC_CLK_TCK")


def _processor_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _conclude(siege: Siege, used_s: float) -> bool:
    """Print it all; whether the reader was served, and whether nothing goes on after it."""
    print(f"statements: {_counted(siege.statements)}")
    print(f"pages of a reader: {_counted(siege.pages)}; {_times(siege.page_times)}")
    print(f"/health: {_counted(siege.health)}; {_times(siege.health_times)}")
    settled = siege.memory[len(siege.memory) // 4 :]
    print(f"memory: {settled[0]:.0f} MB after a quarter, then at most {max(settled):.0f} MB")
    print(
        f"processor in a second, {SETTLED_S} s after the last attacker hung up: {used_s:.2f} s",
        flush=True,
    )
    answered = set(siege.pages) == set(siege.health) == {"200"}
    flat = max(settled) - settled[0] < GROWTH_MB
    return answered and max(siege.page_times) < PAGE_LIMIT_S and flat and used_s < 0.5


def _counted(statuses: Counter[str]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items()))


def _times(seconds: Sequence[float]) -> str:
    middle, late = (1000 * np.percentile(seconds, each) for each in (50, 95))
    return f"median {middle:.0f} ms, p95 {late:.0f} ms, slowest {1000 * max(seconds):.0f} ms"


if __name__ == "__main__":
    main(sys.argv[1:])
