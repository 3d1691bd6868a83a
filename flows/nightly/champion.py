"""Choose whose ranking a night shows, where a market's file says `ranker = "earned"`.

A first champion is chosen by a walk through the stored history; another replaces it when the nights
since have shown, by a test that is valid at every look, that it ranks better
(`dtml.evaluation.evidence`).
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
from dtml.evaluation.evidence import Evidence, evidence, promoted
from dtml.evaluation.ranking import both_known, rank_ics
from dtml.markets.definition import EARNED
from dtml.prices.sessions import next_session
from dtml.ranking.rankers import RankersConfig, walk
from dtml.ranking.walk import History, folds
from flows.nightly.context import MarketContext

log = logging.getLogger(__name__)

WALKED = 252  # sessions on which a first champion is chosen


def choose_ranker(
    context: MarketContext,
    as_of: date,
    history: History | None = None,
    *,
    otherwise: str | None = None,
) -> str:
    """Return the ranker whose ranking the night of `as_of` shows.

    The first champion is chosen on the `history`. Without a history, and without a champion, it is
    `otherwise`, whom the training named.
    """
    market = context.market
    if market.ranker != EARNED:
        return market.ranker
    target = next_session(market.calendar, as_of)
    with reading(context.engine) as conn:
        champion = stored.champion(conn, context.name, target)
    if champion is not None and champion["predictor"] in market.candidates:
        return str(champion["predictor"])
    if history is None:
        return otherwise or market.candidates[0]
    first, nights = _first_champion(context, history)
    with transaction(context.engine) as conn:
        _save_champion(conn, context, since=target, predictor=first, replaced=None, nights=nights)
    return first


def _first_champion(context: MarketContext, history: History) -> tuple[str, int]:
    """Return the candidate with the best rank IC of a walk, and the days walked.

    It is among those that train in seconds. Where none of them is a candidate, or the history is
    too short to walk, it is the first one listed.
    """
    candidates = context.market.candidates
    sessions = history.panel.sessions
    try:
        walked = folds(history, sessions[-min(WALKED, len(sessions))], sessions[-1])
    except DtmlError:
        return candidates[0], 0
    scores = walk(history, walked, RankersConfig(context.market.leg))
    daily = pd.DataFrame(
        {name: rank_ics(*both_known(score, history.outcome)) for name, score in scores.items()}
    )
    mean = daily.mean().reindex(list(candidates)).dropna()
    if mean.empty:
        return candidates[0], 0
    best = str(mean.idxmax())
    return best, int(daily[best].count())


def promote(conn: Connection, context: MarketContext, as_of: date) -> Mapping[str, Any] | None:
    """Replace the champion from the next night on, if a candidate proved better since it began.

    Only scores of the sessions up to `as_of` count: a night may be run after later ones. The next
    night is the first that is not ranked yet. Returns the new row of `champion`, or None.
    """
    market = context.market
    row = stored.champion(conn, context.name) if market.ranker == EARNED else None
    if row is None:
        return None
    champion = row["predictor"]
    nights = stored.rank_scores(conn, context.name, span="night", leg=market.leg)
    nights = nights[nights["target"].between(pd.Timestamp(row["since"]), pd.Timestamp(as_of))]
    daily = nights.pivot(index="target", columns="predictor", values="rank_ic").astype(float)
    challengers = [name for name in market.candidates if name != champion and name in daily]
    if champion not in daily or not challengers:
        return None
    gathered = []
    for name in challengers:
        gain = (daily[name] - daily[champion]).to_numpy()
        gathered.append(evidence(name, gain, challengers=len(challengers)))
    winner = promoted(gathered)
    if winner is None:
        return None
    # By the champion, whether that night is stored yet or not.
    ranked = [next_session(market.calendar, as_of)]
    last_ranked = stored.last_ranked(conn, context.name)
    if last_ranked is not None:
        ranked.append(last_ranked)
    return _save_champion(
        conn,
        context,
        since=next_session(market.calendar, max(ranked)),
        predictor=winner.challenger,
        replaced=champion,
        nights=winner.nights,
        proof=winner,
    )


def _save_champion(
    conn: Connection,
    context: MarketContext,
    *,
    since: date,
    predictor: str,
    replaced: str | None,
    nights: int,
    proof: Evidence | None = None,
) -> dict[str, Any]:
    """Store the champion from a session on, with the proof where one was needed."""
    row = {
        "market": context.name,
        "since": since,
        "predictor": predictor,
        "replaced": replaced,
        "nights": nights,
        "gain": None if proof is None else proof.gain,
        "stake": None if proof is None else proof.stake,
        "needed": None if proof is None else proof.needed,
        "decided_at": datetime.now(UTC),
    }
    stored.save_champion(conn, row)
    log.info(
        "%s becomes champion of %s on %s, after %d nights",
        predictor,
        context.name,
        since,
        nights,
    )
    return row
