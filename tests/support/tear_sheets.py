"""Scores with and without an order in them, and the tear sheet of their ranking."""

import numpy as np
import pandas as pd

from dtml.evaluation.ranking import both_known, decile_spreads, rank_ics
from dtml.evaluation.tear_sheet import (
    TearSheet,
    by_horizon,
    by_sector,
    coverage,
    cumulative_ic,
    group_returns,
    halves_ic,
    monthly_ic,
    net_spread,
    running_means,
)
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


def sheet(skill: float, costs: Costs | None = FREE, days: int = DAYS) -> TearSheet:
    scores, outcome = (grid[:days] for grid in made(skill, days=max(days, DAYS)))
    sessions = pd.bdate_range(SESSIONS[0], periods=days)
    daily = rank_ics(*both_known(scores, outcome))
    cumulative = cumulative_ic(sessions, daily, running_means(daily)).assign(predictor="made")
    gross = decile_spreads(*both_known(scores, outcome))
    return TearSheet(
        predictor="made",
        rule=None,
        leg="next_close",
        spread_leg="next_close",
        cumulative=cumulative,
        months=monthly_ic(cumulative),
        halves=halves_ic(cumulative),
        groups=group_returns(scores, outcome),
        spread=net_spread(scores, gross, sessions, costs),
        horizons=by_horizon(scores),
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
        coverage=coverage(sessions, np.full(days, STOCKS), scores, outcome),
    )
