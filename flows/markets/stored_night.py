"""Find the nights that earlier runs have completed, without loading what runs a night."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from db import where
from db.engine import reading
from db.read import read, read_row, read_value
from db.rows.nights import COMPLETE
from dtml.prices.sessions import sessions_between
from flows.log_lines import logged_run
from flows.markets.opened import OpenedMarket
from flows.settings import reports_folder
from flows.upkeep.parquet_export import export_if_asked
from flows.upkeep.pruning import drop_states

if TYPE_CHECKING:  # these modules load torch
    from flows.nightly.fetch import FetchResult
    from flows.nightly.score import Scored

log = logging.getLogger(__name__)

# Of the sessions up to a day, the number that can be missed nights; `dtml backtest` predicts older
# ones.
LIMIT = 30
# What follows the predictions of a night, in this order, and may run again.
LAST_STAGES = ("score", "paper account", "drift", "report")


@dataclass(frozen=True)
class Night:
    """How a night ended: its row in the store, its page.

    `fetch_result` and `scored` are None if an earlier run had completed it; `changed` then says how
    the market's own code has changed since its rankers were trained.
    """

    row: dict[str, Any]
    report: Path
    fetch_result: "FetchResult | None" = None
    scored: "Scored | None" = None
    changed: str = ""

    @property
    def was_done_before(self) -> bool:
        """Return whether an earlier run had completed the night."""
        return self.fetch_result is None


def stored_night(opened: OpenedMarket, as_of: date) -> Night | None:
    """Return a complete night with its page, or None where `run_night` is needed.

    What a run killed late may have left undone, such as an export, is done first. A market with the
    user's own code always gets None: `run_night` compares the code.
    """
    row = finished_night(opened, as_of)
    if row is None or opened.market.code is not None:
        return None
    if last_stage_done(opened, row) != LAST_STAGES[-1]:
        return None
    with logged_run("night", market=opened.name, night=as_of) as run:
        drop_states(opened.name, as_of)
        export_if_asked(opened.engine, opened.name)
        run.outcome = f"{row['status']} before"
    return Night(row=row, report=page_file(opened, as_of, opened.market.level))


def finished_night(opened: OpenedMarket, as_of: date) -> dict[str, Any] | None:
    """Return the row of a complete night; None for one that has not been run, or is incomplete."""
    with reading(opened.engine) as conn:
        row = read_row(conn, "night_log", market=opened.name, as_of=as_of)
    return row if is_complete(row) else None


def is_complete(row: Mapping[str, Any] | None) -> bool:
    """Return whether a night has its predictions; `row` is None before its first run."""
    return row is not None and row["status"] in COMPLETE


def missed_nights(opened: OpenedMarket, last: date, limit: int | None = LIMIT) -> list[date]:
    """Return which of the last `limit` sessions up to `last` (None: all) lack a complete night.

    A night without its last stage is among them; sessions before the first complete night and those
    `passed_over` are not. Without a complete night: `last`.
    """
    complete = _complete(opened)["as_of"]
    first = last if complete.empty else min(complete.min().date(), last)
    sessions = sessions_between(opened.market.calendar, first, last)
    if limit is not None:
        sessions = sessions[-limit:]
    with reading(opened.engine) as conn:
        stages = read(conn, "stage_log", market=opened.name, as_of=where.since(sessions[0].date()))
    is_last = (stages["stage"] == LAST_STAGES[-1]) & (stages["status"] == "done")
    cut_off = set(stages["as_of"]) - set(stages.loc[is_last, "as_of"])
    whole = complete[~complete.isin(cut_off)]
    missed = [session.date() for session in sessions[~sessions.isin(whole)]]
    over = passed_over(opened, missed)
    return [day for day in missed if day not in over]


def passed_over(opened: OpenedMarket, days: Iterable[date]) -> dict[date, date]:
    """Return, by session of `days`, the complete night before that predicted a session after it.

    The calendar got the session later; it has no night of its own, and the log says so.
    """
    complete = _complete(opened)
    as_of, target = complete["as_of"], complete["target"]
    found: dict[date, date] = {}
    for day in days:
        session = pd.Timestamp(day)
        past = as_of[(as_of < session) & (target > session)]
        if past.empty:
            continue
        found[day] = past.iloc[-1].date()
        log.info(
            "%s: %s became a session after the night of %s had predicted the one after it, so it "
            "has no night",
            opened.name,
            day,
            found[day],
        )
    return found


def _complete(opened: OpenedMarket) -> pd.DataFrame:
    with reading(opened.engine) as conn:
        stored = read(conn, "night", market=opened.name)
    return stored[stored["status"].isin(COMPLETE)]


def last_stage_done(opened: OpenedMarket, completed: Mapping[str, Any]) -> str | None:
    """Return the last of `LAST_STAGES` done after predictions and the newest fetch, or None.

    That of the page is not done where the page is gone.
    """
    as_of = completed["as_of"]
    with reading(opened.engine) as conn:
        stages = read(conn, "stage_log", market=opened.name, as_of=as_of, order="started_at")
        fetched_at = read_value(
            conn,
            "price_fetch",
            "known_at",
            market=opened.name,
            as_of=where.until(as_of),
            order="-known_at",
        )
    changed_at = max(completed["finished_at"], fetched_at or completed["finished_at"])
    is_done = (stages["status"] == "done") & (stages["started_at"] >= changed_at)
    done = set(stages.loc[is_done, "stage"])
    if not page_file(opened, as_of, opened.market.level).exists():
        done.discard("report")
    return next((stage for stage in reversed(LAST_STAGES) if stage in done), None)


def page_file(opened: OpenedMarket, as_of: date, level: float) -> Path:
    """Return the path of a night's page, with the level where it is not the market's own."""
    level_in_name = "" if level == opened.market.level else f"-level-{level:g}"
    return reports_folder() / opened.name / f"{as_of}{level_in_name}.html"
