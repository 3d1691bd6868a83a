"""Rankings of returns over ten and twenty sessions: the features of continuation
against plain pandas, and what a training may know of the days that it scores.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dtml.errors import DtmlError
from dtml.ranking.features import FEATURE_SETS, FEATURES, Bars
from dtml.ranking.models import RidgeConfig, fit_ridge
from dtml.ranking.outcomes import LEGS, outcomes
from dtml.ranking.panel import Panel
from dtml.ranking.rankers import Rankers, load_rankers, save_rankers
from dtml.ranking.walk import History, folds
from tests.support.bounds import assert_arrays_close_in_float64
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


def test_rankers_of_other_features_than_the_market_names_are_refused(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((200, len(FEATURES))) - 0.5
    ridge = fit_ridge(rows, rows[:, 0], RidgeConfig())
    settings = {"market": "toy", "config": {"features": list(FEATURES), "networks": []}}
    made = Rankers({"ridge": ridge}, {"ridge": 1.0})
    file, sha = save_rankers(made, settings, tmp_path / "toy")
    with pytest.raises(DtmlError, match=r'other features.* "long"'):
        load_rankers(file, market="toy", sha=sha, feature_set="long")
