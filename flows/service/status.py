"""Say how every market stands: its last night, what is late, its model, its
scores; nothing is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Connection, Engine

from db.connection.locks import is_free
from db.engine import reading
from db.rows import markets, nights, prices, rankings, runs
from db.rows import scores as stored_scores
from dtml.baselines.naive_rules import beside_rules, best_at
from dtml.errors import DtmlError, UsageError
from dtml.markets import Market, load_market_file
from dtml.markets.definition import Retrain
from dtml.prices.sessions import (
    last_closed_session,
    previous_session,
    session_close,
    sessions_between,
    sessions_up_to,
)
from flows.market_files import read_market
from flows.service.schedules import DELAY, next_night

TOLERANCE = timedelta(hours=2)  # a night that cannot fetch is retried for over an hour
REJECTED_SESSIONS = 30
WAITING_DAYS = 7  # an alert that nobody took in a week is no longer sent


@dataclass(frozen=True)
class Skill:
    """Hold a running figure with its 95 % interval (missing below 20 nights),
    beside the best naive rule.
    """

    value: float
    low: float
    high: float
    rule: str | None
    rule_value: float | None


@dataclass(frozen=True)
class ModelAge:
    """Hold the latest model, and when the policy wants another: by age in
    sessions, if missing, or never.
    """

    run_id: str
    trained_on: date
    age: int | None
    policy: Retrain | None
    due_in: int | None  # sessions; None where the policy names no age


@dataclass(frozen=True)
class Due:
    """Name the last session whose night should have run, and its scheduled moment."""

    as_of: date
    since: datetime


@dataclass(frozen=True)
class MarketStatus:
    """Hold how a market stands.

    What depends on its exchange (ages, what is due) is missing where that is unknown.

    `outcome` is that of the last night: complete, complete_with_gaps, refused, running or
    interrupted; None before the first. `age` counts the sessions closed since the last complete
    night; `problem` says what is late or was refused.
    """

    market: str
    as_of: date | None
    outcome: str | None
    gaps: int
    reason: str | None
    started_at: datetime | None
    age: int | None
    due: Due | None
    is_late: bool
    next_run: datetime | None
    model: ModelAge | None
    rejected_bars: int | None
    scored_nights: int
    acc: Skill | None
    mcc: Skill | None
    alerts_not_sent: int
    ordered_by: str | None
    note: str | None

    @property
    def problem(self) -> str | None:
        """Return what `--check` complains of, in one line, or None."""
        if self.outcome == "refused":
            return f"{self.market}: night of {self.as_of} refused: {self.reason}"
        return f"{self.market}: {late_message(self)}" if self.is_late else None


def late_message(late: MarketStatus) -> str:
    """Say which night is late, and how far the market has come."""
    assert late.due is not None
    begun = "" if late.as_of != late.due.as_of else f"; it is {late.outcome}"
    return f"night of {late.due.as_of} is not complete, due since {moment(late.due.since)}{begun}"


def moment(when: datetime) -> str:
    """Format a moment to be read."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def named_markets(
    engine: Engine, names: Sequence[str], files: Sequence[Path]
) -> dict[str, Market | None]:
    """Return the markets asked for by name or file, by default all that the store has a night or a
    fetch of.

    A name that neither the package nor a file, given or stored, defines maps to None. Raises
    UsageError for one that the store lacks.
    """
    own = {market.name: market for market in map(load_market_file, files)}
    with reading(engine) as conn:
        stored = markets.markets(conn)
    wanted = [*names, *own] if names else stored
    for name in wanted:
        if name not in stored:
            held = f"it has {', '.join(stored)}" if stored else "it has none yet"
            raise UsageError(f"the store has no night and no fetch of market {name!r}: {held}")
    return {name: own.get(name) or _known_market(name) for name in wanted}


def _known_market(name: str) -> Market | None:
    try:
        return read_market(name)
    except UsageError:
        return None


def market_status(
    engine: Engine, name: str, market: Market | None, now: datetime, delay: timedelta = DELAY
) -> MarketStatus:
    """Return how one market stands; `market` is None for one whose file was not named."""
    with reading(engine) as conn:
        last, complete = (nights.night(conn, name, complete=whole) for whole in (False, True))
        run = runs.latest_run(conn, name)
        scores = stored_scores.running_scores(conn, name)
        unsent = waiting_alerts(conn, now, name)
        clock = _clock(conn, market, now, delay)
        speaks = _ordered_by(conn, name, complete)
    night: Mapping[str, Any] = last or {}
    is_interrupted = night.get("status") == "running" and is_free(
        engine, name
    )  # whatever its row says
    closed, due = clock.closed, clock.due
    done = complete["as_of"] if complete else None
    return MarketStatus(
        market=name,
        as_of=night.get("as_of"),
        outcome="interrupted" if is_interrupted else night.get("status"),
        gaps=len(night.get("gaps") or []),
        reason=night.get("reason"),
        started_at=night.get("started_at"),
        age=_sessions_since(market, done, closed),
        due=due,
        is_late=last is not None and due is not None and (done is None or done < due.as_of),
        next_run=clock.next_run,
        model=_model_age(market, run, closed),
        rejected_bars=clock.rejected_bars,
        scored_nights=int(scores["nights"].max()) if len(scores) else 0,
        acc=_skill(scores, "acc"),
        mcc=_skill(scores, "mcc"),
        alerts_not_sent=len(unsent),
        ordered_by=speaks,
        note=clock.note,
    )


def _ordered_by(conn: Connection, name: str, complete: Mapping[str, Any] | None) -> str | None:
    """Return who ordered the stocks of the last complete night, and since when
    where that was earned.
    """
    chosen = rankings.chosen_predictor(conn, name, complete["target"]) if complete else None
    champion = rankings.champion(conn, name, complete["target"]) if complete else None
    earned = champion is not None and champion["predictor"] == chosen
    return f"{chosen} since {champion['since']}" if champion is not None and earned else chosen


def waiting_alerts(conn: Connection, now: datetime, market: str | None = None) -> pd.DataFrame:
    """Return alerts of the last days that nobody took yet, oldest first: the columns of alert."""
    unsent = nights.alerts(conn, market, unsent=True)
    return unsent[unsent["raised_at"] >= pd.Timestamp(now) - timedelta(days=WAITING_DAYS)]


def due_night(market: Market, now: datetime, delay: timedelta = DELAY) -> Due:
    """Return the last night that should be complete by now: two hours have
    passed since its scheduled moment.
    """
    session = last_closed_session(market.calendar, now - TOLERANCE, grace=timedelta(0))
    while (
        since := next_night(market, session_close(market.calendar, session), delay)
    ) + TOLERANCE > now:
        session = previous_session(market.calendar, session)
    return Due(session, since)


@dataclass(frozen=True)
class _Clock:
    """Hold what the calendar of a market's exchange says now."""

    closed: date | None = None
    due: Due | None = None
    next_run: datetime | None = None
    rejected_bars: int | None = None
    note: str | None = None


def _clock(conn: Connection, market: Market | None, now: datetime, delay: timedelta) -> _Clock:
    if market is None:
        return _Clock(note="its exchange is not known here: name its file with --market-file")
    closed = last_closed_session(market.calendar, now)
    first = sessions_up_to(market.calendar, closed, REJECTED_SESSIONS)[0].date()
    rejected = prices.rejected_bars(conn, market.name, first, now.date()).drop_duplicates(
        ["symbol", "session"]
    )
    try:
        return _Clock(
            closed, due_night(market, now, delay), next_night(market, now, delay), len(rejected)
        )
    except DtmlError as error:  # the calendar ends
        return _Clock(closed, rejected_bars=len(rejected), note=str(error))


def _sessions_since(market: Market | None, day: date | None, closed: date | None) -> int | None:
    if market is None or day is None or closed is None:
        return None
    return len(sessions_between(market.calendar, day + timedelta(days=1), closed))


def _model_age(
    market: Market | None, run: Mapping[str, Any] | None, closed: date | None
) -> ModelAge | None:
    if run is None:
        return None
    age = _sessions_since(market, run["train_last"], closed)
    policy = None if market is None else market.retrain
    due_in = max(0, policy - age) if isinstance(policy, int) and age is not None else None
    return ModelAge(run["id"], run["train_last"], age, policy, due_in)


def _skill(scores: pd.DataFrame, figure: str) -> Skill | None:
    """Return the model's figure and the best among the rules that were scored on as many nights."""
    pair = beside_rules(scores[scores[figure].notna()])
    if pair is None:
        return None
    mine, rules = pair
    best = best_at(rules, figure)
    value, low, high = (float(mine[f"{figure}{end}"]) for end in ("", "_low", "_high"))
    rule = (None, None) if best is None else (str(best["predictor"]), float(best[figure]))
    return Skill(value, low, high, *rule)
