"""What is running: nights, backtests, trainings of translators, and the queue of texts.

Each has its stage, how far it is, and an estimate of the time left, from what earlier stages, folds
and texts took.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.connection.locks import is_held
from db.read import query, read, read_row
from db.rows import markets, translations
from dtml.pages.figures import count, counted, day, records

STATUSES = ("queued", "taken", "done", "failed")  # of a text
REFRESH_S = (15, 60)  # the choices on the page for reloading it
LONGEST_REFRESH_S = 3600  # that an address may have
EARLIER_STAGES = 300  # whose seconds are read: those of about thirty nights
SHOWN_FOR = timedelta(days=7)  # a backtest that began earlier and did not end is not shown
SILENT_FOR = timedelta(minutes=20)  # without a logged step, a translator is not in training
PACE_TEXTS = 50  # the newest translations of a queue, which give its pace
SILENT_FOLDS = 5  # times the pace of its folds: a backtest that is silent longer was interrupted


@dataclass(frozen=True)
class Work:
    """Hold how far a piece of work is.

    `kind` is what it is ("night", "backtest", "training", "translations"), `name` which one.
    `stage` says in words what is being done. `done` is the share that is done, 0 to 1, and `left_s`
    the estimated seconds until the end; None where they are not known. `is_alive` tells whether it
    is still worked on, as far as one can see, and `market` whose it is, None without one.
    """

    kind: str
    name: str
    stage: str
    done: float | None
    left_s: float | None
    is_alive: bool
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
    earlier = read(
        conn,
        "stage_log",
        market=market,
        as_of=where.before(night["as_of"]),
        order="-as_of, started_at, stage",
        limit=EARLIER_STAGES,
    )
    stages = records(
        read(conn, "stage_log", market=market, as_of=night["as_of"], order="started_at, stage")
    )
    previous_night = earlier["as_of"].max() if len(earlier) else None
    of_night_before = earlier[earlier["as_of"] == previous_night]
    earlier_seconds = dict(
        zip(of_night_before["stage"], of_night_before["seconds"].tolist(), strict=True)
    )
    rows = []
    # `pop` takes each stage of this night out of those of the night before: what then remains there
    # are the stages that this night has not begun.
    for stage in stages:
        name = stage["stage"]
        rows.append(
            {
                "stage": name,
                "status": stage["status"],
                "seconds": _seconds(stage, now),
                "before": earlier_seconds.pop(name, None),
            }
        )
    for name, seconds in earlier_seconds.items():
        rows.append({"stage": name, "status": None, "seconds": None, "before": seconds})
    running_stages = [stage for stage in stages if stage["status"] == "running"]
    current_stage = running_stages[-1] if running_stages else None
    is_alive = is_held(conn, market)
    spent_s = 0.0
    left_s: float | None = 0.0
    stage_words = "between two stages"
    for row in rows:
        usual = earlier.loc[earlier["stage"] == row["stage"], "seconds"]
        stage_left_s = _time_left(row, usual.dropna().to_numpy(dtype=float))
        spent_s += row["seconds"] or 0.0
        # Once a stage is without an estimate, so is the night.
        left_s = None if left_s is None or stage_left_s is None else left_s + stage_left_s
        if row["status"] == "running":
            stage_words = row["stage"]
    if not len(earlier):  # the stages that are to come are not known
        left_s = None
    if not is_alive:  # the clock of its last stage goes on without work
        left_s = None
    done = None
    if left_s is not None and spent_s + left_s != 0:
        done = spent_s / (spent_s + left_s)
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
            stage=stage_words,
            done=done,
            left_s=left_s,
            is_alive=is_alive,
            market=market,
        ),
    }


def _time_left(row: Mapping[str, Any], usual: "np.ndarray[Any, Any]") -> float | None:
    """Return the seconds that a stage still needs, None where no earlier night tells.

    `usual` are its seconds in earlier nights. A stage that runs is compared with those that took
    longer than it has by now: a night that trains, with nights that trained.
    """
    if row["status"] in ("done", "failed"):
        return 0.0
    if row["status"] is None:
        return float(np.median(usual)) if len(usual) else None
    longer = usual[usual > row["seconds"]]
    return float(np.median(longer)) - row["seconds"] if len(longer) else None


def _seconds(stage: Mapping[str, Any], now: datetime) -> float:
    if not pd.isna(stage["seconds"]):
        return float(stage["seconds"])
    elapsed = now - stage["started_at"]
    return max(0.0, float(elapsed.total_seconds()))


def _backtests(conn: Connection, now: datetime) -> list[Work]:
    """Return the backtests that have begun in the last days and have not ended.

    `done` is the share of its days whose folds are done. The pace is the median time from one
    fold's model to the next, so that the break of a run that was interrupted does not count.
    """
    works = []
    for row in records(
        read(conn, "backtest", finished_at=None, created_at=where.since(now - SHOWN_FOR))
    ):
        folds = query(conn, "fold_moments", backtest=row["id"])
        days = (row["last"] - row["first"]).days + 1
        done = 0.0
        left_s = None
        last_sign = row["created_at"]
        silent_s = SHOWN_FOR.total_seconds()  # before its first fold, it counts as alive
        if len(folds):
            done = min(1.0, ((folds["last"].max() - row["first"]).days + 1) / days)
            moments = folds["created_at"]
            otherwise = float(folds["seconds"].median())
            steps = moments.sort_values().diff().dropna().dt.total_seconds()
            pace_s = float(steps.median()) if len(steps) else otherwise
            # The folds to come are to those done as the days to come are to the days done.
            left_s = pace_s * len(folds) * (1 - done) / done
            last_sign = folds["created_at"].max()
            silent_s = SILENT_FOLDS * pace_s
        works.append(
            Work(
                kind="backtest",
                name=row["id"],
                stage=f"{counted(len(folds), 'fold')} done, up to {_last_day(folds)}",
                done=done,
                left_s=left_s,
                # Ten minutes are allowed to the shortest folds.
                is_alive=(now - last_sign).total_seconds() < max(silent_s, 600),
                market=row["market"],
            )
        )
    return works


def _last_day(folds: pd.DataFrame) -> str:
    return day(folds["last"].max()) if len(folds) else "-"


def _translators(conn: Connection, now: datetime) -> list[Work]:
    """Return the trainings of translators that logged a step not long ago.

    A model has languages once its first training has ended and it is stored; it is left out then.
    """
    works = []
    for row in records(query(conn, "trainings", since=now - SILENT_FOR)):
        if pd.isna(row["source_language"]):
            stage = f"step {count(row['step'])}, epoch {row['epoch']:.1f}"
            works.append(
                Work(
                    kind="training",
                    name=row["model"],
                    stage=stage,
                    done=None,
                    left_s=None,
                    is_alive=True,
                )
            )
    return works


def _translation_queues(conn: Connection, now: datetime) -> list[Work]:
    """Return the queues of texts that still wait or are being translated.

    A queue is worked on if a text of it is taken, or was done in the last minutes.
    """
    works = []
    waiting = translations.queue_counts(conn, ["queued", "taken"])
    taken = set(waiting.loc[waiting["status"] == "taken", "model"])
    for model, number in waiting.groupby("model")["n"].sum().items():
        finished = read(
            conn,
            "translation_job",
            columns="finished_at",
            status="done",
            model=str(model),
            order="priority, -id",
            limit=PACE_TEXTS,
        )["finished_at"]
        left_s = None
        is_recent = len(finished) > 0 and now - finished.max() < SILENT_FOR
        if is_recent and len(finished) > 1:
            span_s = (finished.max() - finished.min()).total_seconds()
            left_s = span_s / (len(finished) - 1) * number
        works.append(
            Work(
                kind="translations",
                name=str(model),
                stage=f"{counted(number, 'text')} to translate",
                done=None,
                left_s=left_s,
                is_alive=is_recent or model in taken,
            )
        )
    return works
