"""What monitoring reads of a store: whether a night is late, and figures for Prometheus.

A role of `dtml db grant-reader` suffices, but never sees a user's own market as late: it cannot
read its file.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import Engine

from db import where
from db.engine import reading
from db.read import read
from db.rows import markets
from dtml.pages.charts import script
from dtml.pages.figures import Page
from flows.dashboard.markets import NotThereError, markets_page
from flows.markets.files import market_of_store
from flows.service.timeliness import Timeliness, timeliness

log = logging.getLogger(__name__)

VERSION = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus's text
LATE = "dtml_night_late_seconds"
FINISHED = "dtml_night_finished_timestamp_seconds"
METRICS: Mapping[str, str] = {
    LATE: "Seconds since the first night that is not complete was due; 0 if every due night is "
    "complete. Above 7200 s, dtml status --check reports the market as late.",
    "dtml_nights": "Nights in the store, by how they ended.",
    "dtml_night_stage_seconds": "Seconds that each stage of the last night that has ended took.",
    FINISHED: "When the last night that has ended ended, in seconds since 1970.",
    "dtml_score": "Newest running score of each predictor and rule: acc, mcc or rank_ic.",
    "dtml_scored_nights": "Nights that the newest running score is of.",
    "dtml_translation_texts": "Texts to translate, by the status that they have in the queue.",
}


def health_report(engine: Engine, now: datetime, names: Sequence[str]) -> Page:
    """Return whether the nights of these markets, or all, are in time.

    `late_seconds` since the first incomplete night was due, 0 if none is, None if unknown. Raises
    NotThereError for a market without a night, StoreError when the store does not answer.
    """
    found = times_of(engine, now, names)
    for name in names:
        if name not in found:
            raise NotThereError(
                f"no night of market {name!r} in the store: check the name, or run "
                f"`dtml nightly {name}` first"
            )
    reasons = [f"{each.market}: {each.late_message}" for each in found.values() if each.is_late]
    return {
        "status": "late" if reasons else "ok",
        "reasons": reasons,
        "markets": [
            {
                "market": each.market,
                "night": str(each.as_of),
                "outcome": each.outcome,
                "late_seconds": each.late_seconds,
            }
            for each in found.values()
        ],
    }


def times_of(engine: Engine, now: datetime, names: Sequence[str] = ()) -> dict[str, Timeliness]:
    """Return how late the nights of these markets, or all, are, by market with a night."""
    with reading(engine) as conn:
        stored = markets.all_markets(conn)
    # These come before the reading below, because `market_of_store` opens its own connection.
    definitions = {
        name: market_of_store(engine, name) for name in stored if not names or name in names
    }
    with reading(engine) as conn:
        found = [timeliness(conn, name, market, now) for name, market in definitions.items()]
    return {each.market: each for each in found if each.as_of is not None}


def warm_up(engine: Engine) -> None:
    """Build the charts' script, load the calendars, and read the first page; an error is logged."""
    script()
    try:
        now = datetime.now(UTC)
        times = times_of(engine, now)
        with reading(engine) as conn:
            markets_page(conn, 0, now, times)
    except Exception as error:  # noqa: BLE001 - other pages may be well, so they are served
        log.warning("the first page could not be read before the start: %s", error)


def metrics(engine: Engine, now: datetime) -> str:
    """Return the figures of the view metric, and two a market, for Prometheus (0.0.4)."""
    times = times_of(engine, now)
    with reading(engine) as conn:
        stored = read(conn, "metric", order="name, labels")
        ended = read(
            conn,
            "night_log",
            columns="market, finished_at",
            finished_at=where.stored,
            order="market, as_of",
        )
    rows = [(LATE, _market(name), each.late_seconds) for name, each in times.items()]
    for name, moment in ended.groupby("market")["finished_at"].last().items():
        rows.append((FINISHED, _market(name), moment.timestamp()))
    rows += stored.itertuples(index=False)
    lines = []
    for name, words in METRICS.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge"]
        lines += [
            f"{name}{{{labels}}} {value}"
            for of, labels, value in rows
            if of == name and value is not None
        ]
    return "\n".join([*lines, ""])


def _market(name: object) -> str:
    escaped = str(name).replace("\\", r"\\").replace('"', r"\"")
    return f'market="{escaped}"'
