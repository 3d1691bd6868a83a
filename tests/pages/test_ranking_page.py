"""A ranking's page compares the blend with the rule that is strongest on the days scored."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from dtml.evaluation.tear_sheet import answers
from dtml.pages.ranking import Ranking, answer_words, markdown_report, verdict
from dtml.pages.rendering import said as sentence
from tests.support.facts import in_order
from tests.support.tear_sheets import sheet

CHOSEN, TWIN = "day_losers", "low_volatility"  # the best rule beforehand, and one like the blend


def made(p: float | None, p_of_twin: float | None = None, gain_of_twin: float = 0.0002) -> Ranking:
    """A blend far above the rule chosen beforehand; with `p_of_twin` beside one that equals it.

    The p-values are of all comparisons, None as in walks stored before there were such.
    """
    rules = [CHOSEN] if p_of_twin is None else [CHOSEN, TWIN]
    gains = pd.DataFrame(
        {
            "predictor": "blend",
            "other": [CHOSEN, TWIN][: len(rules)],
            "gain": [0.02, gain_of_twin][: len(rules)],
            "gain_low": [0.001, -0.012][: len(rules)],
            "gain_high": [0.039, 0.012][: len(rules)],
            "gain_p": [p, p_of_twin][: len(rules)],
        }
    )
    over_blend = gains.assign(predictor=gains["other"], other="blend")
    scores = pd.DataFrame({"predictor": ["blend", "ridge", *rules], "leg": "next_close"}).assign(
        slice="all", value="", is_rule=[False, False, *[True] * len(rules)], days=250, t=1.0
    )
    for name in ("rank_ic", "auc", "acc", "decile_spread"):
        scores = scores.assign(**{name: 0.03, f"{name}_low": 0.01, f"{name}_high": 0.05})
    over_ridge = gains.assign(other="ridge")
    of_ridge = gains.assign(predictor="ridge")
    of_rules = over_blend.assign(other="ridge")
    between = gains.assign(predictor=CHOSEN, other=TWIN), gains.assign(predictor=TWIN, other=CHOSEN)
    differences = pd.concat([gains, over_blend, over_ridge, of_ridge, of_rules, *between])
    row = {
        "leg": "next_close",
        "best_rule": CHOSEN,
        "stocks": 31,
        "first": "2024-01-02",
        "last": "2024-12-30",
        "folds": 4,
        "seconds": 2.0,
        "config": {},
    }
    return Ranking(row, scores, differences, pd.DataFrame({"span": [], "version": []}))


@pytest.mark.parametrize(
    ("p", "words", "ends"),
    [
        (0.004, "beats", "[+.001, +.039]"),
        (0.21, "does not differ", "[+.001, +.039]"),
        (None, "beats", "[+.001, +.039]"),  # one rule alone needs no wider interval
    ],
)
def test_the_verdict_is_that_of_all_comparisons_and_the_interval_stays_beside_it(
    p: float | None, words: str, ends: str
) -> None:
    said = verdict(made(p))
    assert re.search(f'the blend {words}.* "the day\'s losers"', said)
    assert f"+.020 {ends}" in said
    assert "strongest of 1 rules" in said
    assert ("adjusted p" in said) is (p is not None)
    assert "widened" not in said


@pytest.mark.parametrize("ps", [(0.0001, 0.98), (None, float("nan"))])
def test_a_blend_that_equals_a_rule_does_not_beat_the_rules(
    ps: tuple[float | None, float],
) -> None:
    """Whichever rule was the best beforehand: low volatility has the rank IC of the blend."""
    found = made(*ps)
    said = verdict(found)
    assert re.search('not differ.* "low volatility"', said)
    assert "strongest of 2 rules" in said
    assert found.strongest is not None
    assert found.strongest["other"] == TWIN
    report = markdown_report(found)
    assert said in report
    assert "low volatility (strongest rule)" in report
    assert "250 days" in report.splitlines()[0]
    words = answer_words(answers(sheet(0.3)), found.strongest)
    assert list(words.items())[-1] == ("Beats the rules", "Not proven")


def test_a_blend_that_beats_the_strongest_rule_alone_does_not_beat_the_rules() -> None:
    """The rule over which it gains most is too uncertain to be told apart."""
    found = made(0.2, 0.01, gain_of_twin=0.01)
    facts = (
        "the blend ",
        "not proven to beat",
        'beats "low volatility"',
        "2 rules",
        " p .0100",
        " +.010 ",
    )
    assert re.search(in_order(*facts), verdict(found))
    assert answer_words(answers(sheet(0.3)), found.strongest)["Beats the rules"] == "Not proven"
    assert "adjusted p .0100" in sentence("strongest_rule", found.strongest)


def test_an_interval_is_said_to_be_widened_only_where_it_is() -> None:
    widened = verdict(made(None, float("nan")))
    assert re.search("of 2 rules .*widened", widened)
    few_days = made(None, float("nan"))
    differences = few_days.differences.assign(gain_low=float("nan"), gain_high=float("nan"))
    said = verdict(replace(few_days, differences=differences))
    facts = ("cannot be compared", '"low volatility"', "strongest of 2 rules: ", " +.000.")
    assert re.search(in_order(*facts), said)
