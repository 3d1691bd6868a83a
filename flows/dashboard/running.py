"""The page of what is running: nights, and the queue of texts to translate."""

from datetime import date, datetime
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db.connection.locks import is_held
from db.rows import markets, nights, translation_queue
from dtml.pages.figures import records

STATUSES = ("queued", "taken", "done", "failed")  # of a text
REFRESH_S = (15, 60)  # the choices on the page for reloading it
LONGEST_REFRESH_S = 3600  # that an address may have


def running_page(conn: Connection, now: datetime, every: int) -> dict[str, Any]:
    """Return the page of the nights that are running, each with its stages, and of the queue.

    `every` is the number of seconds after which the page is loaded again; 0 for never.
    """
    running = []
    for name in markets.all_markets(conn):
        night = nights.night(conn, name)
        if night is not None and night["status"] == "running":
            running.append(_running_night(conn, night, now))
    return {
        "now": now,
        "every": every,
        "choices": REFRESH_S,
        "running": running,
        "queue": _queue(conn),
        "statuses": STATUSES,
    }


def _running_night(conn: Connection, night: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Return a night that is running or was interrupted, with its stages.

    Each stage has its `seconds` so far, and those that it took in the night before (`before`; None
    if unknown). The stages that the night has not begun yet are taken from the night before; their
    status is None. `stage` is the stage that is running, None between two. `is_alive` tells whether
    a process still works on the night.
    """
    market = night["market"]
    previous_night, _ = nights.neighbours(conn, market, night["as_of"])
    stages = records(nights.stages(conn, market, night["as_of"]))
    earlier_seconds = _seconds_of_stages(conn, market, previous_night)
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
    return {
        "market": market,
        "as_of": night["as_of"],
        "started_at": night["started_at"],
        "is_alive": is_held(conn, market),
        "stage": running_stages[-1] if running_stages else None,
        "stages": rows,
        "before": previous_night,
    }


def _seconds_of_stages(
    conn: Connection, market: str, as_of: date | None
) -> dict[str, float | None]:
    """Return how long the stages of a night took, in their order; empty without a night."""
    if as_of is None:
        return {}
    stages = records(nights.stages(conn, market, as_of))
    return {stage["stage"]: stage["seconds"] for stage in stages}


def _seconds(stage: dict[str, Any], now: datetime) -> float:
    """Return how long a stage took, or has taken by now."""
    if not pd.isna(stage["seconds"]):
        return float(stage["seconds"])
    elapsed = now - stage["started_at"]
    return max(0.0, float(elapsed.total_seconds()))


def _queue(conn: Connection) -> list[dict[str, Any]]:
    """Return how many texts of each model have each status."""
    counts = translation_queue.queue_counts(conn)
    queue: dict[str, dict[str, Any]] = {}
    for row in records(counts):
        model_counts = queue.setdefault(row["model"], dict.fromkeys(STATUSES, 0))
        model_counts[row["status"]] = row["n"]
    return [{"model": model, **model_counts} for model, model_counts in queue.items()]
