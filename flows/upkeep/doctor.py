"""Examine whether this machine can run nights, and if not, say what has to be done."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from http.client import HTTPException
from importlib.metadata import requires, version
from pathlib import Path
from typing import get_args

import torch
from packaging.requirements import Requirement
from sqlalchemy import text

from db.engine import location, open_engine, prepare, reading, transaction
from db.errors import StoreError
from dtml.devices import choose_device
from dtml.errors import DtmlError
from dtml.markets import Market, load_market
from dtml.markets.definition import AnyCalendar, SourceName
from dtml.pages.figures import counted
from dtml.prices.sessions import last_known_day
from dtml.self_test import TOLERANCE, self_test
from dtml.sources import Source, open_source
from dtml.sources.yahoo import YahooSource
from flows.service.prefect_server import (
    LOGIN,
    ask,
    require_server,
    stop_servers,
    warning_of_open_server,
)
from flows.service.status import CALENDAR_WARNING, end_of_calendar, named_markets
from flows.settings import data_folder, reports_folder
from translation.decoding.beam_search import Search, search
from translation.transformer import TransformerConfig

ROOM = 2**30  # bytes free for a store, its models and pages
APART_S = 60  # seconds by which this clock may differ from the database's
ANSWER_S = 10  # seconds that Prefect may take to answer
PROBED = "sp500"  # the market whose index Yahoo is asked for
DISTRIBUTION = "dtml-nightshift"
OPTIONAL = ("yahoo", "feeds", "calendars")  # parts without which some nights can run


@dataclass(frozen=True)
class Finding:
    """The result of one check of the machine; nights need only what is `needed`."""

    part: str
    said: str  # what the check found: the state of the part, or its fault and what to do
    is_well: bool
    needed: bool


def examined(device: str = "auto") -> Iterator[Finding]:
    """Yield a finding for each part of this machine; a check that fails is one too.

    The self-test runs on `device`: cpu, cuda, or auto for every one. The checks start a temporary
    Prefect server where none is set, ask Yahoo and own feeds for a week, and make folders and
    tables.
    """
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    devices = {"cpu": ["cpu"], "cuda": gpus or ["cuda"], "auto": ["cpu", *gpus]}[device]
    checks: dict[str, Callable[[], str]] = {
        "python": _python,
        "packages": _packages,
        "processor": _processor,
        "data folder": partial(_writable, data_folder(), "DTML_DATA"),
        "reports folder": partial(_writable, reports_folder(), "DTML_REPORTS"),
        "database": _database,
        "clock": _clock,
        "calendars": _calendars,
        "prefect": _prefect,
        "yahoo": _yahoo,
        "feeds": _feeds,
        **{name: partial(_device, name) for name in devices},
    }
    for part, check in checks.items():
        needed = part not in OPTIONAL
        try:
            yield Finding(part, check(), is_well=True, needed=needed)
        except (DtmlError, StoreError) as error:
            yield Finding(part, str(error), is_well=False, needed=needed)
        except Exception as error:  # noqa: BLE001 - any failure of a check is a finding
            said = f"{type(error).__name__}: {error}"
            yield Finding(part, said, is_well=False, needed=needed)


def _python() -> str:
    return f"{platform.python_version()} on {platform.platform(terse=True)}, {platform.machine()}"


def _packages() -> str:
    requirements = [Requirement(line) for line in requires(DISTRIBUTION) or ()]
    untested = [
        f"{each.name} {version(each.name)} is outside the tested versions {each.specifier}"
        for each in requirements
        # An extra is optional.
        if each.marker is None and version(each.name) not in each.specifier
    ]
    if untested:
        raise DtmlError(
            f"{', '.join(untested)}: install dtml again with its constraints, as with `pip install "
            "-c constraints.txt -e .` in the folder of its repository"
        )
    main_packages = ("torch", "prefect", "pandas", "sqlalchemy", "yfinance")
    versions = ", ".join(f"{name} {version(name)}" for name in main_packages)
    return f"dtml {version(DISTRIBUTION)}, {versions}"


def _processor() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    threads = torch.get_num_threads()
    return f"{cores} cores, {threads} threads of torch, {memory_gib:.0f} GiB of memory"


def _writable(folder: Path, variable: str) -> str:
    """Return how much room a folder has; DtmlError, naming `variable`, below `ROOM`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Some faults, such as a full disk, show only when bytes reach the disk.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 2**20)
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise DtmlError(
            f"{folder} is not writable ({error.strerror}): remove the cause, or set {variable} to "
            "another folder"
        ) from error
    if free < ROOM:
        raise DtmlError(
            f"{folder} has only {free / 2**20:.0f} MiB free, less than {ROOM / 2**20:.0f} MiB: "
            f"free some space, or set {variable} to another folder"
        )
    return f"{folder}, {free / 2**30:.0f} GiB free"


def _database() -> str:
    engine = open_engine()
    # A transaction waits for its turn to write, as a night does; this one writes nothing.
    with transaction(engine) as conn:
        conn.execute(text("select 1"))
    prepare(engine)
    return f"{engine.dialect.name}, {location(engine)}"


def _clock() -> str:
    """Return this machine's time and zone; raises DtmlError if `APART_S` off PostgreSQL's."""
    engine = open_engine()
    if engine.dialect.name == "postgresql":
        with reading(engine) as conn:
            database_time = conn.execute(text("select current_timestamp")).scalar_one()
        difference_s = abs((datetime.now(UTC) - database_time).total_seconds())
        if difference_s > APART_S:
            raise DtmlError(
                f"this machine's clock and the database's differ by {difference_s:.0f} s, more "
                f"than {APART_S} s: correct the wrong one, for example with NTP"
            )
    local = datetime.now().astimezone()
    return (
        f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()} (UTC{local:%z}); schedules use each "
        "exchange's own time zone"
    )


def _calendars() -> str:
    """Return how many calendars the store's markets have, and when the first of these ends.

    Raises DtmlError where at most `CALENDAR_WARNING` is left.
    """
    ends: dict[AnyCalendar, date] = {}
    for market in named_markets(open_engine(), (), ()).values():
        if market is not None:  # None: no file that can be read defines it
            ends[market.calendar] = last_known_day(market.calendar)
    if not ends:
        return "the store has no market yet"
    calendar = min(ends, key=ends.__getitem__)
    if ends[calendar] - datetime.now(UTC).date() <= CALENDAR_WARNING:
        raise DtmlError(end_of_calendar(calendar, ends[calendar]))
    return f"{counted(len(ends), 'calendar')}; the first of them ends on {ends[calendar]}"


def _prefect() -> str:
    """Return the server that flows would use: PREFECT_API_URL, or a temporary one, ended here.

    This process cannot run flows afterwards. Raises DtmlError without an answer, or a login.
    """
    url = os.environ.get("PREFECT_API_URL")
    if url:
        warning = warning_of_open_server()
        if warning:
            raise DtmlError(warning.removeprefix("warning: "))
        try:
            ask(url.rstrip("/"), os.environ.get(LOGIN), ANSWER_S)
        except (OSError, HTTPException, ValueError) as error:  # as `ask` raises them
            raise DtmlError(
                f"the Prefect server at {url} did not accept a request ({error}): start it, "
                f"correct PREFECT_API_URL or, if it requires a login, set {LOGIN}=USER:PASSWORD"
            ) from error
        return f"the server at {url}"
    start = time.monotonic()
    require_server()
    stop_servers()
    return f"a temporary server started in {time.monotonic() - start:.0f} s"


def _yahoo() -> str:
    market = replace(load_market(PROBED), constituents=())  # its index alone is asked for
    try:
        return _last_week(market, YahooSource(market))
    except DtmlError as error:
        without = "nights with prices from files or of the simulated market need no network"
        proxy = (
            "Behind a proxy, set HTTPS_PROXY, and if the proxy inspects TLS, set SSL_CERT_FILE to "
            "its certificates"
        )
        raise DtmlError(f"{error}; {without}. {proxy}") from error


def _feeds() -> str:
    answers: list[str] = []
    faults: list[str] = []
    for name, market in named_markets(open_engine(), (), ()).items():
        # None: no file that can be read defines it. SourceName has the product's own sources.
        if market is None or market.source in get_args(SourceName):
            continue
        try:
            answers.append(f"{name}: {_last_week(market, open_source(market.source, market))}")
        except DtmlError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise DtmlError("; ".join(faults))
    return "; ".join(answers) or "no market of the store has a feed of your own"


def _last_week(market: Market, source: Source) -> str:
    """Return in words what a source answers for the last week of a market's index, or first
    constituent.

    Raises DtmlError where there was no bar.
    """
    symbol = market.index.symbol
    if market.index.of_constituents:
        stocks = (*market.symbols, *(source.symbols() or ()))
        if not stocks:
            raise DtmlError(f"neither the market {market.name} nor its source lists a stock")
        symbol = stocks[0]
    today = date.today()  # noqa: DTZ011 - any day will do
    a_week_ago = today - timedelta(days=7)
    answer = source.fetch({symbol: a_week_ago}, today)
    outcome = answer.outcomes.iloc[0]
    if outcome["status"] != "ok":
        # `_yahoo` says by itself what to do.
        advice = "" if source.name == "yahoo" else "; correct the feed, or try again later"
        raise DtmlError(
            f"{source.name} sent no bar of {symbol} since {a_week_ago} "
            f"({outcome['status']}: {outcome['detail']}){advice}"
        )
    last_session = answer.bars["session"].max()
    return f"{counted(len(answer.bars), 'bar')} of {symbol}, the last from {last_session:%Y-%m-%d}"


def _device(name: str) -> str:
    # Trainings call this too: it raises where the machine has no GPU, and makes operations
    # repeatable.
    choose_device(name.partition(":")[0])
    device = torch.device(name)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        training_result = self_test(device, Path(folder))
    sources = [[5, 9, 4, 7], [8, 3, 6], [10, 11]]
    # The same weights every time, without a change of this process's random numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = TransformerConfig(
            source_vocabulary=13,
            target_vocabulary=13,
            d_model=16,
            heads=2,
            d_ff=32,
            encoder_layers=2,
            decoder_layers=2,
        )
        network = config.build().eval()
    settings = Search(extra=5)
    # The CPU comes first, because `to` moves the network itself, not a copy of it.
    on_cpu = search(network, sources, settings)
    on_device = search(network.to(device), sources, settings, device=device)
    # The best translation of each source comes first.
    difference = max(
        abs(ours[0].score - theirs[0].score) for ours, theirs in zip(on_device, on_cpu, strict=True)
    )
    if difference > TOLERANCE:
        raise DtmlError(
            f"translations on {name} have scores that differ from the CPU's by {difference:.1e}, "
            f"more than {TOLERANCE:.1e}: translate with --device cpu"
        )
    description = "CPU"
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        description = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {bf16}"
    seconds = time.monotonic() - start
    return f"{description}: {training_result}, translated, in {seconds:.0f} s"
