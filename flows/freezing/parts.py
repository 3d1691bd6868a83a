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

    Each kind of row is read by one statement for all links. There is at least one link.
    """
    first = min(link.as_of for link in of_links)
    last = max(link.as_of for link in of_links)
    predicted = _by_night(predictions.night_predictions(conn, market, first, last), "run_id")
    ranked = _by_night(rankings.ranks_of_nights(conn, market, first, last), "ranker_id")
    price_digests = _price_digests(conn, market, of_links)
    list_digests = _list_digests(conn, market, of_links)
    parts = {}
    for link in of_links:
        prediction_table = _table(predicted, (link.as_of, link.run_id), PREDICTED)
        ranking_table = _table(ranked, (link.as_of, link.ranker_id), RANKED)
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


def _by_night(rows: pd.DataFrame, model: str) -> dict[tuple[date, str], pd.DataFrame]:
    """Return the rows of each night and model; `model` is the column that names the model."""
    return {
        (pd.Timestamp(as_of).date(), str(name)): of_night
        for (as_of, name), of_night in rows.groupby(["as_of", model])
    }


def _table(
    by_night: dict[tuple[date, str], pd.DataFrame],
    key: tuple[date, str | None],
    columns: Sequence[str],
) -> Table:
    """Return the rows of a night and model as plain values; no rows where there are none."""
    as_of, model = key
    if model is None or (as_of, model) not in by_night:
        return {"columns": list(columns), "rows": []}
    return table_of(by_night[as_of, model], columns)


def _list_digests(conn: Connection, market: str, of_links: Sequence[NightOfLink]) -> dict[int, str]:
    """Return the SHA-256 of each link's list: the stocks left out, and the model's universe.

    The stocks that the night predicted are in its predictions.
    """
    rows = {row["as_of"]: row for row in nights.complete_nights(conn, market)}
    universes: dict[str, Any] = {}
    digests = {}
    for link in of_links:
        if link.run_id not in universes:
            universes[link.run_id] = runs.run(conn, link.run_id)["universe"]
        gaps = rows[link.as_of]["gaps"] if link.as_of in rows else None
        digests[link.number] = sha256_of({"left_out": gaps, "universe": universes[link.run_id]})
    return digests


def _price_digests(
    conn: Connection, market: str, of_links: Sequence[NightOfLink]
) -> dict[int, str]:
    """Return the SHA-256 of the bars of each link; the links are in the order of the chain."""
    after = of_links[0].known_after
    until = max(link.known_until for link in of_links)
    versions = prices.versions_known(conn, market, after, until)
    withdrawals = prices.withdrawals_known(conn, market, after, until)
    bounds = pd.DatetimeIndex([link.known_until for link in of_links]).as_unit("ns")
    versions_of = _split(versions, bounds)
    withdrawals_of = _split(withdrawals, bounds)
    digests = {}
    for place, link in enumerate(of_links):
        digests[link.number] = sha256_of_bars(versions_of[place], withdrawals_of[place])
    return digests


def _split(rows: pd.DataFrame, bounds: pd.DatetimeIndex) -> list[pd.DataFrame]:
    """Return the rows that became known up to each bound and after the one before.

    `bounds` never fall. The rows of a part keep their order.
    """
    place = np.searchsorted(bounds.asi8, rows["known_at"].astype("int64").to_numpy())
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(bounds) + 1))
    ordered = rows.take(order)
    return [ordered.iloc[start:end] for start, end in zip(starts[:-1], starts[1:], strict=True)]
