"""Laws of the benchmark's page, its verdict and its README table."""

import re

import pandas as pd
import pytest

from dtml.pages.benchmark import benchmark_page, score_rows, verdict
from dtml.pages.figures import fmt, named, quoted
from tests.support.benchmark_page import (
    BENCHMARK,
    FIGURES,
    random_members,
    random_scores,
    score_row,
)
from tests.support.facts import in_order
from tests.support.pages import NAN, Reader, without_script


@pytest.mark.parametrize(
    ("low", "high", "verb"),
    [
        (0.004, 0.038, "beats"),
        (-0.004, 0.046, "does not differ"),
        (0.0, 0.042, "does not differ"),
        (-0.04, -0.0001, "is beaten by"),
        (NAN, NAN, "cannot be compared"),
    ],
)
def test_the_verdict_follows_the_interval_of_the_paired_gain(low, high, verb):
    gains = {
        "published": {"acc_gain": 0.021, "acc_gain_low": low, "acc_gain_high": high},
        "all": {"acc_gain": -0.02, "acc_gain_low": -0.03, "acc_gain_high": -0.01},
    }
    rows = [score_row("dtml", protocol, **gain) for protocol, gain in gains.items()]
    rows += [score_row("index_reversal", protocol, acc=0.5) for protocol in gains]
    published, everything = verdict(BENCHMARK, pd.DataFrame(rows)).split("; ")
    rule = quoted("index_reversal")
    assert re.search(in_order("published labels DTML ", verb, rule, " +2.1 points"), published)
    assert re.search(in_order("all stock-days DTML ", "is beaten by", rule, " -2.0"), everything)


def test_the_strongest_rule_is_that_of_the_highest_acc():
    figures = {"dtml": (0.55, 0.1), "always_up": (0.54, 0.0), "index_reversal": (0.52, 0.04)}
    rows = [score_row(name, "all", acc=acc, mcc=mcc) for name, (acc, mcc) in figures.items()]
    found = score_rows(pd.DataFrame(rows))["all"]
    names = [row["name"] for row in found if "strongest" in row["name"]]
    assert names == [f"{named('always_up')} (strongest rule)"]
    assert {(row["acc_rule"], row["mcc_rule"]) for row in found} == {
        ("always_up", "index_reversal")
    }


def test_the_page_holds_every_predictor_and_figure():
    names = ["dtml", "lstm"]
    scores = random_scores(names)
    members = random_members(names)
    text = benchmark_page(benchmark=BENCHMARK, scores=scores, seed_scores=members)
    seen = Reader(without_script(text)).seen
    for row in [row for rows in score_rows(scores).values() for row in rows]:
        assert named(row["predictor"]) in seen
        for name, value in row.items():
            if name in FIGURES and not pd.isna(value):
                assert _written(name, value) in seen, (row["predictor"], name)
    assert "once, at 2026-01-20 08:12" in seen


def _written(name, value):
    """A figure as the page writes it: accuracies are percentages, their gains points."""
    if "acc" in name:
        return f"{100 * value:+.1f}" if "gain" in name else f"{100 * value:.1f}"
    kind = "gain" if "gain" in name or name == "calibration_intercept" else "coefficient"
    return fmt(value, kind, 2 if name.startswith("calibration") else 3)
