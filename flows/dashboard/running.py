"""What is running: nights, backtests, trainings of translators, and the queue of texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.connection.locks import is_held
from db.read import query, read, read_row, read_value
from db.rows import markets, translations
from dtml.pages.figures import count, counted, day, records

STATUSES = ("queued", "taken", "done", "failed")  # of a text
REFRESH_S = (15, 60)  # the choices on the page for reloading it
LONGEST_REFRESH_S = 3600  # that an address may have
SHOWN_FOR = timedelta(days=7)  # a backtest that began earlier and did not end is not shown
SILENT_FOR = timedelta(minutes=20)  # without a logged step, a translator is not in training
SILENT_FOLDS = 5  # times the pace of its folds: a backtest that is silent longer was interrupted


@dataclass(frozen=True)
class Work:
    """Hold how far a piece of work is.

    `kind` is what it is ("night", "backtest", "training", "translations"), `name` which one.
    `stage` says in words what is being done, and `done` the share that is done, 0 to 1, where that
    is known. `is_alive` tells whether it is still worked on, as far as one can see.
    """

    kind: str
    name: str
    stage: str
    is_alive: bool
    done: float | None = None
    market: str | None = None


def running_page(conn: Connection, now: datetime, every: int) -> dict[str, Any]:
    """Return the page of the nights that are running, each with its stages, and of other work.

    `running` has the nights (`running_night`), `works` the other work (`other_work`), and `queue`
    the number of texts to translate by model and status. `every` is the number of seconds after
    which the page is loaded again; 0 for never.
    """
    running = []
    for name in markets.all_markets(conn):
        night = read_row(conn, "night_log", market=name, order="-as_of")
        if night is not None and night["status"] == "running":
            running.append(running_night(conn, night, now))
    queue_counts = translations.queue_counts(conn)
    by_model: dict[str, dict[str, Any]] = {}
    for row in records(queue_counts):
        model_counts = by_model.setdefault(row["model"], dict.fromkeys(STATUSES, 0))
        model_counts[row["status"]] = row["n"]
    return {
        "now": now,
        "every": every,
        "choices": REFRESH_S,
        "running": running,
        "works": other_work(conn, now),
        "queue": [{"model": model, **model_counts} for model, model_counts in by_model.items()],
        "statuses": STATUSES,
    }


def other_work(conn: Connection, now: datetime) -> list[Work]:
    """Return the backtests, the trainings of translators and the queues of texts in hand."""
    return [*_backtests(conn, now), *_translators(conn, now), *_translation_queues(conn, now)]


def running_night(conn: Connection, night: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return a night that is running or was interrupted, with its stages.

    Each stage has its `seconds` so far, and those that it took in the night before (`before`; None
    if unknown). The stages that the night has not begun yet are taken from the night before; their
    status is None. `before` beside them is that night's `as_of`, None without one. `stage` is the
    stage that is running, None between two. `is_alive` tells whether a process still works on the
    night, and `work` is the night as a piece of work.
    """
    market = night["market"]
    stages = records(
        read(conn, "stage_log", market=market, as_of=night["as_of"], order="started_at, stage")
    )
    previous_night = read_value(
        conn,
        "stage_log",
        "as_of",
        market=market,
        as_of=where.before(night["as_of"]),
        order="-as_of",
    )
    of_night_before = read(
        conn, "stage_log", market=market, as_of=previous_night, order="started_at, stage"
    )
    earlier_seconds = dict(
        zip(of_night_before["stage"], of_night_before["seconds"].tolist(), strict=True)
    )
    # `pop` takes each stage of this night out of those of the night before: what then remains there
    # are the stages that this night has not begun.
    rows = [
        {
            "stage": stage["stage"],
            "status": stage["status"],
            "seconds": _seconds(stage, now),
            "before": earlier_seconds.pop(stage["stage"], None),
        }
        for stage in stages
    ]
    rows += [
        {"stage": name, "status": None, "seconds": None, "before": seconds}
        for name, seconds in earlier_seconds.items()
    ]
    running_stages = [stage for stage in stages if stage["status"] == "running"]
    current_stage = running_stages[-1] if running_stages else None
    is_alive = is_held(conn, market)
    return {
        "market": market,
        "as_of": night["as_of"],
        "started_at": night["started_at"],
        "is_alive": is_alive,
        "stage": current_stage,
        "stages": rows,
        "before": previous_night,
        "work": Work(
            kind="night",
            name=day(night["as_of"]),
            stage=current_stage["stage"] if current_stage else "between two stages",
            is_alive=is_alive,
            market=market,
        ),
    }


def _seconds(stage: Mapping[str, Any], now: datetime) -> float:
    if not pd.isna(stage["seconds"]):
        return float(stage["seconds"])
    elapsed = now - stage["started_at"]
    return max(0.0, float(elapsed.total_seconds()))


def _backtests(conn: Connection, now: datetime) -> list[Work]:
    """Return the backtests that have begun in the last days and have not ended.

    `done` is the share of its days whose folds are done. A backtest is worked on while it is silent
    for no longer than `SILENT_FOLDS` times the median time from one fold's model to the next.
    """
    works = []
    for row in records(
        read(conn, "backtest", finished_at=None, created_at=where.since(now - SHOWN_FOR))
    ):
        folds = query(conn, "fold_moments", backtest=row["id"])
        done = 0.0
        last_sign = row["created_at"]
        silent_s = SHOWN_FOR.total_seconds()  # before its first fold, it counts as alive
        if len(folds):
            days = (row["last"] - row["first"]).days + 1
            done = min(1.0, ((folds["last"].max() - row["first"]).days + 1) / days)
            moments = folds["created_at"]
            steps = moments.sort_values().diff().dropna().dt.total_seconds()
            pace_s = float(steps.median() if len(steps) else folds["seconds"].median())
            last_sign = moments.max()
            silent_s = max(SILENT_FOLDS * pace_s, 600)  # ten minutes for the shortest folds
        up_to = day(folds["last"].max()) if len(folds) else "-"
        works.append(
            Work(
                kind="backtest",
                name=row["id"],
                stage=f"{counted(len(folds), 'fold')} done, up to {up_to}",
                is_alive=(now - last_sign).total_seconds() < silent_s,
                done=done,
                market=row["market"],
            )
        )
    return works


def _translators(conn: Connection, now: datetime) -> list[Work]:
    """Return the trainings of translators that logged a step not long ago.

    A model has languages once its first training has ended and it is stored; it is left out then.
    """
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
    """Return the queues of texts that still wait or are being translated.

    A queue is worked on if a text of it is taken, or was done in the last minutes.
    """
    works = []
    waiting = translations.queue_counts(conn, ["queued", "taken"])
    taken = set(waiting.loc[waiting["status"] == "taken", "model"])
    for model, number in waiting.groupby("model")["n"].sum().items():
        finished_at = read_value(
            conn,
            "translation_job",
            "finished_at",
            status="done",
            model=str(model),
            order="-finished_at",
        )
        is_recent = finished_at is not None and now - finished_at < SILENT_FOR
        works.append(
            Work(
                kind="translations",
                name=str(model),
                stage=f"{counted(number, 'text')} to translate",
                is_alive=is_recent or model in taken,
            )
        )
    return works
