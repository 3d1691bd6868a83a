"""What is running: nights, backtests, trainings of translators, and the queue of texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
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
    """Return the page of the nights that are running, each with its stages, and of queued texts.

    `queue` has the number of texts to translate by model and status. `every` is the number of
    seconds after which the page is loaded again; 0 for never.
    """
    newest = (
        read_row(conn, "night_log", market=name, order="-as_of")
        for name in markets.all_markets(conn)
    )
    counts = translations.queue_counts(conn).pivot(index="model", columns="status", values="n")
    return {
        "now": now,
        "every": every,
        "choices": REFRESH_S,
        "running": [
            running_night(conn, night, now)
            for night in newest
            if night is not None and night["status"] == "running"
        ],
        "queue": records(counts.reindex(columns=STATUSES).fillna(0).reset_index()),
        "statuses": STATUSES,
    }


def other_work(conn: Connection, now: datetime) -> list[Work]:
    """Return the backtests, the trainings of translators and the queues of texts in hand."""
    return [*_backtests(conn, now), *_translators(conn, now), *_translation_queues(conn, now)]


def running_night(conn: Connection, night: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return a night that is running or was interrupted, with its stages.

    Each stage has its `seconds` so far, and those that it took in the night `before`, whose stages
    that this night has not begun yet come last, without a status. `stage` is the stage that is
    running, None between two. `is_alive` tells whether a process still works on the night, and
    `work` is the night as a piece of work.
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
    rows = rows.assign(seconds=rows["seconds"].fillna(so_far), before=earlier)
    running = records(rows[rows["status"] == "running"].reset_index())
    stage = running[-1] if running else None
    is_alive = is_held(conn, market)
    return {
        "market": market,
        "as_of": as_of,
        "started_at": night["started_at"],
        "is_alive": is_alive,
        "stage": stage,
        "stages": records(rows.reset_index()),
        "before": before,
        "work": Work(
            kind="night",
            name=day(as_of),
            stage=stage["stage"] if stage else "between two stages",
            is_alive=is_alive,
            market=market,
        ),
    }


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
