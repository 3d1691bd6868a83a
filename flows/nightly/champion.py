"""Decide who orders the stocks of a market's nights, where its file says that this is to be earned.

A first champion is chosen by a walk through the stored history; another replaces it when the nights since have shown,
by a test that is valid at every look, that it orders better (`dtml.evaluation.drift`).
"""

import logging
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.rows import rankings as stored
from dtml.errors import DtmlError
from dtml.evaluation.drift import Evidence, evidence, promoted
from dtml.evaluation.ranking import both_known, rank_ics
from dtml.markets.definition import EARNED
from dtml.prices.sessions import next_session
from dtml.ranking.rankers import RankersConfig, walk
from dtml.ranking.walk import History, folds
from flows.nightly.context import MarketContext

log = logging.getLogger(__name__)

WALKED = 252  # sessions on which a first champion is chosen


def speaker(
    context: MarketContext, as_of: date, history: History | None = None, *, otherwise: str | None = None
) -> str:
    """Return who orders the stocks of the session after `as_of`; the first champion is chosen on the `history`.

    Without a history, and without a champion, it is `otherwise`, whom the training named.
    """
    market = context.market
    if market.ranker != EARNED:
        return market.ranker
    target = next_session(market.calendar, as_of)
    with reading(context.engine) as conn:
        row = stored.champion(conn, context.name, target)
    if row is not None and row["predictor"] in market.candidates:
        return str(row["predictor"])
    if history is None:
        return otherwise or market.candidates[0]
    first, nights = _first(context, history)
    with transaction(context.engine) as conn:
        _save(conn, context, target, first, None, nights)
    return first


def _first(context: MarketContext, history: History) -> tuple[str, int]:
    """Return the candidate with the best rank IC of a walk, among those that train in seconds, and the days walked."""
    # Where none of them is a candidate, or the history is too short to walk, it is the first one listed.
    candidates, sessions = context.market.candidates, history.panel.sessions
    try:
        walked = folds(history, sessions[-min(WALKED, len(sessions))], sessions[-1])
    except DtmlError:
        return candidates[0], 0
    found = walk(history, walked, RankersConfig(context.market.leg))
    daily = pd.DataFrame({name: rank_ics(*both_known(score, history.outcome)) for name, score in found.items()})
    mean = daily.mean().reindex(list(candidates)).dropna()
    return (str(mean.idxmax()), int(daily[mean.idxmax()].count())) if len(mean) else (candidates[0], 0)


def promote(conn: Connection, context: MarketContext, as_of: date) -> Mapping[str, Any] | None:
    """Replace the champion from the next night on, if the scores of the nights since it began show a better candidate.

    Returns the new row of `champion`, or None.
    """
    market = context.market
    champion = stored.champion(conn, context.name) if market.ranker == EARNED else None
    if champion is None:
        return None
    nights = stored.rank_scores(conn, context.name, span="night", leg=market.leg)
    nights = nights[nights["target"] >= pd.Timestamp(champion["since"])]
    daily = nights.pivot(index="target", columns="predictor", values="rank_ic").astype(float)
    others = [name for name in market.candidates if name != champion["predictor"] and name in daily]
    if champion["predictor"] not in daily or not others:
        return None
    gains = {name: (daily[name] - daily[champion["predictor"]]).to_numpy() for name in others}
    found = promoted([evidence(name, gain, challengers=len(others)) for name, gain in gains.items()])
    if found is None:
        return None
    since = next_session(market.calendar, next_session(market.calendar, as_of))  # the night in between has been ordered
    return _save(conn, context, since, found.challenger, champion["predictor"], found.nights, found)


def _save(
    conn: Connection,
    context: MarketContext,
    since: date,
    predictor: str,
    replaced: str | None,
    nights: int,
    found: Evidence | None = None,
) -> dict[str, Any]:
    row = {"market": context.name, "since": since, "predictor": predictor, "replaced": replaced, "nights": nights}
    row |= {name: None if found is None else getattr(found, name) for name in ("gain", "stake", "needed")}
    row |= {"decided_at": datetime.now(UTC)}
    stored.save_champion(conn, row)
    log.info("%s orders the stocks of %s from %s on, after %d nights", predictor, context.name, since, nights)
    return row
