"""What goes wrong on which night: dealt from shuffled decks by a seed, so that
every fault has its turn.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import get_args

from tests.support.fake_yahoo import FakeYahoo, Fault
from tests.support.price_history import INDEX, STOCKS, History, with_row_on, without_sessions

SOURCE = (
    "rate_limit",
    "500",
    "html",
    "empty",
    "nan_last",
    "open_row",
    "missing_session",
    "holiday_row",
)
SLOW = "slow"  # costs a night 20 s of waiting: not in the first deal
PROCESS = ("calm", "kill", "full_disk", "two_at_once", "missed")
ELSEWHERE = ("", "", "zone")
ZONES = ("Asia/Seoul", "Pacific/Kiritimati", "America/Los_Angeles", "Australia/Lord_Howe")
# bytes: from no store at all to all but the report
ROOMS = (
    1_000,
    36_000,
    50_000,
    80_000,
    120_000,
    170_000,
)


@dataclass(frozen=True)
class Plan:
    """What goes wrong on one night."""

    day: date
    source: str  # how the source misbehaves
    victims: tuple[str, ...]  # for these, by the market's symbols
    after: int  # symbols answered before a rate limit
    process: str  # what happens to the night's own process
    moments: tuple[float, ...]  # of each kill, as a share of the seconds that a night usually takes
    room: int  # bytes left on the disk
    zone: str | None  # where its clock seems to be, if it is elsewhere
    alone: bool  # without a running Prefect server
    # whether a refused night is run again when the source is well, or left to be caught up
    patient: bool

    @property
    def faults(self) -> list[str]:
        """What is counted of it; a missed night meets nothing."""
        if self.process == "missed":
            return [self.process]
        return (
            [self.process, self.source]
            + ["other_zone"] * (self.zone is not None)
            + ["no_server"] * self.alone
        )


def draw_plans(days: Sequence[date], seed: int) -> list[Plan]:
    """A plan for each day. The first night is only hit in its process: nights
    are missed since the first complete.
    """
    draw = random.Random(seed)
    first = draw.sample(SOURCE, len(SOURCE))
    sources = [*first, *_dealt((*SOURCE, SLOW), len(days), draw)]
    processes = _dealt(PROCESS, len(days), draw)
    if processes[0] == "missed":
        processes[:2] = ["calm", "missed"]
    elsewhere = _dealt(ELSEWHERE, len(days), draw)
    sources[0] = "none"
    return [_plan(*cards, draw) for cards in zip(days, sources, processes, elsewhere, strict=False)]


def _dealt(cards: Sequence[str], count: int, draw: random.Random) -> list[str]:
    dealt: list[str] = []
    while len(dealt) < count:
        dealt += draw.sample(cards, len(cards))
    return dealt[:count]


def _plan(day: date, source: str, process: str, elsewhere: str, draw: random.Random) -> Plan:
    return Plan(
        day,
        source,
        tuple(draw.sample(STOCKS, draw.choice([1, 1, 2, 6])))
        + ((INDEX,) if draw.random() < 0.15 else ()),
        draw.randrange(1, len(STOCKS)),
        process,
        tuple(draw.uniform(0.25, 1.0) for _ in range(draw.choice([1, 1, 2]))),
        draw.choice(ROOMS),
        draw.choice(ZONES) if elsewhere else None,
        alone=draw.random() < 0.1
        and process != "full_disk",  # Prefect's temporary server needs a disk too
        patient=draw.random() < 0.5,
    )


def tell(yahoo: FakeYahoo, history: History, day: date) -> None:
    """Let the stand-in be well, and hold what Yahoo would after the close of a day."""
    yahoo.faults, yahoo.rate_limit_after = {}, None
    yahoo.requests.clear()
    yahoo.prices = history.told(day)


def trouble(yahoo: FakeYahoo, history: History, plan: Plan, tomorrow: date) -> None:
    """Let the stand-in misbehave as planned."""
    names = [history.source_symbol(symbol, plan.day) for symbol in plan.victims]
    there = [name for name in names if name in yahoo.prices]
    if plan.source == "rate_limit":
        yahoo.rate_limit_after = plan.after
    elif plan.source == "open_row":
        yahoo.faults = dict.fromkeys(there, "open_row")
        yahoo.prices |= {
            name: bars for name, bars in history.told(tomorrow).items() if name in there
        }
    elif plan.source == "missing_session":
        yahoo.prices |= {name: without_sessions(yahoo.prices[name], [plan.day]) for name in there}
    elif plan.source == "holiday_row":
        yahoo.prices |= {
            name: with_row_on(yahoo.prices[name], _last_sunday(plan.day)) for name in there
        }
    elif plan.source in get_args(Fault):
        yahoo.faults = dict.fromkeys(there, plan.source)


def _last_sunday(day: date) -> date:
    return day - timedelta(days=day.weekday() + 1)
