"""Rankings of returns over ten and twenty sessions: the features of continuation
against plain pandas, and what a training may know of the days that it scores.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.horizons import RidgeWalk
from dtml.errors import DtmlError, UsageError
from dtml.markets import load_market, load_market_file
from dtml.ranking.features import FEATURE_SETS, FEATURES, Bars, ranked_features
from dtml.ranking.models import RidgeConfig, fit_ridge
from dtml.ranking.outcomes import LEGS, outcomes
from dtml.ranking.panel import Panel
from dtml.ranking.rankers import Rankers, load_rankers, save_rankers
from dtml.ranking.walk import History, folds
from tests.support.bounds import assert_arrays_close_in_float64, in_float64
from tests.support.nights import small_market
from tests.support.panels import SESSIONS, made_bars, made_panel

DAY = 300  # with a whole history behind it
STOCK = "S04"  # with a bar on every session
ADDED = [name for name in FEATURE_SETS["long"] if name not in FEATURES]


@pytest.mark.parametrize("count", [60, 120, 250])
def test_what_was_earned_overnight_and_by_day_is_the_product_of_its_returns(count: int) -> None:
    bars = made_bars()
    stock = bars[bars["symbol"] == STOCK].set_index("session").sort_index()
    overnight = stock["open"] / stock["close"].shift()
    intraday = stock["close"] / stock["open"]
    panel = made_panel(bars)
    held = Bars.of(panel)
    column = panel.symbols.index(STOCK)
    for name, ratios in (("overnight", overnight), ("intraday", intraday)):
        expected = ratios.rolling(count).apply(np.prod, raw=True).to_numpy() - 1
        found = FEATURE_SETS["long"][f"{name}_return_{count}"].of(held)[:, column]
        assert_arrays_close_in_float64(found, expected)
    both = overnight.tail(count).prod() * intraday.tail(count).prod()
    whole = stock["close"].iloc[-1] / stock["close"].iloc[-1 - count]
    assert both == in_float64(whole)


def test_each_added_feature_is_ranked_within_the_day_and_the_others_are_as_they_were() -> None:
    panel = made_panel()
    usual = ranked_features(panel)
    long = ranked_features(panel, feature_set="long")
    assert usual.shape[-1] == len(FEATURES) == 46
    assert len(ADDED) == 6
    np.testing.assert_array_equal(long[..., : len(FEATURES)], usual)
    for column in range(len(FEATURES), long.shape[-1]):
        known = long[DAY, :, column][np.isfinite(long[DAY, :, column])]
        expected = np.linspace(-0.5, 0.5, len(known))
        np.testing.assert_allclose(np.sort(known), expected, atol=1e-7)
    few = ranked_features(panel, feature_set="long", names=("overnight_return_60",))
    column = list(FEATURE_SETS["long"]).index("overnight_return_60")
    np.testing.assert_array_equal(few[..., column], long[..., column])
    assert np.isfinite(few).any(axis=(0, 1)).sum() == 1


@pytest.mark.slow
def test_no_added_feature_reads_a_later_bar_or_more_bars_than_it_says() -> None:
    bars = made_bars()
    prices = ["open", "high", "low", "close", "adj_close"]
    added = slice(len(FEATURES), None)
    whole = ranked_features(made_panel(bars), feature_set="long")[DAY, :, added]
    later = bars.copy()
    is_later = later["session"] > SESSIONS[DAY]
    moved = 1 + 0.1 * np.random.default_rng(0).random((int(is_later.sum()), 1))
    later.loc[is_later, prices] *= moved
    found = ranked_features(made_panel(later), feature_set="long")
    np.testing.assert_array_equal(found[DAY, :, added], whole)
    assert not np.array_equal(found[-1], ranked_features(made_panel(bars), feature_set="long")[-1])
    for position, name in enumerate(ADDED):
        reads = FEATURE_SETS["long"][name].bars
        recent = bars[bars["session"] > SESSIONS[DAY - reads]]
        full = ~recent["symbol"].isin(["S00", "S01", "S02"])
        panel = made_panel(recent[full])
        values = FEATURE_SETS["long"][name].of(Bars.of(panel))
        first = np.isfinite(values).all(axis=1).argmax()
        assert first == reads - 1, name
        assert np.isfinite(whole[:, position]).any()


@pytest.mark.slow
@pytest.mark.parametrize("leg", LEGS)
def test_no_outcome_that_a_fold_trains_on_reads_a_price_of_the_days_it_scores(leg: str) -> None:
    panel = made_panel()
    history = History.of(panel, leg)  # type: ignore[arg-type]
    walked = folds(history, SESSIONS[280], SESSIONS[-40])
    for fold in walked:
        known = fold.scored.start  # prices from here on are unknown when the fold is trained
        of_torn = outcomes(_torn_from(panel, known), leg)  # type: ignore[arg-type]
        torn = np.where(history.there, of_torn, np.nan)
        trained = history.outcome[fold.trained]
        np.testing.assert_array_equal(torn[fold.trained], trained)
        # The first day that is left out is the first that would.
        stop = fold.trained.stop
        assert not np.array_equal(torn[stop], history.outcome[stop], equal_nan=True)


def _torn_from(panel: Panel, position: int) -> Panel:
    """The panel with other prices from a position on."""
    drawn = np.random.default_rng(0)
    opened = panel.open.copy()
    closed = panel.close.copy()
    opened[position:] *= 1 + drawn.random(opened[position:].shape)
    closed[position:] *= 1 + drawn.random(closed[position:].shape)
    return replace(panel, open=opened, close=closed)


def test_ridges_from_sums_that_grow_are_those_that_are_fitted_anew() -> None:
    history = History.of(made_panel(), "ten_days", feature_set="long")
    walked = folds(history, SESSIONS[280], SESSIONS[-40])
    made = RidgeWalk(history)
    for feature_set, penalty in (("long", 0.1), ("usual", 10.0)):
        found = made.scores(walked, feature_set, penalty)  # type: ignore[arg-type]
        width = len(FEATURE_SETS[feature_set])  # type: ignore[index]
        for fold in walked:
            rows, outcome = history.rows(fold.trained)
            fitted = fit_ridge(rows[:, :width], outcome, RidgeConfig(penalty))
            there = history.there[fold.scored]
            expected = fitted.score(history.features[fold.scored, :, :width][there])
            np.testing.assert_allclose(found[fold.scored][there], expected, rtol=1e-6, atol=1e-9)


def test_a_market_file_names_its_features_and_without_the_key_nothing_changes(
    tmp_path: Path,
) -> None:
    text = small_market()
    plain = tmp_path / "plain.toml"
    plain.write_text(text)
    assert load_market_file(plain).features == "usual"
    assert "features" not in load_market_file(plain).settings
    long = tmp_path / "long.toml"
    long.write_text(f'features = "long"\n{text}')
    assert load_market_file(long).features == "long"
    assert load_market_file(long).settings["features"] == "long"
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(f'features = "longer"\n{text}')
    with pytest.raises(UsageError, match=r"wrong\.toml.*features"):
        load_market_file(wrong)
    assert load_market("kospi200").features == "usual"


def test_rankers_of_other_features_than_the_market_names_are_refused(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((200, len(FEATURES))) - 0.5
    ridge = fit_ridge(rows, rows[:, 0], RidgeConfig())
    settings = {"market": "toy", "config": {"features": list(FEATURES), "networks": []}}
    made = Rankers({"ridge": ridge}, {"ridge": 1.0})
    file, sha = save_rankers(made, settings, tmp_path / "toy")
    with pytest.raises(DtmlError, match=r'other features.* "long"'):
        load_rankers(file, market="toy", sha=sha, feature_set="long")
