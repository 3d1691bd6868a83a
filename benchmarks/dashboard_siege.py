"""Ask the dashboard for endless SQL 200 times a second, and read its pages meanwhile.

`python -m benchmarks.dashboard_siege`: 20 s on a store of each engine, once as a page of another
site asks in a browser and once as a program asks that says nothing of itself. On this machine
alone. Exit 1 when a reader waits longer than 2 s for a page, when /alive fails, when memory grows,
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
from urllib.parse import quote

import numpy as np
from sqlalchemy import make_url

from benchmarks.dashboard_load import MOST, RATE, SECONDS, dashboard_of, fill, place_of
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
PAGE_EVERY_S = 0.5
HEALTH_EVERY_S = 0.25
MEMORY_EVERY_S = 0.5
PAGE_LIMIT_S = 2.0  # for a reader's page
ATTACKER_WAITS_S = 30
PEACE_S = 6
SETTLED_S = 3  # after the last attacker left
GROWTH_MB = 20
VISITOR = "visitor_of_siege"


@dataclass
class Siege:
    """The results of an attack: the statuses of its statements, and what a reader gets meanwhile.

    The reader's pages and /alive have their statuses and seconds; memory is in MB.
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
    options = _arguments(arguments)
    verdicts: list[bool] = []
    for engine in ("sqlite", "postgresql"):
        if options.engine in (engine, "both"):
            verdicts += _measure_engine(engine, options)
    if not all(verdicts):
        sys.exit(1)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--rate", type=int, default=RATE, help="statements a second")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    options = parser.parse_args(arguments)
    if not 0 < options.rate * options.seconds <= MOST:
        parser.error(f"at most {MOST:,} requests")
    return options


def _measure_engine(engine: str, options: argparse.Namespace) -> list[bool]:
    with tempfile.TemporaryDirectory() as folder:
        if engine == "sqlite":
            url = f"sqlite:///{folder}/store.sqlite"
            fill(url)
            return _measure_attacks(engine, url, options)
        with postgresql() as server:
            url = server.render_as_string(hide_password=False)
            fill(url)
            return _measure_attacks(engine, _as_visitor(url), options)


def _as_visitor(url: str) -> str:
    """Return the store's URL for a role that only reads it: a superuser may type no SQL."""
    owner = open_engine(url)
    grant_reader(owner, VISITOR)
    owner.dispose()
    return make_url(url).set(username=VISITOR).render_as_string(hide_password=False)


def _measure_attacks(engine: str, url: str, options: argparse.Namespace) -> list[bool]:
    verdicts = []
    for attacker, headers in ATTACKS.items():
        with dashboard_of(url) as (address, process):
            print(f"\n{engine}, statements of {attacker}", flush=True)
            verdicts.append(asyncio.run(_besiege(address, process.pid, headers, options)))
    return verdicts


async def _besiege(
    address: str, pid: int, headers: Mapping[str, str], options: argparse.Namespace
) -> bool:
    siege = Siege(place_of(address))
    for page in PAGES:
        await _status(siege.place, page)
    await _read_in_peace(siege.place)
    ended = asyncio.Event()
    watchers = [
        asyncio.create_task(_read_pages(siege, ended)),
        asyncio.create_task(_ask_health(siege, ended)),
        asyncio.create_task(_watch_memory(siege, pid, ended)),
    ]
    await _attack(siege, headers, options)
    ended.set()
    await asyncio.gather(*watchers)
    await asyncio.sleep(SETTLED_S)
    before = _processor_seconds(pid)
    await asyncio.sleep(1)
    return _conclude(siege, _processor_seconds(pid) - before)


async def _read_in_peace(place: tuple[str, int]) -> None:
    """Print the times of the reader's pages without an attack, on this machine, for comparison."""
    alone = Siege(place)
    ended = asyncio.Event()
    reading = asyncio.create_task(_read_pages(alone, ended))
    await asyncio.sleep(PEACE_S)
    ended.set()
    await reading
    print(f"pages before: {_counted(alone.pages)}; {_times(alone.page_times)}")


async def _attack(siege: Siege, headers: Mapping[str, str], options: argparse.Namespace) -> None:
    """Send the statements at their rate; at the end, hang up on those that are not answered."""
    start = time.perf_counter()
    tasks = []
    for number in range(options.rate * options.seconds):
        await asyncio.sleep(max(0.0, start + number / options.rate - time.perf_counter()))
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
        start = time.perf_counter()
        status = await _status(siege.place, PAGES[number % len(PAGES)])
        siege.pages[status] += 1
        siege.page_times.append(time.perf_counter() - start)
        number += 1
        await asyncio.sleep(PAGE_EVERY_S)


async def _ask_health(siege: Siege, ended: asyncio.Event) -> None:
    while not ended.is_set():
        start = time.perf_counter()
        status = await _status(siege.place, "/alive")
        siege.health[status] += 1
        siege.health_times.append(time.perf_counter() - start)
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
    """Return the status of an answer that is read to its end.

    "unanswered" after the limit, "refused" without a connection.
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
        header_lines = [f"{name}: {value}" for name, value in headers.items()]
        lines = [
            f"GET {address} HTTP/1.1",
            f"Host: {place[0]}:{place[1]}",
            *header_lines,
            "Connection: close",
            "",
            "",
        ]
        writer.write("\r\n".join(lines).encode())
        head = await reader.read(-1)
    finally:
        writer.close()
    return head.split(maxsplit=2)[1].decode() if head else "cut off"


def _resident_mb(pid: int) -> float:
    resident_kb = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(resident_kb[1]) / 1024 if resident_kb else 0.0


def _processor_seconds(pid: int) -> float:
    """Return the processor time that a process and its database have used so far, in seconds.

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
    fields = after_name.split()
    user_ticks = int(fields[11])
    system_ticks = int(fields[12])
    return user_ticks + system_ticks


def _conclude(siege: Siege, used_s: float) -> bool:
    """Print the results; return whether the reader was served, and no statement goes on."""
    print(f"statements: {_counted(siege.statements)}")
    print(f"pages of a reader: {_counted(siege.pages)}; {_times(siege.page_times)}")
    print(f"/alive: {_counted(siege.health)}; {_times(siege.health_times)}")
    settled = siege.memory[len(siege.memory) // 4 :]
    print(f"memory: {settled[0]:.0f} MB after a quarter, then at most {max(settled):.0f} MB")
    print(
        f"processor in a second, {SETTLED_S} s after the last attacker hung up: {used_s:.2f} s",
        flush=True,
    )
    is_answered = set(siege.pages) == set(siege.health) == {"200"}
    is_quick = max(siege.page_times) < PAGE_LIMIT_S
    is_flat = max(settled) - settled[0] < GROWTH_MB
    is_idle = used_s < 0.5
    return is_answered and is_quick and is_flat and is_idle


def _counted(statuses: Counter[str]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items()))


def _times(seconds: Sequence[float]) -> str:
    median, p95 = 1000 * np.percentile(seconds, [50, 95])
    return f"median {median:.0f} ms, p95 {p95:.0f} ms, slowest {1000 * max(seconds):.0f} ms"


if __name__ == "__main__":
    main(sys.argv[1:])
