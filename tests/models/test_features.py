"""Features and windows: equal to the reference, and blind to everything after `as_of`."""

import numpy as np
import pandas as pd
import pytest
import torch

from dtml.features import FEATURES, Panel, features, returns
from dtml.prices.returns import published_labels
from dtml.windows import WindowConfig, build_windows
from tests.support.bounds import assert_close_in_float32, in_float64
from tests.support.places import SHARED
from tests.support.windows import random_bars

needs_shared = pytest.mark.skipif(
    not (SHARED / "reference").is_dir(), reason="shared data is not beside this clone"
)

STOCKS = ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF", "GGG")
INDEX = "IDX"
WINDOW = 5
SESSIONS = pd.bdate_range("2020-01-01", periods=83).as_unit("ns")
CONFIG = WindowConfig(window=WINDOW)


def made_bars():
    """Bars on all sessions but the last, which is still to come."""
    return random_bars((*STOCKS, INDEX), SESSIONS[:-1])


def build(bars, config=CONFIG):
    return build_windows(bars, sessions=SESSIONS, symbols=STOCKS, index_symbol=INDEX, config=config)


def panel_of(bars, symbols):
    wide = bars.pivot(index="session", columns="symbol")
    return Panel(
        *(
            wide[name][symbols].to_numpy(float)
            for name in ("open", "high", "low", "close", "adj_close")
        )
    )


def test_a_night_reads_the_same_from_the_few_sessions_it_needs():
    bars = made_bars()
    whole = build(bars)
    needed = SESSIONS[:-1][-CONFIG.history :]
    few = build(bars[bars["session"].isin(needed)])
    assert len(few) == 1
    assert torch.equal(few.stocks[0], whole.stocks[-1])
    assert torch.equal(few.index[0], whole.index[-1])


def test_a_missing_bar_masks_its_stock_while_it_is_in_the_window_and_leaves_two_moves_unknown():
    bars = made_bars()
    missing = SESSIONS[60]
    windows = build(bars[~((bars["symbol"] == "BBB") & (bars["session"] == missing))])
    hidden = windows.as_of[~windows.observed[:, 1].numpy()]
    assert list(hidden) == list(SESSIONS[60 : 60 + WINDOW])
    unknown = windows.target[windows.movement[:, 1].isnan().numpy()]
    assert list(unknown) == [SESSIONS[60], SESSIONS[61], SESSIONS[-1]]


@pytest.mark.parametrize(("missing", "crossed"), [(5, True), (6, False)])
def test_a_gap_of_five_sessions_is_crossed_and_behind_a_longer_one_each_feature_waits_for_its_bars(
    missing, crossed
):
    price = np.linspace(100, 160, 97)[:, None]
    price[50 : 50 + missing] = np.nan
    found = np.isfinite(
        features(Panel(price, price, price, price, price), z_close="raw")[50 + missing :, 0]
    )
    first = [int(np.flatnonzero(each)[0]) for each in found.T]
    assert first == ([0] * 11 if crossed else [0, 0, 0, 1, 1, 4, 9, 14, 19, 24, 29])


def test_thirty_bars_are_history_enough_and_averages_are_over_the_last_bars():
    price = np.arange(100.0, 130.0)[:, None]
    found = features(Panel(price + 1, price + 2, price - 1, price, price), z_close="raw")[-1, 0]
    by_hand = [
        1 / 129,
        2 / 129,
        -1 / 129,
        1 / 128,
        1 / 128,
        *(-(count - 1) / 2 / 129 for count in (5, 10, 15, 20, 25, 30)),
    ]
    assert found == in_float64([100 * each for each in by_hand])


def test_a_move_as_large_as_allowed_is_a_move_and_a_larger_one_is_none():
    price = np.array([[100.0], [150.0], [240.0], [240.0]])
    panel = Panel(price, price, price, price, price)
    np.testing.assert_array_equal(returns(panel, 0.5)[:, 0], [np.nan, 0.5, np.nan, 0])
    found = features(panel, z_close="raw", max_return=0.5)[:, 0]
    np.testing.assert_array_equal(found[:, FEATURES.index("z_adj_close")], [np.nan, 50, np.nan, 0])


def test_a_dividend_stays_in_the_move_of_the_close_and_a_spin_off_does_not():
    """The close changes by 1 % and -6 %, the adjusted close by 2.5 % and 2 %."""
    close, adjusted = np.array([[100.0], [101.0], [94.94]]), np.array([[100.0], [102.5], [104.55]])
    found = features(Panel(close, close, close, close, adjusted), z_close="adjusted")[1:, 0]
    assert found[:, FEATURES.index("z_close")] == in_float64([1, 2])
    assert found[:, FEATURES.index("z_adj_close")] == in_float64([2.5, 2])


def test_an_unrecorded_split_is_no_move_and_no_feature_reaches_across_it():
    bars = made_bars()
    split = SESSIONS[45]
    after = (bars["symbol"] == "AAA") & (bars["session"] >= split)
    bars.loc[after, ["open", "high", "low", "close", "adj_close"]] /= 2
    windows = build(bars, WindowConfig(window=WINDOW, max_return=0.35))
    assert windows.movement[windows.target.get_loc(split), 0].isnan()
    hidden = windows.as_of[~windows.observed[:, 0].numpy()]
    assert hidden[0] == split
    assert len(hidden) == CONFIG.history - 1
    assert windows.stocks[windows.observed].abs().max() < 35


def test_a_stock_without_any_adjusted_close_has_its_moves_from_the_close():
    bars = made_bars()
    bars.loc[bars["symbol"] == "AAA", "adj_close"] = np.nan
    assert torch.equal(build(bars).stocks, build(made_bars()).stocks)
    bars.loc[bars["symbol"] == "BBB", "adj_close"] *= 2.0
    by_close = build(bars, WindowConfig(window=WINDOW, returns="close"))
    assert torch.equal(by_close.stocks, build(made_bars()).stocks)


def test_labels_follow_the_papers_thresholds_and_a_tie_is_a_fall():
    windows = build(made_bars()).days(slice(0, 1))
    returns = [0.0055, 0.0054, 0.0, -0.0049, -0.0050, torch.nan, 0.02]
    windows.movement.copy_(torch.tensor([returns], dtype=torch.float64).float())
    for flags, stocks in (
        (windows.labelled("published"), [0, 4, 6]),
        (windows.labelled("all"), [0, 1, 2, 3, 4, 6]),
        (windows.rises(), [0, 1, 6]),
    ):
        assert flags[0].nonzero().flatten().tolist() == stocks


@pytest.mark.slow
@needs_shared
@pytest.mark.parametrize(
    ("name", "prices_of", "without_history"),
    [("kdd17", "kdd17", 1450), ("acl18", "acl18", 758), ("ni225", "ni225_paper", 29 * 51)],
)
def test_features_and_labels_equal_those_of_their_authors(name, prices_of, without_history):
    """Of fulifeng/Adv-ALSTM, where -123321 marks rows without 30 days of history; those of ni225
    begin with a history that the public prices lack.
    """
    prices = pd.read_parquet(SHARED / "prices" / f"{prices_of}.parquet").astype({"symbol": str})
    prices = prices.rename(columns={"date": "session"})
    symbols = sorted(prices["symbol"].unique())
    reference = pd.read_parquet(SHARED / "reference" / f"{name}_ourpped.parquet")
    reference = reference[reference["symbol"].astype(str).isin(symbols)]  # not the index
    sessions = pd.DatetimeIndex(sorted(prices["session"].unique()))
    day = sessions.get_indexer(reference["date"])
    stock = pd.Index(symbols).get_indexer(reference["symbol"].astype(str))
    ours = features(panel_of(prices, symbols), z_close="raw")[day, stock]
    expected = reference.iloc[:, 2:13].to_numpy(float)
    known = np.isfinite(ours).all(axis=1)
    assert (~known).sum() == without_history
    assert not (expected[known] == -123321).any()
    assert np.abs(ours - expected)[known].max() < 1e-5
    labels = published_labels(ours[known, FEATURES.index("z_adj_close")] / 100)
    assert (labels == reference["label"].to_numpy()[known]).all()


@pytest.mark.parametrize("change", ["prices", "bars"])
def test_nothing_that_comes_after_as_of_changes_an_input(change):
    bars = made_bars()
    before = build(bars)
    later = bars["session"] > before.as_of[20]
    if change == "prices":
        factors = np.random.default_rng(1).uniform(0.5, 2, (later.sum(), 5))
        bars.loc[later, ["open", "high", "low", "close", "adj_close"]] *= factors
    else:
        listed = bars[bars["symbol"] == "GGG"].assign(symbol="HHH")
        bars = pd.concat([bars[~(later & bars["symbol"].isin(STOCKS[:4]))], listed])
    after = build(bars)
    for name in ("stocks", "index", "observed"):
        assert torch.equal(getattr(after, name)[:21], getattr(before, name)[:21])
    assert torch.equal(after.movement[:20], before.movement[:20])
    assert not torch.equal(after.stocks[21:], before.stocks[21:])


def test_the_target_session_is_the_next_one_and_its_row_is_never_input():
    windows = build(made_bars())
    assert (windows.as_of[1:] == windows.target[:-1]).all()
    assert windows.target[-1] == SESSIONS[-1]
    assert windows.movement[-1].isnan().all()
    last_move = windows.stocks[1:, :, -1, FEATURES.index("z_adj_close")]
    assert_close_in_float32(100 * windows.movement[:-1], last_move)
