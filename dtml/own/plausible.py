"""The highest rank IC that is believed of a user's own model: its file may read later prices."""

import numpy as np

from dtml.evaluation.ranking import both_known, mean_of_days, rank_ics
from dtml.markets.definition import Leg, Market
from dtml.ranking.features import RULES, RULES_READ, ranked_features, rule_scores
from dtml.ranking.outcomes import outcomes, overlap_of
from dtml.ranking.panel import Grid, Panel, mean_of_known

SCORED = 126  # last sessions, on which the rules are measured
# The highest rank IC that is believed: no ranking of any market that we know reached a third of
# it. Where this multiple of the rank IC of the market's best one-line rule is more, it counts.
BELIEVED = 0.3
TIMES_THE_RULES = 3


def doubt(market: Market, panel: Panel, leg: Leg, scores: Grid, outcome: Grid) -> str:
    """Say why the rank IC of some scores is too good to be true; empty where it is not.

    Scores and outcomes are [days stocks]. The whole 95 % interval must lie above the bound.
    """
    bound = highest_believed(market, panel, leg)
    rank_ic = mean_of_days(rank_ics(*both_known(scores, outcome)), overlap=overlap_of(leg))
    if not rank_ic.low > bound:  # with few days, it is NaN
        return ""
    allowing = min(np.ceil(rank_ic.low * 1000) / 1000, 1.0)  # rounded up, as it is a bound
    return (
        f"its rank IC of {rank_ic.value:+.3f} [{rank_ic.low:.3f}, {rank_ic.high:.3f}] is too good "
        f"to be true, above the plausible {bound:.3g}: look for later prices that it reads or, if "
        "you know why it is so good, set max_rank_ic in [checks] of the market's file to at least "
        f"{allowing:.3f}"
    )


def highest_believed(market: Market, panel: Panel, leg: Leg) -> float:
    """Return the rank IC above which no result is believed.

    It is `max_rank_ic` of the market's file, if set. Else it is `BELIEVED` or, if larger,
    `TIMES_THE_RULES` times the largest rank IC, without its sign, of a one-line rule on the last
    `SCORED` days.
    """
    if market.checks.max_rank_ic is not None:
        return market.checks.max_rank_ic
    days = slice(-SCORED, None)
    # The days that are scored, and those that the rules read before them.
    recent = panel.cut(slice(-SCORED - RULES_READ, None))
    features = ranked_features(recent, names={feature for feature, _ in RULES.values()})
    outcome = outcomes(recent, leg)[days]
    rank_ic_of_rules = []
    for rule in RULES:
        scores, known_outcome = both_known(rule_scores(features[days], rule), outcome)
        rank_ic_of_rules.append(float(mean_of_known(rank_ics(scores, known_outcome), axis=0)))
    best = max(abs(rank_ic) for rank_ic in rank_ic_of_rules)
    return max(BELIEVED, TIMES_THE_RULES * best)
