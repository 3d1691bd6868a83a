"""What monitoring reads of a store: whether a night is late, and figures for Prometheus.

Whether a night is late needs the definition of its market. For a market of the package all else is
in documented views, so that a role of `dtml db grant-reader` suffices. That role cannot read the
file of a user's own market, so with it, such a market is never reported as late.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Connection, Engine

from db import where
from db.engine import reading
from db.read import read, read_row
from db.rows import markets, translations
from db.rows import scores as stored_scores
from db.rows.rankings import last_rank_scores
from dtml.pages.charts import script
from dtml.pages.figures import records
from flows.dashboard.markets import NotThereError, markets_page
from flows.markets.files import market_of_store
from flows.service.timeliness import Timeliness, timeliness

log = logging.getLogger(__name__)

FIGURES = ("acc", "mcc")
VERSION = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus's text


def health_report(engine: Engine, names: Sequence[str], now: datetime) -> dict[str, Any]:
    """Return whether the nights of these markets, of all by default, are in time.

    Keys: `status` ("ok" or "late"), `reasons` (a line for each late market) and `markets`. Each of
    these has a name, its last night, how that ended, and `late_seconds`: the seconds since the
    first night that is not complete was due, 0 if none is due or the calendar knows no further
    session, None where the market's definition or the time of that night is not known. Raises
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
    """Return how late the nights of these markets are, of all by default, by market.

    Markets without a night are left out.
    """
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
    """Build the charts' script, load the calendars of a store's markets, and read the first page.

    All of these are kept for later pages, in memory or by the store. An error is logged, and left
    to the first page, which says what is wrong.
    """
    script()
    try:
        now = datetime.now(UTC)
        times = times_of(engine, now)
        with reading(engine) as conn:
            markets_page(conn, now, 0, times)
    except Exception as error:  # noqa: BLE001 - other pages may be well, so they are served
        log.warning("the first page could not be read before the start: %s", error)


def metrics(engine: Engine, now: datetime) -> bytes:
    """Return the figures of a store in Prometheus's text format, version 0.0.4."""
    times = times_of(engine, now)
    names = list(times)
    with reading(engine) as conn:
        families = [
            _late_seconds(times.values()),
            *_nights(conn),
            *_stage_seconds(conn, names),
            *_scores(conn, names),
            _translations(conn),
        ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    """Hand families of samples, which were read before, to a registry that asks for them."""

    def __init__(self, families: Iterable[GaugeMetricFamily]) -> None:
        self.families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the families."""
        return self.families


def _late_seconds(times: Iterable[Timeliness]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "dtml_night_late_seconds",
        "Seconds since the first night that is not complete was due; 0 if every due night is "
        "complete. Above 7200 s, dtml status --check reports the market as late.",
        labels=["market"],
    )
    for each in times:
        if each.late_seconds is not None:
            family.add_metric([each.market], each.late_seconds)
    return family


def _nights(conn: Connection) -> Iterator[GaugeMetricFamily]:
    family = GaugeMetricFamily(
        "dtml_nights",
        "Nights in the store, by how they ended.",
        labels=["market", "status"],
    )
    nights = read(conn, "night_log", columns="market, status")
    for row in records(nights.groupby(["market", "status"]).size().reset_index(name="n")):
        family.add_metric([row["market"], row["status"]], row["n"])
    yield family


def _stage_seconds(conn: Connection, names: Iterable[str]) -> Iterator[GaugeMetricFamily]:
    """Yield the moment at which each market's last night ended, and how long its stages took.

    A night that is still running does not count. A stage whose seconds are not stored is left out.
    """
    seconds = GaugeMetricFamily(
        "dtml_night_stage_seconds",
        "Seconds that each stage of the last night that has ended took.",
        labels=["market", "stage"],
    )
    finished = GaugeMetricFamily(
        "dtml_night_finished_timestamp_seconds",
        "When the last night that has ended ended, in seconds since 1970.",
        labels=["market"],
    )
    for name in names:
        night = read_row(conn, "night_log", market=name, finished_at=where.stored, order="-as_of")
        if night is None:
            continue
        finished.add_metric([name], night["finished_at"].timestamp())
        for stage in records(
            read(conn, "stage_log", market=name, as_of=night["as_of"], order="started_at, stage")
        ):
            if not pd.isna(stage["seconds"]):
                seconds.add_metric([name, stage["stage"]], stage["seconds"])
    yield seconds
    yield finished


def _scores(conn: Connection, names: Iterable[str]) -> Iterator[GaugeMetricFamily]:
    """Yield the newest running scores of each market, and how many nights they count.

    They are the scores of directions (FIGURES) and of rankings (rank_ic).
    """
    scores = GaugeMetricFamily(
        "dtml_score",
        "Newest running score of each predictor and rule: acc, mcc or rank_ic.",
        labels=["market", "predictor", "figure"],
    )
    scored_nights = GaugeMetricFamily(
        "dtml_scored_nights",
        "Nights that the newest running score is of.",
        labels=["market", "figure"],
    )
    for name in names:
        direction_scores = stored_scores.last_running_scores(conn, name)
        for figure in FIGURES:
            _add_scores(scores, name, direction_scores, f"running_{figure}", figure)
            _add_nights(scored_nights, name, direction_scores, "running_nights", figure)
        rank_scores = last_rank_scores(conn, name)
        _add_scores(scores, name, rank_scores, "rank_ic", "rank_ic")
        _add_nights(scored_nights, name, rank_scores, "days", "rank_ic")
    yield scores
    yield scored_nights


def _add_scores(
    family: GaugeMetricFamily, market: str, rows: pd.DataFrame, column: str, figure: str
) -> None:
    """Add a sample for each predictor: its score in a column of `rows`, if it has one there."""
    for row in records(rows):
        if not pd.isna(row[column]):
            family.add_metric([market, row["predictor"], figure], row[column])


def _add_nights(
    family: GaugeMetricFamily, market: str, rows: pd.DataFrame, column: str, figure: str
) -> None:
    """Add one sample: the most nights that a predictor was scored on, from a column of `rows`."""
    most_nights = rows[column].max() if len(rows) else None
    if most_nights is not None and not pd.isna(most_nights):
        family.add_metric([market, figure], int(most_nights))


def _translations(conn: Connection) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "dtml_translation_texts",
        "Texts to translate, by the status that they have in the queue.",
        labels=["model", "status"],
    )
    for row in records(translations.queue_counts(conn)):
        family.add_metric([row["model"], row["status"]], row["n"])
    return family
