"""Examine this machine: can it run nights, and if not, what has to be done?"""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib.metadata import requires, version
from pathlib import Path
from zoneinfo import ZoneInfo

import torch
from packaging.requirements import Requirement
from sqlalchemy import text

from db.engine import location, open_engine, prepare, reading, transaction
from db.errors import StoreError
from dtml.errors import DtmlError
from dtml.inference import choose_device
from dtml.markets import load_market
from dtml.prices.sessions import last_known_day
from dtml.sources.yahoo import YahooSource
from dtml.training.self_test import TOLERANCE, self_test
from dtml.training.state import StateFolder
from flows.service.prefect_server import (
    LOGIN,
    ask,
    require_server,
    stop_temporary_servers,
    warning_of_open_server,
)
from flows.service.status import CALENDAR_WARNING, end_of_calendar, named_markets
from flows.settings import data_folder, reports_folder
from translation.atomic_files import write_whole
from translation.decoding.beam_search import Search, search
from translation.decoding.incremental import IncrementalTransformer
from translation.transformer import TransformerConfig

ROOM = 2**30  # bytes free for a store, its models and pages
APART_S = 60  # seconds between this clock and the database's
ANSWER_S = 10  # seconds that Prefect may take
PROBED = "sp500"  # the market whose index Yahoo is asked for
DISTRIBUTION = "dtml-nightshift"


@dataclass(frozen=True)
class Finding:
    """Hold what was found of a part of the machine; a night can do without what is not `needed`."""

    part: str
    said: str
    is_well: bool = True
    needed: bool = True


def examined(device: str = "auto") -> Iterator[Finding]:
    """Yield what each part of this machine is like, one after the other; a check that fails is a
    finding too.

    The self-test runs on the `device`: cpu, cuda, or auto for each there is. Starts a temporary
    Prefect server where none is set, asks Yahoo for a week, and makes the store's tables where
    there are none.
    """
    checks: dict[str, Callable[[], str]] = {
        "python": _python,
        "packages": _packages,
        "processor": _processor,
    }
    checks |= {"data folder": lambda: _writable(data_folder(), "DTML_DATA")}
    checks |= {"reports folder": lambda: _writable(reports_folder(), "DTML_REPORTS")}
    checks |= {"database": _database, "clock": _clock, "calendars": _calendars}
    checks |= {"prefect": _prefect, "yahoo": _yahoo}
    checks |= {name: partial(_device, name) for name in devices(device)}
    for part, check in checks.items():
        needed = part not in ("yahoo", "calendars")
        try:
            yield Finding(part, check(), needed=needed)
        except (DtmlError, StoreError) as error:
            yield Finding(part, str(error), is_well=False, needed=needed)
        except Exception as error:  # noqa: BLE001 - whatever a machine does to a check is what was to be found
            yield Finding(part, f"{type(error).__name__}: {error}", is_well=False, needed=needed)


def devices(asked: str) -> list[str]:
    """Return the names of the devices asked for: cpu, cuda, or auto for each that there is."""
    found = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return {"cpu": ["cpu"], "cuda": found or ["cuda"]}.get(asked, ["cpu", *found])


def _python() -> str:
    return f"{platform.python_version()} on {platform.platform(terse=True)}, {platform.machine()}"


def _packages() -> str:
    """Return the versions of what nights are made of; raise DtmlError for one
    outside the range that was tested.
    """
    wanted = [Requirement(line) for line in requires(DISTRIBUTION) or () if "extra ==" not in line]
    wrong = [
        f"{each.name} {version(each.name)}"
        for each in wanted
        if version(each.name) not in each.specifier
    ]
    if wrong:
        raise DtmlError(
            f"{', '.join(wrong)}: not a version that was tested; pip install -c "
            "constraints.txt -e ."
        )
    named = ("torch", "prefect", "pandas", "sqlalchemy", "yfinance")
    return f"dtml {version(DISTRIBUTION)}, " + ", ".join(
        f"{name} {version(name)}" for name in named
    )


def _processor() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cores} cores, {torch.get_num_threads()} threads of torch, {memory:.0f} GiB of memory"


def _writable(folder: Path, variable: str) -> str:
    """Return how much room a folder has; raise DtmlError where nothing can be
    written or there is little room.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 2**20)
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise DtmlError(
            f"{folder} cannot be written to ({error.strerror}): set {variable} to another"
        ) from error
    if free < ROOM:
        raise DtmlError(
            f"{folder} has {free / 2**20:.0f} MiB free: make room, or set {variable} to another"
        )
    return f"{folder}, {free / 2**30:.0f} GiB free"


def _database() -> str:
    """Return where the store is; raise StoreError where it cannot be read or
    written, or is of another version.
    """
    engine = open_engine()
    with transaction(
        engine
    ) as conn:  # waits for its turn to write, as a night does, and writes nothing
        conn.execute(text("select 1"))
    prepare(engine)
    return f"{engine.dialect.name}, {location(engine)}"


def _clock() -> str:
    """Return this machine's time and zone; raise DtmlError where the database's
    clock is far from it.
    """
    local = datetime.now().astimezone()
    engine = open_engine()
    if engine.dialect.name == "postgresql":
        with reading(engine) as conn:
            theirs = conn.execute(text("select current_timestamp")).scalar_one()
        if (apart := abs((datetime.now(UTC) - theirs).total_seconds())) > APART_S:
            raise DtmlError(
                f"this clock is {apart:.0f} s from the database's: set it right, as by NTP"
            )
    ZoneInfo("Asia/Seoul")  # raises where the machine has no table of time zones
    return (
        f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()} (UTC{local:%z}); schedules keep each "
        "exchange's own zone"
    )


def _calendars() -> str:
    """Return when the first calendar of the store's markets ends.

    Raises DtmlError where that is within sixty days, or past.
    """
    ends = {}
    for market in named_markets(open_engine(), (), ()).values():
        if market is not None:
            ends[market.calendar] = last_known_day(market.calendar)
    if not ends:
        return "the store has no market yet"
    calendar = min(ends, key=ends.__getitem__)
    if ends[calendar] - datetime.now(UTC).date() <= CALENDAR_WARNING:
        raise DtmlError(end_of_calendar(calendar, ends[calendar]))
    return f"{len(ends)} known, the first up to {ends[calendar]}"


def _prefect() -> str:
    """Return the server that flows would use, after it answered; raise
    DtmlError where it does not.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        if warning := warning_of_open_server():
            raise DtmlError(warning.removeprefix("warning: "))
        try:
            ask(url.rstrip("/"), os.environ.get(LOGIN), ANSWER_S)
        except OSError as error:  # of HTTP too
            raise DtmlError(
                f"the Prefect server at {url} did not accept a request ({error}): start it or, if "
                f"it asks for a login, set {LOGIN}=USER:PASSWORD"
            ) from error
        return f"the server at {url}"
    begun = time.monotonic()
    require_server()
    stop_temporary_servers()
    return f"a temporary server started in {time.monotonic() - begun:.0f} s"


def _yahoo() -> str:
    """Return what Yahoo answered for an index; raise DtmlError where there was no answer."""
    market, today = load_market(PROBED), date.today()  # noqa: DTZ011 - any day will do
    market = replace(market, constituents=())
    symbol = market.index.symbol
    answer = YahooSource(market).fetch({symbol: today - timedelta(days=7)}, today)
    outcome = answer.outcomes.iloc[0]
    if outcome["status"] != "ok":
        without = "nights from files and of the simulated market need no network"
        proxy = (
            "Behind a proxy set HTTPS_PROXY, and SSL_CERT_FILE to its certificates where it "
            "inspects TLS"
        )
        raise DtmlError(f"{outcome['status']}: {outcome['detail']}; {without}. {proxy}")
    return (
        f"{len(answer.bars)} bars of {symbol}, the last of {answer.bars['session'].max():%Y-%m-%d}"
    )


def _device(name: str) -> str:
    """Return what a device is and how the self-test of a few seconds ended on it."""
    device, begun = torch.device(name) if ":" in name else choose_device(name), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        said = self_test(device, StateFolder(Path(folder), write_whole))
    if (apart := _translations_apart(device)) > TOLERANCE:
        raise DtmlError(f"the scores of a translation are {apart:.1e} from those of the CPU")
    what = "CPU"
    if device.type == "cuda":
        of = torch.cuda.get_device_properties(device)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        what = f"{of.name}, {of.total_memory / 2**30:.0f} GiB, {bf16}"
    return f"{what}: {said}, translated, in {time.monotonic() - begun:.0f} s"


def _translations_apart(device: torch.device) -> float:
    """Return how far the scores of a small Transformer's translations on a
    device are from those on the CPU.
    """
    sources = [[5, 9, 4, 7], [8, 3, 6], [10, 11]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = (
            TransformerConfig(13, 13, 16, 2, 32, encoder_layers=2, decoder_layers=2).build().eval()
        )
    expected = search(IncrementalTransformer(network), sources, Search(extra=5))
    found = search(
        IncrementalTransformer(network.to(device)), sources, Search(extra=5), device=device
    )
    return max(
        abs(one[0].score - other[0].score) for one, other in zip(found, expected, strict=True)
    )
