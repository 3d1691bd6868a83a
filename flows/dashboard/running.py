"""What is running (nights, backtests, translators, queues), and each market's last night."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.connection.locks import is_held
from db.read import query, read, read_row, read_value
from db.rows import markets, nights, translations
from dtml.pages.figures import Page, Row, count, counted, day, records
from flows.service.timeliness import Timeliness

STATUSES = ("queued", "taken", "done", "failed")  # of a text
REFRESH_S = (15, 60)  # the choices on the page for reloading it
LONGEST_REFRESH_S = 3600  # that an address may have
SHOWN_FOR = timedelta(days=7)  # a backtest that began earlier and did not end is not shown
SILENT_FOR = timedelta(minutes=20)  # without a logged step, a translator is not in training
MOST_NAMED = 3  # markets that are not well, in the heading of the first page
SHORTEST = timedelta(minutes=10)  # until a backtest of the shortest folds is silent
SILENT_FOLDS = 5  # times the pace of its folds: a backtest that is silent longer was interrupted


@dataclass(frozen=True)
class Work:
    """How far a piece of work is.

    `kind` is "night", "backtest", "training" or "translations"; `done` a share, 0 to 1, where
    known; `is_alive`: it is still worked on, as far as one can see.
    """

    kind: str
    name: str
    stage: str
    is_alive: bool
    done: float | None = None
    market: str | None = None


@dataclass(frozen=True)
class State:
    """Hold how a market's last night stands, for the macro `state`.

    `night` is None before the first night, `running` is its `running_night` while it runs. `times`
    are those of the market; on the page of an older night they tell nothing.
    """

    night: Row | None
    running: Row | None
    times: Timeliness
    now: datetime

    @property
    def kind(self) -> str:
        """Return "none" (no night), "running", "interrupted", "refused", "late" or "complete"."""
        if self.night is None:
            return "none"
        if self.running is not None:
            return "running" if self.running["work"].is_alive else "interrupted"
        if self.night["status"] not in nights.COMPLETE:
            return str(self.night["status"])
        return "late" if self.times.is_late else "complete"

    @property
    def is_hindsight(self) -> bool:
        """Return whether the night was run after the session that it predicts."""
        if self.night is None or self.night["status"] not in nights.COMPLETE:
            return False
        target = self.night["target"]
        return target is not None and self.night["finished_at"].date() > target

    @property
    def has_opened(self) -> bool:
        """Return whether the session predicted is known to have opened."""
        return self.times.opens_at is not None and self.times.opens_at <= self.now

    @property
    def is_too_late(self) -> bool:
        """Return whether the night is known to have ended late, and after the open."""
        return self.times.is_late_end and self.times.is_in_time is False


def state_of_night(
    conn: Connection, market: str, night: Row | None, now: datetime, times: Timeliness | None
) -> State:
    """Return the state of a market's night; `times` are known for its last one."""
    is_running = night is not None and night["status"] == "running"
    return State(
        night=night,
        running=running_night(conn, night, now) if night and is_running else None,
        times=times or Timeliness(market=market),
        now=now,
    )


def summary_of_states(states: Mapping[str, State]) -> str:
    """Say in a few words whether the last nights of several markets are well; empty for one.

    Late is a night that ended after the open.
    """
    words = {market: state.kind for market, state in states.items() if state.night}
    if len(words) < 2:
        return ""
    not_well = [
        f"{market} {'late' if word == 'complete' else word}"
        for market, word in words.items()
        if word != "complete" or states[market].is_too_late
    ]
    if not not_well:
        return "all well"
    if len(not_well) > MOST_NAMED:
        return f"{count(len(not_well))} of {count(len(words))} not well"
    others = ", the others well" if len(not_well) < len(words) else ""
    return f"{', '.join(not_well)}{others}"


def live_page(conn: Connection, now: datetime, times: Mapping[str, Timeliness]) -> Page:
    """Return the state of every market's last night, and what is running beside nights."""
    states = {}
    for market in markets.all_markets(conn):
        night = read_row(conn, "night_log", market=market, order="-as_of")
        states[market] = state_of_night(conn, market, night, now, times.get(market))
    return {"states": states, "works": other_work(conn, now)}


def running_page(
    conn: Connection, every: int, now: datetime, times: Mapping[str, Timeliness]
) -> Page:
    """Return the page of running nights, with stages, and of queued texts by model and status.

    Loaded again `every` seconds (0: never).
    """
    counts = translations.queue_counts(conn).pivot(index="model", columns="status", values="n")
    return {
        **live_page(conn, now, times),
        "now": now,
        "every": every,
        "choices": REFRESH_S,
        "queue": records(counts.reindex(columns=STATUSES).fillna(0).reset_index()),
        "statuses": STATUSES,
    }


def other_work(conn: Connection, now: datetime) -> list[Work]:
    """Return the backtests, the trainings of translators and the queues of texts in hand."""
    return [*_backtests(conn, now), *_translators(conn, now), *_translation_queues(conn, now)]


def running_night(conn: Connection, night: Row, now: datetime) -> Row:
    """Return a night that is running or was interrupted, with its stages.

    Each has its `seconds`, and those of the night `before`; stages not begun come last, without a
    status. `stage` is the running one, None between two. `work` is the night.
    """
    market, as_of = night["market"], night["as_of"]
    stages = partial(read, conn, "stage_log", market=market, order="started_at, stage")
    before = read_value(
        conn, "stage_log", "as_of", market=market, as_of=where.before(as_of), order="-as_of"
    )
    earlier = stages(as_of=before).set_index("stage")["seconds"]
    own = stages(as_of=as_of).set_index("stage")
    rows = own.reindex([*own.index, *earlier.index.difference(own.index, sort=False)])
    so_far = (pd.Timestamp(now) - rows["started_at"]).dt.total_seconds().clip(lower=0)
    rows = rows.assign(seconds=rows["seconds"].fillna(so_far), before=earlier).reset_index()
    running = records(rows[rows["status"] == "running"])
    stage = running[-1] if running else None
    return {
        "stage": stage,
        "stages": records(rows),
        "before": before,
        "work": Work(
            kind="night",
            name=day(as_of),
            stage=stage["stage"] if stage else "between two stages",
            is_alive=is_held(conn, market),
            market=market,
        ),
    }


def _backtests(conn: Connection, now: datetime) -> list[Work]:
    """Return the backtests begun in the last days and not ended, by the share of days `done`.

    Alive while silent for at most `SILENT_FOLDS` times the median time of a fold.
    """
    works = []
    begun = read(conn, "backtest", finished_at=None, created_at=where.since(now - SHOWN_FOR))
    for row in records(begun):
        folds = query(conn, "fold_moments", backtest=row["id"])
        done = 0.0
        stage = "no fold done"
        is_alive = True  # before its first fold
        if len(folds):
            last = folds["last"].max()
            stage = f"{counted(len(folds), 'fold')} done, up to {day(last)}"
            done = min(
                1.0, ((last - row["first"]).days + 1) / ((row["last"] - row["first"]).days + 1)
            )
            moments = folds["created_at"].sort_values()
            pace = moments.diff().median()
            if pd.isna(pace):  # of a single fold
                pace = timedelta(seconds=float(folds["seconds"].iloc[0]))
            is_alive = now - moments.iloc[-1] < max(SILENT_FOLDS * pace, SHORTEST)
        works.append(
            Work(
                kind="backtest",
                name=row["id"],
                stage=stage,
                is_alive=is_alive,
                done=done,
                market=row["market"],
            )
        )
    return works


def _translators(conn: Connection, now: datetime) -> list[Work]:
    """Return the trainings of translators, not stored yet, that logged a step not long ago."""
    return [
        Work(
            kind="training",
            name=row["model"],
            stage=f"step {count(row['step'])}, epoch {row['epoch']:.1f}",
            is_alive=True,
        )
        for row in records(query(conn, "trainings", since=now - SILENT_FOR))
        if pd.isna(row["source_language"])
    ]


def _translation_queues(conn: Connection, now: datetime) -> list[Work]:
    """Return the queues of texts that wait; alive if a text is taken or was just done."""
    works = []
    waiting = translations.queue_counts(conn, ["queued", "taken"])
    taken = waiting.loc[waiting["status"] == "taken", "model"]
    recent = where.since(now - SILENT_FOR)
    done = read(conn, "translation_job", columns="model", status="done", finished_at=recent)
    alive = {*taken, *done["model"]}
    for model, number in waiting.groupby("model")["n"].sum().items():
        works.append(
            Work(
                kind="translations",
                name=str(model),
                stage=f"{counted(number, 'text')} to translate",
                is_alive=model in alive,
            )
        )
    return works
