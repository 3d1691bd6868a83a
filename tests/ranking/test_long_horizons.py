"""Rankings of returns over ten and twenty sessions: the features of continuation
against plain pandas, and what a training may know of the days that it scores.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dtml.errors import DtmlError, UsageError
from dtml.markets import load_market_file
from dtml.ranking.features import FEATURE_SETS, FEATURES, Bars, ranked_features
from dtml.ranking.models import RidgeConfig, fit_ridge
from dtml.ranking.outcomes import LEGS, outcomes
from dtml.ranking.panel import Panel
from dtml.ranking.rankers import Rankers, load_rankers, save_rankers
from dtml.ranking.walk import History, folds
from tests.support.bounds import assert_arrays_close_in_float64
from tests.support.nights import small_market
from tests.support.panels import SESSIONS, made_bars, made_panel

STOCK = "S04"  # with a bar on every session


def test_what_was_earned_overnight_and_by_day_is_the_product_of_its_returns() -> None:
    bars, count = made_bars(), 60
    stock = bars[bars["symbol"] == STOCK].set_index("session").sort_index()
    panel = made_panel(bars)
    for name, ratios in (
        ("overnight", stock["open"] / stock["close"].shift()),
        ("intraday", stock["close"] / stock["open"]),
    ):
        expected = ratios.rolling(count).apply(np.prod, raw=True).to_numpy() - 1
        found = FEATURE_SETS["long"][f"{name}_return_{count}"].of(Bars.of(panel))
        assert_arrays_close_in_float64(found[:, panel.symbols.index(STOCK)], expected)


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


def test_a_market_file_names_its_features_and_without_the_key_nothing_changes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "home.toml"
    file.write_text(small_market())
    assert load_market_file(file).features == "usual"
    assert "features" not in load_market_file(file).settings
    file.write_text(f'features = "long"\n{small_market()}')
    assert load_market_file(file).settings["features"] == "long"
    file.write_text(f'features = "longer"\n{small_market()}')
    with pytest.raises(UsageError, match=r"home\.toml.*features"):
        load_market_file(file)


def test_rankers_of_other_features_than_the_market_names_are_refused(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((200, len(FEATURES))) - 0.5
    ridge = fit_ridge(rows, rows[:, 0], RidgeConfig())
    settings = {"market": "toy", "config": {"features": list(FEATURES), "networks": []}}
    made = Rankers({"ridge": ridge}, {"ridge": 1.0})
    file, sha = save_rankers(made, settings, tmp_path / "toy")
    with pytest.raises(DtmlError, match=r'other features.* "long"'):
        load_rankers(file, market="toy", sha=sha, feature_set="long")


def test_added_features_leave_the_others_as_they_were_and_one_can_be_asked_alone() -> None:
    panel = made_panel()
    usual, long = ranked_features(panel), ranked_features(panel, feature_set="long")
    assert (
        (usual.shape[-1], long.shape[-1]) == (len(FEATURES), len(FEATURE_SETS["long"])) == (46, 52)
    )
    np.testing.assert_array_equal(long[..., : len(FEATURES)], usual)
    few = ranked_features(panel, feature_set="long", names=("overnight_return_60",))
    column = list(FEATURE_SETS["long"]).index("overnight_return_60")
    np.testing.assert_array_equal(few[..., column], long[..., column])
    assert np.isfinite(few).any(axis=(0, 1)).sum() == 1
