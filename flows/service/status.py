"""Report the status of every market: its last night, what is late, its model, its scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path

import pandas as pd
from sqlalchemy import Connection, Engine

from db import where
from db.connection.locks import is_free
from db.engine import reading
from db.read import read, read_row
from db.rows import markets, prices, rankings
from db.rows import scores as stored_scores
from db.rows.nights import COMPLETE
from db.rows.runs import latest_trained
from dtml.baselines.naive_rules import beside_rules, best_at
from dtml.errors import DtmlError, UsageError
from dtml.markets import Market
from dtml.markets.definition import AnyCalendar, Retrain
from dtml.pages.figures import counted
from dtml.prices.sessions import (
    REMEDY,
    last_closed_session,
    last_known_day,
    sessions_between,
    sessions_up_to,
)
from flows.markets.files import market_of_store, no_such_market, read_market
from flows.night_facts import night_facts
from flows.service.timeliness import Timeliness, timeliness

REJECTED_SESSIONS = 30  # the last ones, whose rejected bars are counted
CALENDAR_WARNING = timedelta(days=60)  # before a calendar ends
WAITING_DAYS = 7  # an alert that no service accepted in a week is no longer sent


@dataclass(frozen=True)
class Skill:
    """A running figure with its 95 % interval, NaN below 20 nights, beside the best naive rule's.

    `rule` is None where none was scored on as many nights.
    """

    value: float
    low: float
    high: float
    rule: str | None
    rule_value: float | None


@dataclass(frozen=True)
class ModelAge:
    """The latest model, and when the market's policy requires another.

    `age` counts the sessions closed since `trained_on`; `policy` is the age of a retraining,
    "missing" or "never". None: exchange or definition unknown.
    """

    run_id: str
    trained_on: date
    age: int | None
    policy: Retrain | None
    due_in: int | None  # sessions; None where the policy names no age


@dataclass(frozen=True, kw_only=True)
class MarketStatus(Timeliness):
    """The status of a market, None where its exchange is unknown.

    `outcome`, `gaps`, `reason` and `started_at` are of the last night: complete,
    complete_with_gaps, refused, running or interrupted. `age` counts sessions closed since the last
    complete night, `rejected_bars` those of REJECTED_SESSIONS. `acc` and `mcc` run over
    `scored_nights`. `note` is about the exchange or its calendar, `second_source` how the last
    comparison ended.
    """

    gaps: int
    reason: str | None
    started_at: datetime | None
    age: int | None
    model: ModelAge | None
    rejected_bars: int | None
    scored_nights: int
    acc: Skill | None
    mcc: Skill | None
    alerts_not_sent: int
    ranked_by: str | None
    calendar_ends: date | None  # where that is at most 60 days ahead, or past
    note: str | None
    second_source: str | None

    @property
    def problem(self) -> str | None:
        """Return the problem that `--check` reports, in one line, or None."""
        if self.is_nightly and self.outcome == "refused":
            return f"{self.market}: night of {self.as_of} refused: {self.reason}"
        return self.late_message and f"{self.market}: {self.late_message}"


def named_markets(
    engine: Engine, names: Sequence[str], files: Sequence[Path]
) -> dict[str, Market | None]:
    """Return the markets of these names and files, by name, else all with a night or a fetch.

    A market that nothing defines is None. Raises UsageError for a named one that the store lacks.
    """
    of_files = [read_market(file.stem, file) for file in files]
    markets_of_files = {market.name: market for market in of_files}
    with reading(engine) as conn:
        stored = markets.markets(conn)
    chosen_names = [*names, *markets_of_files] if names else stored
    for name in chosen_names:
        if name not in stored:
            raise UsageError(no_such_market(name, stored, markets_of_files.get(name)))
    return {
        name: markets_of_files.get(name) or market_of_store(engine, name) for name in chosen_names
    }


def market_status(engine: Engine, name: str, market: Market | None, now: datetime) -> MarketStatus:
    """Return the status of a market at `now`; `market` is None where its definition is unknown."""
    closed: date | None = None
    rejected_bars: int | None = None
    calendar_ends: date | None = None
    note: str | None = None
    with reading(engine) as conn:
        times = timeliness(conn, name, market, now)
        last = night_facts(conn, name)
        complete = night_facts(conn, name, status=COMPLETE)
        run = latest_trained(conn, "run", name)
        scores = stored_scores.running_scores(conn, name)
        unsent = waiting_alerts(conn, now, name)
        second_source = _second_source(conn, market) if market else None
        ranked_by = None
        if complete:
            ranked_by = rankings.chosen_predictor(conn, name, complete.row["target"])
            champion = complete.champion
            if champion and champion["predictor"] == ranked_by:
                ranked_by = f"{ranked_by} since {champion['since']}"
        if market is None:
            note = "its exchange is not known here: give the market's file with --market-file"
        else:
            ends = last_known_day(market.calendar)
            if ends - now.date() <= CALENDAR_WARNING:
                calendar_ends, note = ends, end_of_calendar(market.calendar, ends)
            try:
                closed = last_closed_session(market.calendar, now)
                first = sessions_up_to(market.calendar, closed, REJECTED_SESSIONS)[0].date()
                rejected = prices.rejected_bars(conn, name, first, now.date())
                # A bar has a row for each check that it failed.
                rejected_bars = len(rejected.drop_duplicates(["symbol", "session"]))
            except DtmlError as error:  # the calendar has ended
                note = str(error)

    def age(day: date) -> int | None:
        """Return the number of sessions closed since a day."""
        if market is None or closed is None:
            return None
        return len(sessions_between(market.calendar, day + timedelta(days=1), closed))

    model = None
    if run is not None:
        model_age = age(run["train_last"])
        policy = market.retrain if market else None
        model = ModelAge(
            run_id=run["id"],
            trained_on=run["train_last"],
            age=model_age,
            policy=policy,
            due_in=max(0, policy - model_age)
            if isinstance(policy, int) and model_age is not None
            else None,
        )
    # A night holds its market's lock: if that is free, the night was killed and its row stayed.
    if times.outcome == "running" and is_free(engine, name):
        times = replace(times, outcome="interrupted")
    return MarketStatus(
        **vars(times),
        gaps=len(last.row["gaps"] or []) if last else 0,
        reason=last.row["reason"] if last else None,
        started_at=last.row["started_at"] if last else None,
        age=age(complete.as_of) if complete else None,
        model=model,
        rejected_bars=rejected_bars,
        scored_nights=int(scores["nights"].max()) if len(scores) else 0,
        acc=_skill(scores, "acc"),
        mcc=_skill(scores, "mcc"),
        alerts_not_sent=len(unsent),
        ranked_by=ranked_by,
        calendar_ends=calendar_ends,
        note=note,
        second_source=second_source,
    )


def _second_source(conn: Connection, market: Market) -> str | None:
    """Return in words how the last comparison with the second source ended, or None."""
    comparison = read_row(conn, "comparison_log", market=market.name, order="-as_of")
    if market.second_source is None or comparison is None:
        return None
    if comparison["failure"] is not None:
        return f"{comparison['source']} failed: {comparison['failure']}"
    if not comparison["differing"]:
        return f"{comparison['source']} agrees"
    values = counted(comparison["differing"], "value")
    return f"{comparison['source']} differs in {values} up to {comparison['as_of']}"


def waiting_alerts(conn: Connection, now: datetime, market: str | None = None) -> pd.DataFrame:
    """Return the unsent alerts of the last WAITING_DAYS days of a market, or all, oldest first."""
    unsent = read(
        conn, "alert", market=where.given(market), sent_at=None, order="raised_at, market, kind"
    )
    oldest = pd.Timestamp(now) - timedelta(days=WAITING_DAYS)
    return unsent[unsent["raised_at"] >= oldest]


def end_of_calendar(calendar: AnyCalendar, last: date) -> str:
    """Return the message that the calendar of a market ends, and what to do."""
    return f"the calendar {calendar} ends on {last}: {REMEDY}"


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
