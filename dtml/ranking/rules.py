"""The one-line rules that a ranking is compared with: the rank of one feature, or its opposite."""

from collections.abc import Mapping

import numpy as np

from dtml.ranking.features import FEATURES
from dtml.ranking.panel import Features, Grid

# Name: the feature whose rank is the score, and 1 or -1 for the end that comes first.
RULES: Mapping[str, tuple[str, int]] = {
    "day_losers": ("return_1", -1),
    "five_day_losers": ("return_5", -1),
    "low_volatility": ("volatility_20", -1),
    "volume_shock": ("relative_volume_20", 1),
    "intraday_reversal": ("session", -1),
}
# The sessions that the rules read.
HISTORY = max(FEATURES[feature].bars for feature, _ in RULES.values())


def rule_scores(features: Features, rule: str) -> Grid:
    """Return the score that a rule gives each stock-day.

    `features` are ranked, in the order of `FEATURES`.
    """
    feature, sign = RULES[rule]
    column = list(FEATURES).index(feature)
    return sign * np.asarray(features[..., column], dtype=float)
