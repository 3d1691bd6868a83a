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
    ci,
    counted,
    fmt,
    interval,
    named,
    number,
    of_source,
    quoted,
)
from dtml.pages.rendering import markdown
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
    ("figure", "said"),
    [
        (row("acc", 0.5353, 0.512, 0.561), "53.5 % [51.2, 56.1]"),
        (row("published_acc", 0.5, NAN, NAN), "50.0 %"),
        (row("acc_gain", 0.0142, -0.071, 0.102), "+1.4 points [-7.1, +10.2]"),
        (row("acc_gain", -0.0001, -0.01, 0.0), "-0.0 points [-1.0, 0.0]"),
        (row("rank_ic", 0.008, -0.00013, 0.017), ".008 [-.000, .017]"),
        (row("acc", 0.004, -0.0004, 0.01), "0.4 % [-0.0, 1.0]"),
        (row("gain", 0.0, 0.0004, 0.003), ".000 [+.000, +.003]"),
        (row("mcc", -0.0121, -0.0534, 0.0271), "-.012 [-.053, .027]"),
        (row("gain", 0.0214, 0.008, 0.0344), "+.021 [+.008, +.034]"),
        (row("sharpe", 0.617, -0.2, 1.4), ".62 [-.20, 1.40]"),
        (row("index_gain", 0.617, -0.2, 1.4), "+.62 [-.20, +1.40]"),
        (row("mcc", NAN), "-"),
        (row("acc", NAN), "-"),
        ({"acc_rule": 0.52}, "52.0 %"),
    ],
)
def test_a_figure_is_written_by_its_kind_and_only_differences_have_a_plus_sign(
    figure: dict[str, float], said: str
) -> None:
    assert ci(figure, next(iter(figure))) == said


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (0.5744, "coefficient", ".574"),
        (-1e-9, "coefficient", "-.000"),
        (-1e-9, "gain", "-.000"),
        (-0.0, "coefficient", ".000"),
        (1.0, "coefficient", "1.000"),
        (10.04, "ratio", "10.04"),
        (None, "gain", "-"),
        (0.0, "percent", "0.0 %"),
        (0.8, "whole_percent", "80 %"),
        (7398, "count", "7,398"),
        (4.04, "basis_points", "4.0 bp"),
        (41.2, "duration", "41 s"),
        (200, "duration", "3 min 20 s"),
        (7512.3, "duration", "2 h 05 min"),
        (pd.Timestamp("2016-12-30"), "day", "2016-12-30"),
        (pd.Timestamp("2026-01-20 08:12:33", tz="UTC"), "moment", "2026-01-20 08:12 UTC"),
        (pd.NaT, "moment", "-"),
        ("next_close", "leg", "from this close to the next"),
    ],
)
def test_a_value_is_written_by_its_kind(value: object, kind: str, said: str) -> None:
    assert fmt(value, kind) == said


def test_an_interval_alone_has_its_unit_and_paper_keeps_its_digits() -> None:
    accuracy = row("acc", 0.5353, 0.512, 0.561)
    assert interval(accuracy, "acc") == "[51.2, 56.1]\u00a0%"
    assert interval(row("acc", 0.5), "acc") == ""
    assert ci(accuracy, "acc:print") == ".5353 [.512, .561]"
    seeds = {"acc_mean": 0.5744, "acc_sd": 0.0194}
    assert ci(seeds, "acc_mean±acc_sd") == "57.4 % ± 1.9"
    assert ci(seeds, "acc_mean±acc_sd:print") == ".5744 ± .0194"
    assert ci(seeds | {"acc_sd": NAN}, "acc_mean±acc_sd") == "57.4 %"


def test_a_table_in_markdown_has_each_value_below_its_heading() -> None:
    rows = [row("acc", 0.5, 0.4, 0.6) | {"value": "a|b"}]
    assert markdown("table", rows, {"what": "value", "ACC": "acc"}).splitlines() == [
        "| what | ACC |",
        "| --- | --- |",
        "| a\\|b | 50.0 % [40.0, 60.0] |",
    ]


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
