"""A store with a market whose nights rank its stocks: rankings, outcomes and scores, made up, with
an order in them.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
from sqlalchemy import Engine

from db.engine import transaction
from db.save import save
from dtml.evaluation.ranking import score_ranking
from flows.nightly.ranking import _running_scores
from tests.support.dashboard_store import moment, save_outcomes, save_rankings, store_ended_night

MARKET, LEG = "ranked", "next_close"
STOCKS = tuple(f"R{number:02d}" for number in range(24))
SECTORS = ("Tin", "Oil & <Gas>")
RULE = "day_losers"
TRADED = "open_to_open"


def fill_ranked_nights(engine: Engine, count: int = 25, market: str = MARKET) -> None:
    """Store so many nights; the last one has no outcome yet, and the second lacks a stock.

    A mean over 20 nights or more has an interval.
    """
    days = pd.bdate_range("2024-01-02", periods=count + 1)
    drawn = np.random.default_rng(7)
    noise = drawn.standard_normal((count, len(STOCKS)))
    scores = {
        name: pd.DataFrame(0.7 * noise + drawn.standard_normal(noise.shape), days[1:], STOCKS)
        for name in ("blend", "ridge", RULE)
    }
    scores["blend"].iloc[1:2, 0] = np.nan
    returns = pd.DataFrame(0.01 * (noise + drawn.standard_normal((count, 1))), days[1:], STOCKS)
    stocks = pd.DataFrame({"symbol": STOCKS, "source_symbol": STOCKS, "kind": "stock"})
    stocks = stocks.assign(name=stocks["symbol"] + " & Sons", sector=SECTORS * 12)
    with transaction(engine) as conn:
        save(conn, "instrument", stocks, market=market)
        save_rankings(conn, market, days, {name: scores[name] for name in ("blend", "ridge")})
        for number, (as_of, target) in enumerate(pairwise(days)):
            store_ended_night(conn, market, as_of, target, STOCKS, STOCKS[int(number == 1) :])
        if count == 1:
            return  # no night has an outcome
        known, now = returns[:-1], moment(days[-1])
        save_outcomes(conn, market, known)
        nights = pd.DataFrame(
            {"target": target, "leg": leg, "predictor": name, "is_rule": name == RULE}
            | score_ranking(score.loc[[target]].to_numpy(), share * known.loc[[target]].to_numpy())
            for target in known.index
            for leg, share in ((LEG, 1.0), (TRADED, 0.8))
            for name, score in scores.items()
        ).assign(span="night")
        save(conn, "rank_score", nights, market=market, scored_at=now)
        of_leg = nights[nights["leg"] == LEG].sort_values(["predictor", "target"])
        running = pd.DataFrame(list(_running_scores(of_leg, days[0], 1))).assign(leg=LEG)
        save(conn, "rank_score", running, market=market, scored_at=now)
