"""A ranking's page calls a predictor better only where it is among all that were compared."""

import pandas as pd
import pytest

from dtml.pages.rankings.page import Ranking, verdict


def made(p: float | None) -> Ranking:
    """A blend whose own interval lies above that of the rule, with this p-value among all."""
    scores = pd.DataFrame(
        {
            "predictor": ["blend", "day_losers"],
            "leg": "next_close",
            "slice": "all",
            "rank_ic": [0.05, 0.03],
            "days": 250,
        }
    )
    differences = pd.DataFrame(
        {
            "predictor": ["blend", "day_losers"],
            "other": ["day_losers", "blend"],
            "gain": [0.02, -0.02],
            "gain_low": [0.001, -0.039],
            "gain_high": [0.039, -0.001],
            "gain_p": [p, p],
        }
    )
    row = {"leg": "next_close", "best_rule": "day_losers"}
    return Ranking(row, scores, differences, pd.DataFrame())


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.004, 'the blend beats "the day\'s losers"'),
        (0.21, 'the blend does not differ significantly from "the day\'s losers"'),
        (None, 'the blend beats "the day\'s losers"'),  # stored before there were such p-values
    ],
)
def test_the_verdict_is_that_of_all_comparisons_and_the_interval_stays_beside_it(
    p: float | None, words: str
) -> None:
    said = verdict(made(p))
    assert words in said
    assert "+.020 [+.001, +.039]" in said
    assert ("among all pairs of 2 predictors" in said) is (p is not None)
