"""Nights of a made market through the real command, while its source misbehaves and its processes
die.

    tally = run(folder, nights=8, seed=1) assert tally.broken == []

A folder on a disk of its own, of less than 1 GB, is really filled where a night's disk is to be
full.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from db.engine import open_engine, reading
from db.read import read
from dtml.prices.sessions import next_session, sessions_between
from tests.support.chaos.draw import Plan, draw_plans, tell, trouble
from tests.support.chaos.laws import (
    MARK,
    MARKET,
    Snapshot,
    held_locks,
    leftovers,
    night_faults,
    rows_lost,
    rows_twice,
    snapshot,
)
from tests.support.fake_yahoo import FakeYahoo
from tests.support.prefect_server import prefect_server
from tests.support.price_history import STOCKS, History, made_history, market_text

DTML = Path(sys.executable).with_name("dtml")
FIRST = date(2024, 1, 3)
BEFORE = timedelta(days=190)  # of bars before the first night: more than a training reads
RETRAIN = "21"
NOTICE = 3  # sessions until the market file says that a stock was renamed
PATIENCE_S = 600.0
SMALL_DISK = 2**30  # bytes: a disk of its own, which can be filled
# A file that grows beyond a size is what a full disk looks like to a process that may not mount
# one.
LIMITED = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(sys.argv[1]),)); "
)
LIMITED += "os.execv(sys.argv[2], sys.argv[2:])"


@dataclass
class Tally:
    """What happened in a run, and every law that was broken, in words."""

    nights: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    commands: int = 0
    kills: int = 0
    predictions: int = 0
    rows_lost: int = 0
    duplicates: int = 0
    mismatches: int = 0
    broken: list[str] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        )

    @staticmethod
    def read(values: Mapping[str, Any]) -> "Tally":
        """A tally from the plain values of its `vars`."""
        counted = {name: Counter(values[name]) for name in ("nights", "faults")}
        return Tally(**(dict(values) | counted))


def run(
    folder: Path,
    nights: int,
    seed: int,
    url: str | None = None,
    first: date = FIRST,
    after_night: Callable[[Tally], None] | None = None,
    server: str | None = None,
) -> Tally:
    """Run so many nights from `first` on in a folder, on a store at `url` (by default an SQLite
    file in it), with the Prefect server at an address (by default one of their own).

    The same seed draws the same prices and faults; what a kill meets is the clock's doing.
    """
    days = nights_from(first, nights)
    tomorrow = next_session("XNYS", days[-1])
    history = made_history(sessions_between("XNYS", first - BEFORE, tomorrow), first, seed)
    served = prefect_server() if server is None else nullcontext(server)
    with FakeYahoo({}, slowness=12.0) as yahoo, served as address:
        bench = Bench(folder, url, history, days, yahoo, address)
        for plan in draw_plans(days, seed):
            bench.night(plan)
            if after_night is not None:
                after_night(bench.tally)
        bench.end()
    return bench.tally


def nights_from(first: date, nights: int) -> list[date]:
    """So many sessions from a day on."""
    return [
        day.date()
        for day in sessions_between("XNYS", first, first + timedelta(days=nights * 2 + 10))
    ][:nights]


class Bench:
    """A folder with a store in it, the market's true past, and whoever answers
    for the world outside.
    """

    def __init__(
        self,
        folder: Path,
        url: str | None,
        history: History,
        days: list[date],
        yahoo: FakeYahoo,
        server: str,
    ) -> None:
        self.folder, self.history, self.days, self.yahoo = folder, history, days, yahoo
        self._temporary = folder / "temporary"
        self._temporary.mkdir(exist_ok=True)
        self.tally = Tally()
        self._server = server
        self._url = url or f"sqlite:///{folder / 'store.sqlite'}"
        self._usual = 8.0  # seconds that the last undisturbed command took
        self._pending: list[date] = []  # nights to be caught up
        self._seen: Snapshot = {}

    def night(self, plan: Plan) -> None:
        """One night with all that its plan has in store, run again as a
        scheduler would, and held to the laws.
        """
        self.tally.faults.update(plan.faults)
        if plan.process == "missed":
            self._pending.append(plan.day)
            return
        (self.folder / f"{MARKET}.toml").write_text(self._market_text(plan.day))
        tell(self.yahoo, self.history, plan.day)
        trouble(self.yahoo, self.history, plan, next_session("XNYS", plan.day))
        if self._disturbed(plan) and self._command(plan.day, plan) and plan.patient:
            tell(self.yahoo, self.history, plan.day)
            self._command(plan.day, plan)
        self._check(plan.day)

    def end(self) -> None:
        """Catch up what is left with a source that is well, hold the whole to
        the laws, and replay it.
        """
        tell(self.yahoo, self.history, self.days[-1])
        if self._pending:
            self._command(self.days[-1])
            self._check(self.days[-1])
        with self._store(read_only=True) as reader, reading(reader) as conn:
            nights = read(conn, "night", market=MARKET)
            self.tally.predictions = len(
                read(conn, "prediction", market=MARKET, order="target, symbol, made_at")
            )
        self.tally.nights.update(nights["status"])
        replayed = self._run(["replay", "--market-file", f"{MARKET}.toml", "--all", "--json"])
        complete = int(nights["status"].str.startswith("complete").sum())
        equal = sum(night["equal"] for night in json.loads(replayed.stdout or "[]"))
        self.tally.mismatches += complete - equal
        if equal < complete:
            self.tally.broken.append(
                f"replay: {equal} of {complete} nights equal: {replayed.stderr}"
            )

    def _disturbed(self, plan: Plan) -> bool:
        """Disturb the night's process as planned; whether the night is still to be run."""
        if plan.process == "kill":
            for moment in plan.moments:
                ended = self._run(self._nightly(plan.day), plan, patience=moment * self._usual)
                if ended.returncode != -signal.SIGKILL:
                    break
                self.tally.kills += 1
            return True
        if plan.process == "full_disk":
            with self._little_room(plan.room) as limits:
                return self._require_calm(self._run(self._nightly(plan.day), plan, limits)) != 0
        if plan.process == "two_at_once":
            with ThreadPoolExecutor(2) as pool:
                both = [pool.submit(self._run, self._nightly(plan.day), plan) for _ in range(2)]
            codes = [self._require_calm(each.result()) for each in both]
            return min(codes) != 0
        return True

    def _command(self, day: date, plan: Plan | None = None) -> int:
        """The night without a disturbance; its exit code is 0 if no night is
        left to be run, else 1.
        """
        begun = time.monotonic()
        ended = self._run(self._nightly(day), plan)
        if plan is not None and plan.source != "slow":
            self._usual = time.monotonic() - begun
        self._require_calm(ended)
        self._pending = self._incomplete(day)
        if ended.returncode != int(bool(self._pending)):
            self.tally.broken.append(
                f"{day}: exit {ended.returncode}, pending {self._pending}: {ended.stderr}"
            )
        return ended.returncode

    def _incomplete(self, day: date) -> list[date]:
        """The nights up to a day that are not complete."""
        with self._store(read_only=True) as reader, reading(reader) as conn:
            nights = read(conn, "night", market=MARKET)
        complete = {
            each.date() for each in nights.loc[nights["status"].str.startswith("complete"), "as_of"]
        }
        return [each for each in self.days if each <= day and each not in complete]

    def _require_calm(self, ended: subprocess.CompletedProcess[str]) -> int:
        """The exit code of a command, which ends with 0, or with 1 and one line that says why."""
        errors = [line for line in ended.stderr.splitlines() if line.startswith("error")]
        if (
            ended.returncode not in (0, 1)
            or len(errors) != ended.returncode
            or "Traceback" in ended.stderr
        ):
            self.tally.broken.append(f"{ended.args[-1]}: exit {ended.returncode}: {ended.stderr}")
        return ended.returncode

    def _check(self, day: date) -> None:
        """Hold the store and the folder to the laws, all nights up to a day."""
        days = [each for each in self.days if each <= day]
        with self._store(read_only=True) as reader:
            now = snapshot(reader)
            faults = night_faults(reader, days)
            twice = rows_twice(reader)
        self._pending = self._incomplete(day)
        lost = rows_lost(self._seen, now)
        self._seen = now
        self.tally.rows_lost += len(lost)
        self.tally.duplicates += twice
        with self._store(read_only=False) as engine:
            faults += held_locks(engine) + leftovers(self.folder)
        faults += [f"{len(lost)} rows lost or changed, such as {lost[0]}"] if lost else []
        faults += [f"{twice} predictions twice"] if twice else []
        self.tally.broken += [f"after {day}: {fault}" for fault in faults]

    def _nightly(self, day: date) -> list[str]:
        missed = ["--catch-up"] if any(each < day for each in self._pending) else []
        return ["nightly", "--market-file", f"{MARKET}.toml", *missed, "--as-of", str(day)]

    def _run(
        self,
        arguments: list[str],
        plan: Plan | None = None,
        limits: Sequence[str] = (),
        patience: float = PATIENCE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, and end its whole process group after so many seconds."""
        self.tally.commands += 1
        process = self._popen(arguments, plan, limits)
        try:
            said, complaint = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, complaint = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, said, complaint)

    def _popen(
        self, arguments: list[str], plan: Plan | None, limits: Sequence[str]
    ) -> subprocess.Popen[str]:
        environment = self.yahoo.environment() | {
            "DTML_DATABASE_URL": self._url,
            "DTML_DATA": str(self.folder / "data"),
            "DTML_REPORTS": str(self.folder / "reports"),
            "OMP_NUM_THREADS": "1",
            # What is killed leaves its temporary files: here they go with the folder.
            "TMPDIR": str(self._temporary),
            MARK: str(self.folder),
        }
        if plan is None or not plan.alone:
            environment["PREFECT_API_URL"] = self._server
        if plan is not None and plan.zone is not None:
            environment["TZ"] = plan.zone
        return subprocess.Popen(
            [*limits, str(DTML), *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def _little_room(self, room: int) -> Iterator[list[str]]:
        """Leave so many bytes: on a small disk of its own by filling it, else
        by a limit that commands start with.
        """
        usage = shutil.disk_usage(self.folder)
        if usage.total > SMALL_DISK:
            yield [sys.executable, "-c", LIMITED, str(room)]
            return
        ballast = self.folder / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, usage.free - room)
        yield []
        ballast.unlink()

    @contextmanager
    def _store(self, *, read_only: bool) -> Iterator[Engine]:
        engine = open_engine(self._url, read_only=read_only)
        yield engine
        engine.dispose()

    def _market_text(self, day: date) -> str:
        """The market file that an attentive user has on a day."""
        named = {
            stock: self.history.source_symbol(stock, self._noticeable(day)) for stock in STOCKS
        }
        return market_text(named, RETRAIN)

    def _noticeable(self, day: date) -> date:
        """The session up to which an attentive user knows what Yahoo changed."""
        return self.days[max(0, self.days.index(day) - NOTICE)]
