"""Decide who orders the stocks of a market's nights, where its file says that this is to be earned.

A first champion is chosen by a walk through the stored history; another replaces it when the nights since have shown,
by a test that is valid at every look, that it orders better (`dtml.evaluation.champion`).
"""

import logging
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db.engine import reading, transaction
from db.rows import rankings as stored
from dtml.errors import DtmlError
from dtml.evaluation.champion import evidence, promoted
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
    first, ics = _first(context, history)
    with transaction(context.engine) as conn:
        said = {"market": context.name, "since": target, "predictor": first, "replaced": row and row["predictor"]}
        stored.save_champion(conn, said | {"nights": len(ics), "gain": None, "stake": None, "needed": None} | _now())
    log.info("%s speaks for %s: best of a walk of %d sessions", first, context.name, len(ics))
    return first


def _first(context: MarketContext, history: History) -> tuple[str, np.ndarray]:
    """Return the candidate with the best rank IC of a walk, among those that train in seconds, and its daily rank ICs.

    Where none of them is a candidate, or the history is too short to walk, it is the first one listed.
    """
    sessions = history.panel.sessions
    try:
        walked = folds(history, sessions[-min(WALKED, len(sessions))], sessions[-1])
    except DtmlError:
        return context.market.candidates[0], np.empty(0)
    found = walk(history, walked, RankersConfig(context.market.leg))
    ics = {
        name: (daily := rank_ics(*both_known(score, history.outcome)))[np.isfinite(daily)]
        for name, score in found.items()
        if name in context.market.candidates
    }
    best = max(ics, key=lambda name: ics[name].mean(), default=context.market.candidates[0])
    return best, ics.get(best, np.empty(0))


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
    row = {"market": context.name, "since": since, "predictor": found.challenger, "replaced": champion["predictor"]}
    row |= {"nights": found.nights, "gain": found.gain, "stake": found.stake, "needed": found.needed} | _now()
    stored.save_champion(conn, row)
    log.info("from %s on %s speaks for %s in place of %s", since, found.challenger, context.name, champion["predictor"])
    return row


def _now() -> dict[str, datetime]:
    return {"decided_at": datetime.now(UTC)}
