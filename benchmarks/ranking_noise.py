"""Count how often the 95 % interval of rank IC holds 0 on simulated markets without any signal.

It should in 95 of 100. `python -m benchmarks.ranking_noise [--markets 50]`. Returns of a market
have a common part, fat tails and volatility that clusters; nothing in them predicts the order of a
day. Every ranker and rule is walked over each market, and scored over every leg of up to a week.
"""

import argparse
from collections import Counter

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.ranking import score_ranking
from dtml.ranking.features import RULES, rule_scores
from dtml.ranking.models import BoostingConfig
from dtml.ranking.outcomes import LEGS, outcomes, overlap_of, sessions_to
from dtml.ranking.panel import Panel
from dtml.ranking.rankers import RankersConfig, walk
from dtml.ranking.walk import History, folds

STOCKS = 40
# Sessions before those that are scored, of those, and after them, which the legs measured need.
BEFORE = 320
SCORED = 252
AFTER = 10
MEASURED = tuple(leg for leg in LEGS if sessions_to(leg) <= AFTER)
DAILY = 0.015  # volatility of a stock
PERSISTENCE = 0.95  # share of the volatility's logarithm that the next session keeps
SMALL = RankersConfig(boosting=BoostingConfig(trees=40))


def noise(seed: int) -> Panel:
    """Return a market of random bars: nothing in them predicts the order of a day."""
    rng = np.random.default_rng(seed)
    days = BEFORE + SCORED + AFTER
    shape = (days, STOCKS)
    steps = rng.normal(0, 0.15, days)
    logarithm = np.zeros(days)
    for day in range(1, days):
        logarithm[day] = PERSISTENCE * logarithm[day - 1] + steps[day]
    scale = DAILY * np.exp(logarithm)[:, None] * rng.uniform(0.5, 2, STOCKS)
    overnight = scale * 0.4 * _fat_tailed(rng, shape) / 2
    session = scale * 0.9 * _fat_tailed(rng, shape) / 2
    close = 100 * np.exp(np.cumsum(overnight + session, axis=0))
    opened = close * np.exp(-session)
    high = np.maximum(opened, close) * np.exp(scale * rng.random(shape) / 2)
    low = np.minimum(opened, close) * np.exp(-scale * rng.random(shape) / 2)
    volume = np.exp(rng.normal(13, 0.5, shape) + np.abs(session) / DAILY)
    names = tuple(f"N{number:02d}" for number in range(STOCKS))
    sessions = pd.bdate_range("2020-01-01", periods=days)
    return Panel(sessions, names, opened, high, low, close, volume, close * volume)


def _fat_tailed(rng: np.random.Generator, shape: tuple[int, int]) -> Float[ndarray, "days stocks"]:
    """Return random moves of stocks, with a part that all stocks of a day have in common."""
    own = rng.standard_t(4, shape)
    common = rng.standard_t(4, (shape[0], 1))
    return own + common


def intervals_that_hold_0(seed: int) -> dict[tuple[str, str], bool]:
    """Return, by predictor and leg, whether the interval holds 0 on one market."""
    history = History.of(noise(seed), "next_close")
    sessions = history.panel.sessions
    walked = folds(history, sessions[BEFORE], sessions[BEFORE + SCORED - 1])
    scores = walk(history, walked, SMALL)
    scores |= {name: rule_scores(history.features, name) for name in RULES}
    days = slice(BEFORE, BEFORE + SCORED)
    holds_0 = {}
    for leg in MEASURED:
        outcome = outcomes(history.panel, leg)[days]
        for name, score in scores.items():
            found = score_ranking(score[days], outcome, overlap=overlap_of(leg))
            holds_0[name, leg] = found["rank_ic_low"] <= 0 <= found["rank_ic_high"]
    return holds_0


def main() -> None:
    """Print the count, by predictor and by leg."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markets", type=int, default=50)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for seed in range(options.markets):
        for (name, leg), holds in intervals_that_hold_0(seed).items():
            kind_of_leg = "next_close" if leg == "next_close" else "other legs"
            for key in ("all", kind_of_leg, name, f"leg {leg}"):
                counts[key] += holds
                totals[key] += 1
    for key, total in totals.items():
        print(f"{key}: {counts[key]} of {total} intervals hold 0, {counts[key] / total:.1%}")


if __name__ == "__main__":
    main()
