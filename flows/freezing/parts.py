"""Read what the links of a frozen chain cover, in bulk, and take the SHA-256 of each part."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db.rows import markets, nights, predictions, prices, rankings, runs
from db.rows.predictions import VALUES
from flows.freezing.canonical import Table, sha256_of, sha256_of_bars, table_of

PREDICTED = ("symbol", *VALUES)
RANKED = ("predictor", "symbol", "score", "place", "probability", "chosen")
STAYS = ("symbol", "spell", "valid_from", "valid_to")
# What a link has a SHA-256 of, and what a change of it is called.
PARTS = {
    "predictions": "a prediction",
    "rankings": "a ranking",
    "prices": "a price",
    "list": "the list of stocks",
}


@dataclass(frozen=True)
class NightOfLink:
    """Name what a link covers: a night, its models, and the bars that became known since.

    The bars are the versions that became known after `known_after` (None: ever) up to
    `known_until`. `ranker_id` is None for a night that ranked no stocks.
    """

    number: int
    as_of: date
    run_id: str
    ranker_id: str | None
    known_after: datetime | None
    known_until: datetime


@dataclass(frozen=True)
class Parts:
    """Hold what the store has of a link: its tables, and the SHA-256 of each of `PARTS`."""

    predictions: Table
    rankings: Table
    digests: dict[str, str]


def read_parts(conn: Connection, market: str, of_links: Sequence[NightOfLink]) -> dict[int, Parts]:
    """Return the parts of links, by their numbers.

    Predictions, rankings and bars are read at once for all links. There must be at least one link.
    Raises StoreUsageError where the store lacks the run of one.
    """
    first = min(link.as_of for link in of_links)
    last = max(link.as_of for link in of_links)
    predicted = _by_night(predictions.night_predictions(conn, market, first, last), "run_id")
    ranked = _by_night(rankings.ranks_of_nights(conn, market, first, last), "ranker_id")
    bounds = [link.known_after for link in of_links]
    # None in a link is no bound, so then all links together have none either.
    after = None if None in bounds else min(bound for bound in bounds if bound is not None)
    until = max(link.known_until for link in of_links)
    versions = _ByMoment(prices.versions_known(conn, market, after, until))
    withdrawals = _ByMoment(prices.withdrawals_known(conn, market, after, until))
    price_digests = {
        link.number: sha256_of_bars(versions.of_link(link), withdrawals.of_link(link))
        for link in of_links
    }
    rows = {row["as_of"]: row for row in nights.complete_nights(conn, market)}
    universes: dict[str, Any] = {}
    list_digests = {}
    for link in of_links:
        if link.run_id not in universes:
            universes[link.run_id] = runs.run(conn, link.run_id)["universe"]
        gaps = rows[link.as_of]["gaps"] if link.as_of in rows else None
        list_digests[link.number] = sha256_of(
            {"left_out": gaps, "universe": universes[link.run_id]}
        )
    parts = {}
    for link in of_links:
        prediction_table = _table_of_night(predicted, (link.as_of, link.run_id), PREDICTED)
        ranking_table = _table_of_night(ranked, (link.as_of, link.ranker_id), RANKED)
        parts[link.number] = Parts(
            predictions=prediction_table,
            rankings=ranking_table,
            digests={
                "predictions": sha256_of(prediction_table),
                "rankings": sha256_of(ranking_table),
                "prices": price_digests[link.number],
                "list": list_digests[link.number],
            },
        )
    return parts


def constituents_digest(conn: Connection, market: str) -> str:
    """Return the SHA-256 of the stored list of a market's constituents: symbols and dates."""
    stays = markets.constituents(conn, market)
    for name in ("valid_from", "valid_to"):
        stays[name] = stays[name].dt.strftime("%Y-%m-%d")
    return sha256_of(table_of(stays, STAYS))


def _by_night(rows: pd.DataFrame, model_column: str) -> dict[tuple[date, str], pd.DataFrame]:
    """Return the rows of each night and model, by the night's `as_of` and the model's name.

    `model_column` is the column of these names. The nights in the keys are dates, as those of links
    are; those in the rows are timestamps.
    """
    return {
        (date.fromisoformat(str(as_of)[:10]), str(name)): of_night
        for (as_of, name), of_night in rows.groupby(["as_of", model_column])
    }


def _table_of_night(
    by_night: dict[tuple[date, str], pd.DataFrame],
    key: tuple[date, str | None],
    columns: Sequence[str],
) -> Table:
    """Return the rows of a night and model as plain values; no rows where there are none."""
    as_of, model = key
    if model is None or (as_of, model) not in by_night:
        return {"columns": list(columns), "rows": []}
    return table_of(by_night[as_of, model], columns)


class _ByMoment:
    """Find the rows that became known in the span of a link.

    `order` has the places of the rows by moment, and `moments` the moments in that order, in
    nanoseconds.
    """

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows
        moments = pd.DatetimeIndex(rows["known_at"]).as_unit("ns").asi8
        self.order = np.argsort(moments, kind="stable")
        self.moments = moments[self.order]

    def of_link(self, link: NightOfLink) -> pd.DataFrame:
        """Return the rows that became known in the span of a link, in the order of all rows."""
        start = 0
        if link.known_after is not None:
            start = self._count_up_to(link.known_after)
        places = np.sort(self.order[start : self._count_up_to(link.known_until)])
        return self.rows.take(places)

    def _count_up_to(self, moment: datetime) -> int:
        """Return the number of rows that were known at a moment."""
        nanoseconds = pd.Timestamp(moment).as_unit("ns").value
        return int(np.searchsorted(self.moments, nanoseconds, side="right"))
