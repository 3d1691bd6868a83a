"""Choose whose ranking a night shows, where a market's file says `ranker = "earned"`.

The first champion is chosen by a walk through the stored history. Another candidate replaces it
when the nights since then have shown that it ranks better, by a test that is valid however often it
is made (`dtml.evaluation.evidence`).
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
from dtml.ranking.outcomes import overlap_of
from dtml.ranking.rankers import RankersConfig, trainings, walk
from dtml.ranking.walk import History, folds
from flows.nightly.context import MarketContext
from flows.progress import rankings_progress, reporting

log = logging.getLogger(__name__)

WALKED_SESSIONS = 252  # the last ones of the history, on which a first champion is chosen


def choose_ranker(
    context: MarketContext,
    as_of: date,
    history: History | None = None,
    *,
    otherwise: str | None = None,
) -> str:
    """Return the ranker whose ranking the night of `as_of` shows.

    It is the one that the market's file names. Where the file says "earned", it is the stored
    champion of the session after `as_of`. If none is stored, or if the file lists that one no
    longer, a champion is chosen on the `history` and stored. Without a `history` nothing is stored,
    and the answer is `otherwise` (the ranker that was chosen when the rankers were trained) or, if
    that is None, the first candidate listed.
    """
    market = context.market
    if market.ranker != EARNED:
        return market.ranker
    target = next_session(market.calendar, as_of)
    with reading(context.engine) as conn:
        champion = stored.champion(conn, context.name, target)
    # The market's file may list the champion no longer.
    if champion is not None and champion["predictor"] in market.candidates:
        return str(champion["predictor"])
    if history is None:
        return otherwise or market.candidates[0]
    first, nights = _first_champion(context, history)
    with transaction(context.engine) as conn:
        _save_champion(conn, context, since=target, predictor=first, replaced=None, nights=nights)
    return first


def _first_champion(context: MarketContext, history: History) -> tuple[str, int]:
    """Return the candidate with the highest mean rank IC in a walk, and its number of rank ICs.

    The walk covers the last WALKED_SESSIONS of the history. Only rankers that train in seconds are
    walked. Where none of them is a candidate, or the history is too short to walk, return the first
    candidate listed, and 0.
    """
    candidates = context.market.candidates
    sessions = history.panel.sessions
    first_walked = sessions[-WALKED_SESSIONS:][0]
    try:
        walked = folds(history, first_walked, sessions[-1])
    except DtmlError:  # too few sessions to train on, or too few stocks to rank
        return candidates[0], 0
    # This config has no networks, which train for minutes.
    config = RankersConfig(context.market.leg)
    total = sum(1 for _ in trainings(history, walked, config))
    with rankings_progress(f"first champion of {context.name}", total) as on_training:
        # Each training runs at once, keeps no file to resume from, and moves the progress bar on.
        train_and_report = reporting(lambda _name, train: train(), on_training)
        scores = walk(history, walked, config, train_and_report)
    # A row a session, a column a ranker. Stock-days count if both values are known.
    daily_rank_ics = pd.DataFrame(
        {name: rank_ics(*both_known(score, history.outcome)) for name, score in scores.items()}
    )
    # `reindex` leaves out rankers that are no candidates, `dropna` candidates that were not walked.
    mean = daily_rank_ics.mean().reindex(list(candidates)).dropna()
    if mean.empty:
        return candidates[0], 0
    best = str(mean.idxmax())
    return best, int(daily_rank_ics[best].count())


def promote(conn: Connection, context: MarketContext, as_of: date) -> Mapping[str, Any] | None:
    """Replace the champion if another candidate has proved better since the champion was chosen.

    The new champion's rankings are shown from the first session on that is not ranked yet. Only
    scores of the sessions up to `as_of` count: a night may be run after later ones. Stores and
    returns the new row of the table `champion`. Returns None where the champion stays, where none
    is stored, and where the market's file names a fixed ranker.
    """
    market = context.market
    row = stored.champion(conn, context.name) if market.ranker == EARNED else None
    if row is None:
        return None
    champion = row["predictor"]
    nights = stored.rank_scores(conn, context.name, span="night", leg=market.leg)
    nights = nights[nights["target"].between(pd.Timestamp(row["since"]), pd.Timestamp(as_of))]
    # A row a session, a column a predictor.
    daily_rank_ics = nights.pivot(index="target", columns="predictor", values="rank_ic")
    daily_rank_ics = daily_rank_ics.astype(float)  # with NaN for a session without a rank IC
    scored_candidates = [name for name in market.candidates if name in daily_rank_ics]
    challengers = [name for name in scored_candidates if name != champion]
    if champion not in daily_rank_ics or not challengers:
        return None
    gathered = []
    for name in challengers:
        gain = (daily_rank_ics[name] - daily_rank_ics[champion]).to_numpy()
        # The more challengers, the more evidence each needs: one of many is ahead by luck.
        overlap = overlap_of(market.leg)
        gathered.append(evidence(name, gain, challengers=len(challengers), overlap=overlap))
    winner = promoted(gathered)
    if winner is None:
        return None
    # The night of `as_of` shows the present champion, whether its ranking is stored yet or not.
    ranked_sessions = [next_session(market.calendar, as_of)]
    last_ranked = stored.last_ranked(conn, context.name)
    if last_ranked is not None:
        ranked_sessions.append(last_ranked)
    return _save_champion(
        conn,
        context,
        since=next_session(market.calendar, max(ranked_sessions)),
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
    """Store and return the row of the champion from the session `since` on.

    `nights` is how many daily rank ICs the choice rests on: nights, or walked sessions for a
    champion chosen by a walk; 0 if it is merely the first listed. `proof` is the evidence for it
    against the champion that it `replaced`; both are None for one that was not chosen against
    another. A champion stored from the same session on stays; the new row is returned all the same.
    """
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
        "%s becomes champion of %s on %s, by the rank ICs of %d sessions",
        predictor,
        context.name,
        since,
        nights,
    )
    return row
