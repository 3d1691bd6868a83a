"""Laws of how figures and names are written on pages and on the console."""

from typing import get_args

import pandas as pd
import pytest

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.markets.definition import RelativeName
from dtml.pages.charts import MODELS, stretches
from dtml.pages.figures import NAMES, ci, interval, named, quoted
from dtml.pages.rendering import markdown
from dtml.ranking.features import RULES

NAN = float("nan")


def row(name, value, low=NAN, high=NAN):
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def test_every_rule_and_model_has_a_name_in_words_and_no_two_have_one():
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
        (row("acc_gain", 0.0142, -0.071, 0.102), "+1.4 points [-7.1, +10.2]"),
        (row("rank_ic", 0.008, -0.00013, 0.017), ".008 [-.000, .017]"),
        (row("gain", 0.0, 0.0004, 0.003), ".000 [+.000, +.003]"),
        (row("index_gain", 0.617, -0.2, 1.4), "+.62 [-.20, +1.40]"),
        (row("mcc", NAN), "-"),
    ],
)
def test_a_figure_is_written_by_its_kind_and_only_differences_have_a_plus_sign(figure, said):
    assert ci(figure, next(iter(figure))) == said


def test_an_interval_alone_begins_with_its_lower_end_and_ends_with_its_unit():
    assert interval(row("acc", 0.5353, 0.512, 0.561), "acc") == "[51.2, 56.1]\u00a0%"
    assert interval(row("acc", 0.5353), "acc") == ""


def test_a_table_in_markdown_has_each_value_below_its_heading():
    rows = [row("acc", 0.5, 0.4, 0.6) | {"value": "a|b"}]
    assert markdown("table", rows, {"what": "value", "ACC": "acc"}).splitlines() == [
        "| what | ACC |",
        "| --- | --- |",
        "| a\\|b | 50.0 % [40.0, 60.0] |",
    ]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ([0], [0]),
        ([0, 1, 2, 3, 24, 46], [0, 0, 0, 0, 0, 1]),  # 21 and 22 days apart
        ([0, 29, 60, 91, 274], [0, 0, 0, 0, 1]),  # a month each, and half a year
    ],
)
def test_a_line_is_broken_where_values_lack_for_longer_than_an_exchange_is_closed(days, expected):
    sessions = pd.Timestamp("2024-01-31") + pd.to_timedelta(days, unit="D")
    assert stretches(sessions).tolist() == expected
