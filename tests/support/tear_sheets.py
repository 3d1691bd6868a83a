"""Scores with and without an order in them, and the tear sheet of their ranking."""

from functools import cache

import numpy as np
import pandas as pd

from dtml.evaluation.ranking import both_known, decile_spreads, rank_ics
from dtml.evaluation.tear_sheet import TearSheet, by_sector, cumulative_ic, running_means
from dtml.markets.definition import FREE, Costs

DAYS, STOCKS = 90, 40
SESSIONS = pd.bdate_range("2024-01-02", periods=DAYS)
FOUR_YEARS = 1000  # sessions
SECTORS = ["Tin", "Oil", None, ""] * (STOCKS // 4)


def made(
    skill: float, seed: int = 0, memory: float = 0.5, days: int = DAYS
) -> tuple[np.ndarray, np.ndarray]:
    """Scores that keep part of the day before, with ties and gaps, and returns that follow them."""
    drawn = np.random.default_rng(seed)
    news = drawn.standard_normal((days, STOCKS))
    scores = news.copy()
    for day in range(1, days):
        scores[day] = memory * scores[day - 1] + np.sqrt(1 - memory**2) * news[day]
    common = drawn.standard_normal((days, 1))
    outcome = 0.01 * (skill * scores + drawn.standard_normal((days, STOCKS)) + common)
    scores[drawn.random(scores.shape) < 0.1] = np.nan
    outcome[drawn.random(scores.shape) < 0.05] = np.nan
    return np.round(scores, 1), outcome


@cache
def sheet(skill: float, costs: Costs | None = FREE, days: int = DAYS) -> TearSheet:
    scores, outcome = (grid[:days] for grid in made(skill, days=max(days, DAYS)))
    sessions = pd.bdate_range(SESSIONS[0], periods=days)
    daily = rank_ics(*both_known(scores, outcome))
    gross = decile_spreads(*both_known(scores, outcome))
    return TearSheet.of(
        predictor="made",
        leg="next_close",
        spread_leg="next_close",
        overlap=1,
        cumulative={"made": cumulative_ic(sessions, daily, running_means(daily))},
        sessions=sessions,
        scores=scores,
        outcome=outcome,
        gross=gross,
        constituents=np.full(days, STOCKS),
        costs=costs,
        legs=pd.DataFrame(
            {
                "leg": ["next_close", "open_to_open"],
                "days": days,
                "rank_ic": [0.02, 0.01],
                "rank_ic_low": [0.01, np.nan],
                "rank_ic_high": [0.03, np.nan],
                "t": [2.1, 0.9],
            }
        ),
        sectors=by_sector(scores, outcome, SECTORS),
    )
