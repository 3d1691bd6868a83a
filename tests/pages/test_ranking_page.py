"""A ranking's page compares the blend with the rule that is strongest on the days scored."""

import re
from dataclasses import replace
from itertools import permutations

import pandas as pd
import pytest

from dtml.backtest.turnover import EQUAL
from dtml.evaluation.ranking import FIGURES
from dtml.evaluation.tear_sheet import answers
from dtml.pages.ranking import Ranking, answer_words, markdown_report, net_table, verdict
from tests.support.facts import in_order
from tests.support.tear_sheets import sheet

NAN = float("nan")
CHOSEN, TWIN = "day_losers", "low_volatility"  # the best rule beforehand, and one like the blend


def made(p, p_of_twin=None, gain_of_twin=0.0002):
    """A blend far above the rule chosen beforehand; with `p_of_twin` beside one that equals it.

    The p-values are of all comparisons, None as in walks stored before there were such.
    """
    gains = pd.DataFrame(
        {
            "other": [CHOSEN, TWIN],
            "gain": [0.02, gain_of_twin],
            "gain_low": [0.001, -0.012],
            "gain_high": [0.039, 0.012],
            "gain_p": [p, p_of_twin],
        }
    ).iloc[: 1 if p_of_twin is None else 2]
    rules = gains["other"].tolist()
    pairs = permutations(["blend", "ridge", *rules], 2)
    every = pd.DataFrame(pairs, columns=["predictor", "other"])
    of_rules = every[every["other"].isin(rules)].merge(gains, on="other")
    scores = pd.DataFrame({"predictor": ["blend", "ridge", *rules]})
    scores["is_rule"] = scores["predictor"].isin(rules)
    scores = scores.assign(leg="next_close", slice="all", value="", days=250, t=1.0)
    for name in FIGURES:
        scores = scores.assign(**{name: 0.03, f"{name}_low": 0.01, f"{name}_high": 0.05})
    row = {"leg": "next_close", "best_rule": CHOSEN, "stocks": 31, "first": "2024-01-02"}
    row |= {"last": "2024-12-30", "folds": 4, "seconds": 2.0, "config": {}}
    scores.loc[0, ["residual_ic", "residual_ic_low", "residual_ic_high"]] = 0.015, -0.002, 0.032
    return Ranking(row, scores, of_rules, pd.DataFrame({"span": [], "version": []}))


@pytest.mark.parametrize(
    ("found", "facts"),
    [
        (
            made(0.004),
            ("beats", "strongest of 1 rules", "+.020 [+.001, +.039]"),
        ),
        (made(0.21), ("does not differ", "the day's losers", "+.020 [+.001, +.039]")),
        (made(None), ("beats", "the day's losers", "+.020 [+.001, +.039]")),
        # Whichever rule was the best beforehand: low volatility has the rank IC of the blend.
        (made(0.0001, 0.98), ("does not differ", "low volatility", "strongest of 2 rules")),
        (made(None, NAN), ("does not differ", "low volatility", "of 2 rules", "widened")),
        # The rule over which it gains most is too uncertain to be told apart.
        (made(0.2, 0.01, 0.01), ("not proven to beat", 'beats "low volatility"', "2 rules")),
    ],
)
def test_the_verdict_is_that_of_all_comparisons_and_the_interval_stays_beside_it(found, facts):
    said = verdict(found)
    assert re.search(
        in_order("the blend ", *facts, "all rules together", ".015 [-.002, .032]"), said
    )
    assert said in markdown_report(found)
    is_proven = facts[0] == "beats"
    answer = answer_words(answers(sheet(0.3)), found.strongest)["Beats the rules"]
    assert answer == ("Proven" if is_proven else "Not proven")


def test_the_ways_to_trade_stand_beside_equal_parts_by_what_they_gain_over_them():
    way = {"span": "test", "version": "daily", "smooth": 1, "band": 1.0, "days": 250}
    way |= dict.fromkeys(("annual_return", "turnover", "break_even"), 0.1)
    way |= {"sharpe": 0.5, "sharpe_low": 0.1, "sharpe_high": 0.9}
    way |= {"index_gain": -0.36, "index_gain_low": -0.9, "index_gain_high": 0.17}
    found = replace(made(0.004), portfolios=pd.DataFrame([way, way | {"version": EQUAL}]))
    daily, equal = net_table(found).rows
    assert (daily["over_equal"], equal["over_equal"]) == ("-.36 [-.90, +.17]", "")
