"""A page in a file is whole alone, says no missing value, can be read without seeing it, escapes
names and stays small.
"""

import gzip
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pandas as pd
import pytest

from dtml.pages.benchmark import benchmark_page
from dtml.pages.ranking import Ranking, ranking_page
from tests.support import backtest_page, night_page
from tests.support.benchmark_page import BENCHMARK, random_members, random_scores, score_row
from tests.support.benchmark_rows import (
    ranking,
    ranking_differences,
    ranking_portfolios,
    ranking_scores,
)
from tests.support.pages import NAN, Reader, assert_whole_and_accessible, curve, without_script
from tests.support.tear_sheets import FOUR_YEARS, sheet

pytestmark = pytest.mark.slow
EVIL = "<script>alert('x')</script>&\""


def of_backtest():
    return backtest_page.page()


def of_blank_backtest():
    """Of one that has just begun: no prediction has an outcome."""
    frames = {
        "scores": backtest_page.random_scores(),
        "rolling": backtest_page.random_rolling(1),
        "curve": curve(),
        "tracks": backtest_page.random_tracks(1),
        "performances": backtest_page.random_performances(),
    }
    blank = {name: frame.iloc[:0] for name, frame in frames.items()}
    missing = ("seconds", "stocks", "constituent_days", "without_price", "tried", "list_as_of")
    begun = backtest_page.BACKTEST | dict.fromkeys((*missing, "expected_best"))
    return backtest_page.page(**blank, backtest=begun)


def of_short_backtest():
    few = pd.DataFrame([backtest_page.held(name) for name in backtest_page.PORTFOLIOS])
    return backtest_page.page(tracks=backtest_page.random_tracks(12), performances=few)


def of_benchmark(seeds=4, configurations=3, models=2):
    names = ["dtml", *(f"model {number}" for number in range(1, models))]
    return benchmark_page(
        benchmark=BENCHMARK,
        scores=random_scores(names),
        seed_scores=random_members(names, configurations, seeds),
        curves={name: curve() for name in names},
    )


def of_small_benchmark():
    """Of one model without seeds, on one protocol."""
    rows = [score_row(name, "published") for name in ("dtml", "index_reversal")]
    return benchmark_page(
        benchmark=BENCHMARK | {"seconds": None, "config": {}},
        scores=pd.DataFrame(rows),
        seed_scores=random_members(["dtml"]).iloc[:0],
    )


def of_ranking():
    return ranking_page(walk_of(90))


def of_ranking_without_its_sheet():
    return ranking_page(replace(walk_of(90), sheet=None))


@cache
def walk_of(days):
    found = sheet(0.3, days=days)
    of_rule = sheet(-0.1, days=days).cumulative.assign(predictor="day_losers")
    both = pd.concat([found.cumulative, of_rule], ignore_index=True)
    made = replace(found, cumulative=both, rule="day_losers")
    return Ranking(ranking(), ranking_scores(), ranking_differences(), ranking_portfolios(), made)


def of_night():
    return night_page.page()


def of_old_night():
    return night_page.old()


def of_night_of_a_stock():
    return night_page.page(night_page.stocks(1))


def of_half_calibrated_night():
    return night_page.page(night_page.stocks(2).assign(calibrated=[NAN, 0.6]))


PAGES = (
    of_backtest,
    of_blank_backtest,
    of_short_backtest,
    of_benchmark,
    of_small_benchmark,
    of_ranking,
    of_ranking_without_its_sheet,
    of_night,
    of_old_night,
    of_night_of_a_stock,
    of_half_calibrated_night,
)


@pytest.mark.parametrize("made", PAGES, ids=lambda each: each.__name__)
def test_a_page_is_whole_alone_and_accessible(made):
    page = Reader(text := without_script(made()))
    assert_whole_and_accessible(page)
    assert not re.search(r"https?:|src\s*=|<link|<script|@import|url\((?!#)|\"/sql", text)
    own = {attrs["href"] for tag, attrs in page.tags if tag == "a" and "download" not in attrs}
    assert own <= {f"#{attrs.get('id')}" for _, attrs in page.tags}
    # what a drawing shows is said in words around it
    assert all(attrs.get("aria-hidden") for tag, attrs in page.tags if tag == "svg")
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))


def of_evil_night():
    directions = night_page.stocks(7).assign(name=EVIL, sector=EVIL).replace({"S003": EVIL})
    night = night_page.NIGHT | {"status": EVIL, "gaps": [{"symbol": EVIL, "reason": EVIL}]}
    return night_page.page(
        directions,
        title=EVIL,
        night=night,
        rejected=night_page.given()["rejected"].assign(symbol=EVIL, reason=EVIL, value=EVIL),
        scores=night_page.running().replace({"always_up": EVIL}),
        receipt={EVIL: EVIL, "config": {EVIL: EVIL}},
    )


def of_evil_backtest():
    portfolio = {backtest_page.TRADED[0]: EVIL}
    return backtest_page.page(
        scores=backtest_page.random_scores().replace({"always_up": EVIL, "S001": EVIL}),
        tracks=backtest_page.random_tracks(90).replace(portfolio),
        performances=backtest_page.random_performances().replace(portfolio),
        backtest=backtest_page.BACKTEST | {"market": EVIL},
    )


@pytest.mark.parametrize("made", [of_evil_night, of_evil_backtest])
def test_names_are_escaped(made):
    text = without_script(made())
    assert "<script>" in Reader(text).seen
    assert "<script" not in text


def of_backtest_of_seven_years():
    return backtest_page.page(
        tracks=backtest_page.random_tracks(1800),
        rolling=backtest_page.random_rolling(1738),
        scores=backtest_page.random_scores(500, 29),
        folds=backtest_page.folds(29),
    )


def of_whole_grid():
    return of_benchmark(seeds=10, configurations=24, models=11)


def of_ranking_of_four_years():
    with pytest.MonkeyPatch.context() as patch:  # the ends of its intervals weigh as much
        patch.setattr("dtml.evaluation.ranking.RESAMPLES", 99)
        return ranking_page(walk_of(FOUR_YEARS))


def of_night_of_500_stocks():
    return night_page.page(night_page.stocks(500, sectors=11))


@pytest.mark.parametrize(
    "made",
    [
        of_backtest_of_seven_years,
        of_whole_grid,
        pytest.param(of_ranking_of_four_years, marks=pytest.mark.soak),
        of_night_of_500_stocks,
    ],
)
def test_a_large_page_weighs_less_than_600_kilobytes_packed(made):
    assert len(gzip.compress(made().encode())) < 600_000
