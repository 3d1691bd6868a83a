"""The one-line rules that a ranking is compared with: the rank of one feature, or its opposite."""

from collections.abc import Mapping

import numpy as np

from dtml.ranking.features import FEATURES
from dtml.ranking.panel import Features, Grid

# The feature whose rank is the score, by the name of the rule; with -1 the lowest rank is the best.
RULES: Mapping[str, tuple[str, int]] = {
    "day_losers": ("return_1", -1),
    "five_day_losers": ("return_5", -1),
    "low_volatility": ("volatility_20", -1),
    "volume_shock": ("relative_volume_20", 1),
    "intraday_reversal": ("session", -1),
}
# Sessions that the rules read, that of the ranking included.
HISTORY = max(FEATURES[feature].bars for feature, _ in RULES.values())


def rule_scores(features: Features, rule: str) -> Grid:
    """Return the score that a rule gives each stock-day.

    `features` are ranked, in the order of `FEATURES`.
    """
    feature, sign = RULES[rule]
    column = list(FEATURES).index(feature)
    return sign * np.asarray(features[..., column], dtype=float)
