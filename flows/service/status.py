"""Report the status of every market: its last night, what is late, its model, its scores.

Nothing is written.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Connection, Engine

from db import where
from db.connection.locks import is_free
from db.engine import reading
from db.errors import did_you_mean
from db.read import read, read_row
from db.rows import fetches, markets, prices, rankings, runs
from db.rows import scores as stored_scores
from db.rows.nights import COMPLETE
from dtml.baselines.naive_rules import beside_rules, best_at
from dtml.errors import DtmlError, UsageError
from dtml.markets import Market
from dtml.markets.definition import AnyCalendar, Retrain
from dtml.pages.figures import counted
from dtml.prices.sessions import (
    REMEDY,
    last_closed_session,
    last_known_day,
    next_known_session,
    next_session,
    previous_session,
    session_close,
    session_open,
    sessions_between,
    sessions_up_to,
    usual_week,
)
from flows.markets.files import market_of_store, named_in_command, read_market
from flows.service.schedules import DELAY, next_cron, next_night, serving_of

NIGHTLY = timedelta(days=31)  # without a night for longer, a market that nobody serves is history
TOLERANCE = timedelta(hours=2)  # until a night is late: one that cannot fetch is retried for 65 min
REJECTED_SESSIONS = 30  # the last ones, whose rejected bars are counted
CALENDAR_WARNING = timedelta(days=60)  # before a calendar ends
WAITING_DAYS = 7  # an alert that no service accepted in a week is no longer sent


@dataclass(frozen=True)
class Skill:
    """Hold a running figure with its 95 % interval, beside that of the best naive rule.

    The ends of the interval are NaN below 20 nights. `rule` is the name of the rule, `rule_value`
    its figure; both are None where no rule was scored on as many nights.
    """

    value: float
    low: float
    high: float
    rule: str | None
    rule_value: float | None


@dataclass(frozen=True)
class ModelAge:
    """Hold the latest model, and when the market's policy requires another.

    `trained_on` is the last session that it was trained on, `age` the number of sessions closed
    since then; None where the exchange is unknown. `policy` is the age in sessions at which nights
    train another model, "missing" (they train where no model is usable), or "never"; None where the
    market's definition is unknown.
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
    """Hold the status of a market.

    `as_of`, `outcome`, `gaps` (stocks left out), `reason` and `started_at` are those of the last
    night. Its `outcome` is complete, complete_with_gaps, refused, running or interrupted; None
    before the first night. `age` counts the sessions closed since the last complete night.
    `is_nightly` says that further nights are expected (the function of that name). `due` is the
    last night that should be complete by now, and `is_late` says that it is not; that is never said
    before the first night. `next_run` is when the next night is due. `rejected_bars` counts those
    of the last REJECTED_SESSIONS sessions.

    `scored_nights` is the number of nights with an outcome; `acc` and `mcc` are the running scores
    over them, None without any. `ranked_by` names the predictor that ranks the stocks. What depends
    on the exchange (ages, what is due) is None if the exchange is unknown. `note` says what the
    user should know about the exchange or its calendar. `second_source` is how the last comparison
    with the market's second source ended, None without one.
    """

    market: str
    as_of: date | None
    outcome: str | None
    gaps: int
    reason: str | None
    started_at: datetime | None
    age: int | None
    is_nightly: bool
    due: Due | None
    is_late: bool
    next_run: datetime | None
    model: ModelAge | None
    rejected_bars: int | None
    scored_nights: int
    acc: Skill | None
    mcc: Skill | None
    alerts_not_sent: int
    ranked_by: str | None
    calendar_ends: date | None  # where that is at most 60 days ahead, or past
    note: str | None
    second_source: str | None = None

    @property
    def problem(self) -> str | None:
        """Return the problem that `--check` reports, in one line, or None."""
        if not self.is_nightly:
            return None
        if self.outcome == "refused":
            return f"{self.market}: night of {self.as_of} refused: {self.reason}"
        if self.is_late:
            return f"{self.market}: {late_message(self)}"
        return None


def late_message(late: MarketStatus) -> str:
    """Return the message that says which night is late, its status, and what to do."""
    assert late.due is not None
    message = f"night of {late.due.as_of} was due at {moment(late.due.since)} and is not complete"
    if late.as_of == late.due.as_of:
        message = f"{message}; it is {late.outcome}"
        if late.outcome == "running":
            return f"{message}: wait until it ends"
    return f"{message}: {_catch_up_command(late.market)}"


def _catch_up_command(market: str) -> str:
    return (
        f"run `dtml nightly {market} --catch-up`, with --prices FILE if its prices come from files"
    )


def moment(when: datetime) -> str:
    """Return a moment as text for people, in UTC and to the minute."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def named_markets(
    engine: Engine, names: Sequence[str], files: Sequence[Path]
) -> dict[str, Market | None]:
    """Return the markets of these names and files, by name.

    Without names, they are all markets of which the store has a night or a fetch. `files` then add
    none: they only define users' own markets among these. A name maps to None if neither the
    package nor a file, given or stored, defines it. With names, raises UsageError for a name or a
    file of a market that the store lacks.
    """
    markets_of_files: dict[str, Market] = {}
    for file in files:
        market = read_market(file.stem, file)
        markets_of_files[market.name] = market
    with reading(engine) as conn:
        stored = markets.markets(conn)
    chosen_names = [*names, *markets_of_files] if names else stored
    for name in chosen_names:
        if name not in stored:
            meant = did_you_mean(name, stored)
            of_file = markets_of_files.get(name)
            in_command = name if of_file is None else named_in_command(of_file)
            first_night = f"run a first night of {name} with `dtml nightly {in_command}`"
            known = f"{meant}choose one of {', '.join(stored)}, or {first_night}"
            if not stored:
                known = f"it has no market yet; {first_night}"
            raise UsageError(f"the store has no night and no fetch of market {name!r}: {known}")
    return {
        name: markets_of_files.get(name) or market_of_store(engine, name) for name in chosen_names
    }


def market_status(engine: Engine, name: str, market: Market | None, now: datetime) -> MarketStatus:
    """Return the status of one market at the moment `now`.

    `market` is None for one whose definition is unknown.
    """
    with reading(engine) as conn:
        last = read_row(conn, "night_log", market=name, order="-as_of")
        complete = read_row(conn, "night_log", market=name, status=COMPLETE, order="-as_of")
        run = runs.latest_run(conn, name)
        scores = stored_scores.running_scores(conn, name)
        unsent = waiting_alerts(conn, now, name)
        clock = _clock(conn, market, now)
        times = punctuality(conn, name, market, now)
        if not complete:
            ranked_by = None
        else:
            chosen = rankings.chosen_predictor(conn, name, complete["target"])
            champion = rankings.champion(conn, name, complete["target"])
            if champion is None or champion["predictor"] != chosen:
                ranked_by = chosen
            else:
                ranked_by = f"{chosen} since {champion['since']}"
        second_source = _second_source(conn, market)
    night: Mapping[str, Any] = last or {}
    outcome = night.get("status")
    # A night holds its market's lock: if that is free, the night was killed and its row stayed.
    if outcome == "running" and is_free(engine, name):
        outcome = "interrupted"
    last_complete = complete["as_of"] if complete else None
    return MarketStatus(
        market=name,
        as_of=night.get("as_of"),
        outcome=outcome,
        gaps=len(night.get("gaps") or []),
        reason=night.get("reason"),
        started_at=night.get("started_at"),
        age=_sessions_since(market, last_complete, clock.closed),
        is_nightly=is_nightly(name, night.get("as_of"), now),
        due=clock.due,
        is_late=clock.due is not None and times is not None and times.is_late,
        next_run=clock.next_run,
        model=_model_age(market, run, clock.closed),
        rejected_bars=clock.rejected_bars,
        scored_nights=int(scores["nights"].max()) if len(scores) else 0,
        acc=_skill(scores, "acc"),
        mcc=_skill(scores, "mcc"),
        alerts_not_sent=len(unsent),
        ranked_by=ranked_by,
        calendar_ends=clock.calendar_ends,
        note=clock.note,
        second_source=second_source,
    )


def is_nightly(market: str, last: date | None, now: datetime) -> bool:
    """Return whether further nights of a market are expected, so that one can be late.

    They are if the running `dtml serve` serves it, or if its last night is of the last month. A
    market of which only past days were run, as from files that end years ago, is never late.
    """
    return serving_of(market) is not None or (last is not None and now.date() - last <= NIGHTLY)


def _delay_of(market: str) -> timedelta:
    """Return the time from the usual close to the nights of a market."""
    served = serving_of(market)
    return DELAY if served is None else served.delay


def _next_run(market: Market, now: datetime) -> datetime:
    """Return when the next night of a market is due: by the cron of the service, if it has one."""
    served = serving_of(market.name)
    if served is None or served.cron is None:
        return next_night(market, now, _delay_of(market.name))
    zone = usual_week(market.calendar, now.date()).timezone.key
    return next_cron(served.cron, zone, now)


def _second_source(conn: Connection, market: Market | None) -> str | None:
    """Return how the last comparison with a market's second source ended, in words.

    None where the market has none, or nothing was compared yet. The values that differ are counted
    from the first of the REJECTED_SESSIONS sessions that end with that of the comparison.
    """
    if market is None or market.second_source is None:
        return None
    comparison = fetches.comparison(conn, market.name)
    if comparison is None:
        return None
    if comparison["failure"] is not None:
        return f"{comparison['source']} failed: {comparison['failure']}"
    since = sessions_up_to(market.calendar, comparison["as_of"], REJECTED_SESSIONS)[0].date()
    differing = fetches.disagreements(conn, market.name, since)
    if differing.empty:
        return f"{comparison['source']} agrees"
    newest = differing["session"].max()
    values = counted(len(differing), "value")
    return f"{comparison['source']} differs in {values}, the last of {newest:%Y-%m-%d}"


def waiting_alerts(conn: Connection, now: datetime, market: str | None = None) -> pd.DataFrame:
    """Return the alerts of the last WAITING_DAYS days that are not stored as sent, oldest first.

    They are those of one market, or of all if `market` is None, in the columns of the table alert.
    """
    unsent = read(
        conn, "alert", market=where.given(market), sent_at=None, order="raised_at, market, kind"
    )
    oldest = pd.Timestamp(now) - timedelta(days=WAITING_DAYS)
    return unsent[unsent["raised_at"] >= oldest]


def due_night(market: Market, now: datetime) -> Due:
    """Return the last night that should be complete by now.

    At least TOLERANCE has passed since its scheduled moment. Raises DtmlError where the calendar
    has ended.
    """
    session = last_closed_session(market.calendar, now - TOLERANCE, grace=timedelta(0))
    since = _scheduled(market, session)
    while since + TOLERANCE > now:  # closed long enough ago, but its night was scheduled later
        session = previous_session(market.calendar, session)
        since = _scheduled(market, session)
    return Due(session, since)


@dataclass(frozen=True)
class Punctuality:
    """Say how late the nights of a market are.

    `night` and `outcome` are those of its last night. `due` is the first night after the last
    complete one or, where no night is complete, the last night itself; None if that is not due yet,
    or if no further night is expected (`is_nightly`). `seconds` have passed since it was due, 0 if
    it is not. `scheduled_at` is when the last night was due, `opens_at` when the session that it
    predicts opens, and `next_at` when the next night that is expected will be due. These five are
    None where the exchange is not known; some or all of them are where its calendar lacks a session
    that one of them needs.
    """

    market: str
    night: date
    outcome: str
    due: Due | None
    seconds: float | None
    scheduled_at: datetime | None = None
    opens_at: datetime | None = None
    next_at: datetime | None = None

    @property
    def is_late(self) -> bool:
        """Return whether a night is due since at least `TOLERANCE`."""
        return self.seconds is not None and self.seconds >= TOLERANCE.total_seconds()

    @property
    def problem(self) -> str | None:
        """Return what is late and what to do, in one line; None where nothing is."""
        if self.due is None or not self.is_late:
            return None
        return (
            f"{self.market}: night of {self.due.as_of} is not complete, due since "
            f"{moment(self.due.since)}; the last night, of {self.night}, is {self.outcome}; "
            f"{_catch_up_command(self.market)}"
        )


def punctuality(
    conn: Connection, name: str, market: Market | None, now: datetime
) -> Punctuality | None:
    """Return how late the nights of a market are; None for a market without a night.

    Only views are read, so that a role of `dtml db grant-reader` may call this.
    """
    last = read_row(conn, "night_log", market=name, order="-as_of")
    if last is None:
        return None
    complete = read_row(conn, "night_log", market=name, status=COMPLETE, order="-as_of")
    last_complete = complete["as_of"] if complete else None
    due: Due | None = None
    seconds: float | None = None
    scheduled_at: datetime | None = None
    opens_at: datetime | None = None
    next_at: datetime | None = None
    if market is not None:
        with suppress(DtmlError):  # the calendar ends, or begins later
            if is_nightly(name, last["as_of"], now):
                due = _first_due(market, last["as_of"], last_complete, now)
                next_at = _next_run(market, now)
            seconds = 0.0 if due is None else (now - due.since).total_seconds()
            scheduled_at = _scheduled(market, last["as_of"])
            target = next_session(market.calendar, last["as_of"])
            opens_at = session_open(market.calendar, target)
    return Punctuality(
        market=name,
        night=last["as_of"],
        outcome=last["status"],
        due=due,
        seconds=seconds,
        scheduled_at=scheduled_at,
        opens_at=opens_at,
        next_at=next_at,
    )


def _first_due(market: Market, last: date, last_complete: date | None, now: datetime) -> Due | None:
    """Return the first night that is not complete, if it is due, else None.

    It is that after the last complete night or, where none is complete, the last night itself.
    """
    session: date | None = last
    if last_complete is not None:
        session = next_known_session(market.calendar, last_complete)
    if session is None:
        return None
    since = _scheduled(market, session)
    return Due(session, since) if since <= now else None


def _scheduled(market: Market, session: date) -> datetime:
    """Return when the night of a session is due: the first scheduled moment after its close."""
    return next_night(market, session_close(market.calendar, session), _delay_of(market.name))


@dataclass(frozen=True)
class _Clock:
    """Hold what the calendar of a market's exchange gives for one moment.

    `closed` is the last closed session; the other attributes are those of `MarketStatus`. What is
    unknown is None.
    """

    closed: date | None = None
    due: Due | None = None
    next_run: datetime | None = None
    rejected_bars: int | None = None
    calendar_ends: date | None = None
    note: str | None = None


def _clock(conn: Connection, market: Market | None, now: datetime) -> _Clock:
    """Read the calendar of a market's exchange, and how many of its latest bars were rejected.

    The `note` of the result says that the calendar ends soon or, where it does not give all of the
    result, why.
    """
    if market is None:
        return _Clock(
            note="its exchange is not known here: give the market's file with --market-file"
        )
    clock = _Clock()
    ends = last_known_day(market.calendar)
    if ends - now.date() <= CALENDAR_WARNING:
        clock = _Clock(calendar_ends=ends, note=end_of_calendar(market.calendar, ends))
    # In steps, so that what is known is kept where the calendar ends before the next step.
    try:
        closed = last_closed_session(market.calendar, now)
        first = sessions_up_to(market.calendar, closed, REJECTED_SESSIONS)[0].date()
        rejected = prices.rejected_bars(conn, market.name, first, now.date())
        # A bar has a row for each check that it failed.
        rejected_bars = len(rejected.drop_duplicates(["symbol", "session"]))
        clock = replace(clock, closed=closed, rejected_bars=rejected_bars)
        clock = replace(clock, due=due_night(market, now))
        return replace(clock, next_run=_next_run(market, now))
    except DtmlError as error:  # the calendar ends, which must not fail the other markets' status
        return replace(clock, note=str(error))


def end_of_calendar(calendar: AnyCalendar, last: date) -> str:
    """Return the message that the calendar of a market ends, and what to do."""
    return f"the calendar {calendar} ends on {last}: {REMEDY}"


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
    due_in = None
    if isinstance(policy, int) and age is not None:
        due_in = max(0, policy - age)
    return ModelAge(
        run_id=run["id"], trained_on=run["train_last"], age=age, policy=policy, due_in=due_in
    )


def _skill(scores: pd.DataFrame, figure: str) -> Skill | None:
    pair = beside_rules(scores[scores[figure].notna()])
    if pair is None:
        return None
    model, rules = pair
    best_rule = best_at(rules, figure)
    return Skill(
        value=float(model[figure]),
        low=float(model[f"{figure}_low"]),
        high=float(model[f"{figure}_high"]),
        rule=None if best_rule is None else str(best_rule["predictor"]),
        rule_value=None if best_rule is None else float(best_rule[figure]),
    )
