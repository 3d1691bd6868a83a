"""Three markets are served through the turn of a year that the calendar of one does not reach."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pandas as pd
import pytest
from prefect.client.schemas.objects import State
from sqlalchemy import Engine

from db.engine import reading
from db.read import read
from db.rows import scores as stored_scores
from dtml.errors import DtmlError
from dtml.experiments import nightly_of, vary
from dtml.markets import load_market, market_names
from dtml.prices.sessions import REMEDY, last_known_day, sessions_between
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from flows.markets.opened import RunRequest
from flows.nightly.context import MarketContext
from flows.service import flows
from flows.service.alerts import watch_markets
from flows.service.schedules import Schedule, next_cron, schedules_of, skip_reason
from flows.service.status import market_status
from tests.support.calendars import end_calendar
from tests.support.nights import SMALL

pytestmark = pytest.mark.soak

# Each market meets a session before, on and after the last day of Shanghai's calendar, and a
# weekday without one; Seoul has two of those.
BEGIN = datetime(2026, 12, 29, tzinfo=UTC)
END = datetime(2027, 1, 6, tzinfo=UTC)
LAST_SESSION = date(2027, 1, 5)
LAST_OF_SHANGHAI = date(2026, 12, 31)
STEP = timedelta(hours=12)
CALENDARS = {"csi300": "XSHG", "kospi200": "XKRX", "simulated": "XNYS"}
STOCKS = SimulatedMarket(leaders=3, followers=1, start=date(2026, 1, 5))


@pytest.fixture
def served(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> dict[str, MarketContext]:
    """The three markets on their exchanges' sessions, each with a few simulated stocks."""
    end_calendar(monkeypatch, "XSHG", LAST_OF_SHANGHAI)
    contexts = {}
    for name, calendar in CALENDARS.items():
        market = replace(
            load_market("simulated").with_symbols(sorted(STOCKS.symbols)),
            name=name,
            calendar=calendar,
        )
        experiment = vary(
            nightly_of(market.model, z_close="adjusted", returns="adj_close", max_return=0.35),
            SMALL,
        )
        source = SimulatedSource(calendar=calendar, market=STOCKS)
        contexts[name] = MarketContext(market, source, engine, experiment, "cpu")
    return contexts


@dataclass
class Service:
    """The scheduled runs of the markets, started at their moments by a clock of the test's own."""

    contexts: dict[str, MarketContext]
    ends: dict[str, list[tuple[datetime, State[Any]]]] = field(default_factory=dict)
    crons: dict[str, set[str]] = field(default_factory=dict)
    problems: dict[str, set[str]] = field(default_factory=dict)

    def walk(self, begin: datetime, end: datetime, clock: Callable[[datetime], None]) -> None:
        """Let the clock go from one moment to another: watches, and the nights between."""
        schedules = {name: self._night_schedule(name, begin) for name in self.contexts}
        due = {name: self._next(schedule, begin) for name, schedule in schedules.items()}
        now = begin
        while now < end:
            for name, moment in due.items():
                if moment < now + STEP:
                    clock(moment.astimezone(UTC))
                    state = flows.scheduled_night.fn(RunRequest(market=name), waits=())
                    self.ends.setdefault(name, []).append((moment, state))
                    due[name] = self._next(schedules[name], moment)
            now += STEP
            self._watch(now)

    @staticmethod
    def _next(schedule: Schedule, now: datetime) -> datetime:
        return next_cron(schedule.cron, schedule.timezone, now)

    def _night_schedule(self, name: str, now: datetime) -> Schedule:
        (night,) = (
            schedule
            for schedule in schedules_of(self.contexts[name].market, now)
            if schedule.work == "night"
        )
        return night

    def _watch(self, now: datetime) -> None:
        """Look for what is late, and keep how a service started now would be scheduled."""
        markets = {name: context.market for name, context in self.contexts.items()}
        engine = next(iter(self.contexts.values())).engine
        for status in watch_markets(engine, markets, now):
            self.crons.setdefault(status.market, set()).add(
                self._night_schedule(status.market, now).cron
            )
            if status.problem:
                self.problems.setdefault(status.market, set()).add(status.problem)


@pytest.fixture
def clock(
    served: dict[str, MarketContext], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[datetime], None]]:
    """A function that sets the moment at which a run of the service is due."""
    due: list[datetime] = []
    monkeypatch.setattr(flows, "_due", lambda: due[-1])
    monkeypatch.setattr(flows, "open_context", lambda request: served[request.market])
    monkeypatch.setattr(flows, "begin_run", lambda: None)
    monkeypatch.setattr(flows, "as_task", lambda _name, work: work())
    monkeypatch.setattr(flows, "leave_artifact", lambda *_: None)
    yield due.append
    due.clear()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_calendar_that_ends_with_the_year_keeps_no_other_market_from_its_nights(
    served: dict[str, MarketContext], clock: Callable[[datetime], None], engine: Engine
) -> None:
    service = Service(served)
    service.walk(BEGIN, END, clock)
    with reading(engine) as conn:
        rows = {name: read(conn, "night", market=name).set_index("as_of") for name in served}
        scores = {name: stored_scores.running_scores(conn, name) for name in served}
        alerts = (
            read(conn, "alert", order="raised_at, market, as_of, kind")
            .groupby("market")["kind"]
            .agg(list)
            .to_dict()
        )

    for name in ("kospi200", "simulated"):
        expected = sessions_between(CALENDARS[name], BEGIN.date(), LAST_SESSION)
        assert list(rows[name].index) == list(expected)
        assert set(rows[name]["status"]) == {"complete"}
        assert scores[name]["target"].max() == expected[-1]
    assert service.problems.keys() == {"csi300"}
    assert alerts == {"csi300": ["calendar", "refused"]}

    shanghai = rows["csi300"]
    expected = sessions_between("XSHG", BEGIN.date(), LAST_OF_SHANGHAI)
    assert list(shanghai.index) == list(expected)
    assert shanghai["status"].tolist() == ["complete"] * (len(expected) - 1) + ["refused"]
    assert shanghai["target"].iloc[-1] is pd.NaT
    assert scores["csi300"]["target"].max() == expected[-1]

    # A weekday without a session is skipped; after the calendar, nobody knows which those are.
    kinds = {
        name: [(moment.date(), state.name) for moment, state in ends if state.name != "Completed"]
        for name, ends in service.ends.items()
    }
    assert kinds["kospi200"] == [
        (date(2026, 12, 31), "Skipped"),
        (date(2027, 1, 1), "Skipped"),
    ]
    assert kinds["simulated"] == [(date(2027, 1, 1), "Skipped")]
    weekdays = pd.bdate_range(LAST_OF_SHANGHAI, END.date() - timedelta(days=1))
    assert kinds["csi300"] == [(day.date(), "Failed") for day in weekdays]
    for _, state in service.ends["csi300"][-len(weekdays) :]:
        assert re.search("upgrade exchange_calendars.* calendars.toml", str(state.message))
    # whenever a service is started, its nights are due on the same weekdays
    assert {name: len(crons) for name, crons in service.crons.items()} == dict.fromkeys(served, 1)
    assert all(cron.endswith("* * 1-5") for crons in service.crons.values() for cron in crons)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", market_names())
def test_a_market_is_judged_and_scheduled_on_the_last_day_of_its_calendar_and_after(
    name: str, engine: Engine
) -> None:
    market = load_market(name)
    last = last_known_day(market.calendar)
    crons = set()
    for days in (-90, -60, -1, 0, 1, 30, 400):
        now = datetime.combine(last + timedelta(days=days), time(23, 59), tzinfo=UTC)
        status = market_status(engine, name, market, now)
        assert status.calendar_ends == (last if days >= -60 else None), days
        crons |= {schedule.cron for schedule in schedules_of(market, now)}
        if days > 0:
            assert REMEDY in str(status.note)
            with pytest.raises(DtmlError, match="upgrade exchange_calendars"):
                skip_reason(market, now)
    assert len(crons) == (2 if market.retrain == "never" else 3)
