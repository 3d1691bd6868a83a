"""Count how often the 95 % interval of rank IC holds 0 on simulated markets without any signal: it
should in 95 of 100.

`python -m benchmarks.ranking_noise [--markets 50]`. Returns of a market have a common part, fat
tails and volatility that clusters; nothing in them foretells the order of a day. Every ranker and
rule is walked over each, and scored over every leg.
"""

import argparse
from collections import Counter

import numpy as np
import pandas as pd

from dtml.evaluation.ranking import score_ranking
from dtml.ranking.models import BoostingConfig
from dtml.ranking.outcomes import LEGS, outcomes, sessions_to
from dtml.ranking.panel import Panel
from dtml.ranking.rankers import RankersConfig, walk
from dtml.ranking.rules import RULES, rule_scores
from dtml.ranking.walk import History, folds

STOCKS, BEFORE, SCORED, AFTER = 40, 320, 252, 10  # AFTER: sessions that the longest leg needs
# volatility of a stock, and how much of its logarithm the next session keeps
DAILY, PERSISTENCE = (
    0.015,
    0.95,
)
SMALL = RankersConfig(boosting=BoostingConfig(trees=40))


def noise(seed: int) -> Panel:
    """Return a market of bars whose order of a day nothing foretells."""
    draw, days = np.random.default_rng(seed), BEFORE + SCORED + AFTER
    shape, steps = (days, STOCKS), draw.normal(0, 0.15, days)
    logarithm = np.zeros(days)
    for day in range(1, days):
        logarithm[day] = PERSISTENCE * logarithm[day - 1] + steps[day]
    scale = DAILY * np.exp(logarithm)[:, None] * draw.uniform(0.5, 2, STOCKS)
    overnight, session = (
        scale * part * (draw.standard_t(4, shape) + draw.standard_t(4, (days, 1))) / 2
        for part in (0.4, 0.9)
    )
    close = 100 * np.exp(np.cumsum(overnight + session, axis=0))
    opened = close * np.exp(-session)
    high, low = (
        pick(opened, close) * np.exp(sign * scale * draw.random(shape) / 2) for pick, sign in _ENDS
    )
    volume = np.exp(draw.normal(13, 0.5, shape) + np.abs(session) / DAILY)
    names = tuple(f"N{number:02d}" for number in range(STOCKS))
    sessions = pd.bdate_range("2020-01-01", periods=days)
    return Panel(sessions, names, opened, high, low, close, volume, close * volume)


_ENDS = ((np.maximum, 1), (np.minimum, -1))


def held(seed: int) -> dict[tuple[str, str], bool]:
    """Return, by predictor and leg, whether the interval holds 0 on one market."""
    history = History.of(noise(seed), "next_close")
    sessions = history.panel.sessions
    walked = folds(history, sessions[BEFORE], sessions[BEFORE + SCORED - 1])
    scores = walk(history, walked, SMALL) | {
        name: rule_scores(history.features, name) for name in RULES
    }
    days, found = slice(BEFORE, BEFORE + SCORED), {}
    for leg in LEGS:
        outcome = outcomes(history.panel, leg)[days]
        for name, score in scores.items():
            made = score_ranking(score[days], outcome, overlap=sessions_to(leg)).rank_ic
            found[name, leg] = made.low <= 0 <= made.high
    return found


def main() -> None:
    """Print the count, by predictor and by leg."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markets", type=int, default=50)
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    of: Counter[str] = Counter()
    for seed in range(asked.markets):
        for (name, leg), holds in held(seed).items():
            for key in (
                "all",
                "next_close" if leg == "next_close" else "other legs",
                name,
                f"leg {leg}",
            ):
                counts[key] += holds
                of[key] += 1
    for key, whole in of.items():
        print(f"{key}: {counts[key]} of {whole} intervals hold 0, {counts[key] / whole:.1%}")


if __name__ == "__main__":
    main()
