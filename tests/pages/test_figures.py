"""Laws of how figures and names are written on pages and on the console."""

from typing import get_args

import pandas as pd
import pytest

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.markets.definition import RelativeName
from dtml.pages.charts import MODELS
from dtml.pages.figures import (
    NAMES,
    are_whole,
    counted,
    in_print,
    interval,
    named,
    number,
    of_source,
    percent,
    quoted,
    with_interval,
    written,
)
from dtml.ranking.features import RULES

NAN = float("nan")


def row(name: str, value: float, low: float = NAN, high: float = NAN) -> dict[str, float]:
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def test_every_rule_and_model_has_a_name_in_words_and_no_two_have_one() -> None:
    for name in (MODEL, *MODELS, *NAIVE_RULES, *RULES):
        assert name in NAMES
    for name in (*NAMES, *get_args(RelativeName), "blend_relative"):
        assert "_" not in named(name)
    assert len(set(NAMES.values())) == len(NAMES)
    assert quoted("always_up") == '"every stock rises"'
    assert [named(name) for name in ("long, next open", None, NAN)] == ["long, next open", "-", "-"]


@pytest.mark.parametrize(
    ("figure", "signed", "said"),
    [
        (row("acc", 0.5353, 0.512, 0.561), False, "53.5 % [51.2, 56.1]"),
        (row("running_acc", 0.5, NAN, NAN), False, "50.0 %"),
        (row("acc", 0.0142, -0.071, 0.102), True, "+1.4 points [-7.1, +10.2]"),
        (row("acc_gain", -0.0001, -0.01, 0.0), False, "-0.0 points [-1.0, 0.0]"),
        (row("rank_ic", 0.008, -0.00013, 0.017), False, ".008 [-.000, .017]"),
        (row("acc", 0.004, -0.0004, 0.01), False, "0.4 % [-0.0, 1.0]"),
        (row("gain", 0.0, 0.0004, 0.003), True, ".000 [+.000, +.003]"),
        (row("mcc", -0.0121, -0.0534, 0.0271), False, "-.012 [-.053, .027]"),
        (row("rank_ic", 0.0214, 0.008, 0.0344), False, ".021 [.008, .034]"),
        (row("gain", 0.0214, 0.008, 0.0344), True, "+.021 [+.008, +.034]"),
        (row("sharpe", 0.617, -0.2, 1.4), False, ".62 [-.20, 1.40]"),
        (row("mcc", NAN), False, "-"),
        (row("acc", NAN), False, "-"),
    ],
)
def test_a_figure_is_written_by_its_kind_and_only_differences_have_a_plus_sign(
    figure: dict[str, float], signed: bool, said: str
) -> None:
    name = next(iter(figure))
    assert with_interval(figure, name, signed=signed) == said


def test_an_interval_alone_has_its_unit_and_paper_keeps_its_digits() -> None:
    accuracy = row("acc", 0.5353, 0.512, 0.561)
    assert interval(accuracy, "acc") == "[51.2, 56.1]\u00a0%"
    assert interval(row("acc", 0.5), "acc") == ""
    assert in_print(accuracy, "acc") == ".5353 [.512, .561]"
    assert written({"acc_rule": 0.52}, "acc_rule") == "52.0 %"
    assert percent(0.0) == "0.0 %"


def test_a_number_and_its_noun_agree() -> None:
    assert [counted(number, "gap") for number in (0, 1, 2, 1234)] == [
        "0 gaps",
        "1 gap",
        "2 gaps",
        "1,234 gaps",
    ]


def test_whole_numbers_of_a_column_have_no_decimals_and_fractions_all_have_them() -> None:
    whole = pd.Series([0.0, 1.0, None])
    fractions = pd.Series([0.0, 0.5, None])
    assert are_whole(whole)
    assert not are_whole(fractions)
    assert not are_whole(pd.Series([None, None], dtype=float))
    assert not are_whole(pd.Series(["1"]))
    assert [number(value, is_whole=True) for value in (0.0, 1.0, 7398.0)] == ["0", "1", "7,398"]
    assert [number(value) for value in (0.0, 0.5744, 7398.0)] == [".0000", ".5744", "7,398"]


def test_simulated_prices_are_named_and_real_ones_need_no_words() -> None:
    assert "in a real market" in of_source("simulated")
    assert [of_source(source) for source in ("yahoo", "files", None)] == ["", "", ""]
