"""Features and windows: equal to the reference, and blind to everything after `as_of`."""

import numpy as np
import pandas as pd
import pytest
import torch

from dtml.errors import DtmlError
from dtml.features import FEATURES, HISTORY, MAX_GAP, Panel, features, returns
from dtml.windows import WindowConfig, Windows, build_windows
from tests.support.bounds import assert_close_in_float32, in_float64
from tests.support.places import SHARED

needs_shared = pytest.mark.skipif(
    not (SHARED / "reference").is_dir(), reason="shared data is not beside this clone"
)

STOCKS = ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF", "GGG")
INDEX = "IDX"
WINDOW = 5
SESSIONS = pd.bdate_range("2020-01-01", periods=83).as_unit("ns")
CONFIG = WindowConfig(window=WINDOW)


def made_bars(seed: int = 0, sessions: pd.DatetimeIndex = SESSIONS) -> pd.DataFrame:
    """Bars of a random walk for every stock and the index on all sessions but
    the last, which is still to come.
    """
    generator = np.random.default_rng(seed)
    parts = []
    for symbol in (*STOCKS, INDEX):
        close = 50 * np.exp(np.cumsum(0.02 * generator.standard_normal(len(sessions) - 1)))
        columns = {
            "open": close * 1.001,
            "high": close * 1.01,
            "low": close * 0.99,
            "close": close,
            "adj_close": close,
        }
        parts.append(pd.DataFrame({"symbol": symbol, "session": sessions[:-1], **columns}))
    return pd.concat(parts, ignore_index=True).assign(volume=np.nan)


def build(bars: pd.DataFrame, config: WindowConfig = CONFIG) -> Windows:
    return build_windows(bars, sessions=SESSIONS, symbols=STOCKS, index_symbol=INDEX, config=config)


def panel_of(bars: pd.DataFrame, symbols: list[str]) -> Panel:
    wide = bars.pivot(index="session", columns="symbol")
    return Panel(
        *(
            wide[name][symbols].to_numpy(float)
            for name in ("open", "high", "low", "close", "adj_close")
        )
    )


@pytest.mark.slow
@needs_shared
@pytest.mark.parametrize(("name", "rows_without_history"), [("kdd17", 1450), ("acl18", 758)])
def test_features_and_labels_equal_the_reference_oracle(
    name: str, rows_without_history: int
) -> None:
    """fulifeng/Adv-ALSTM's preprocessed features; -123321 marks the rows
    without 30 days of history.
    """
    prices = pd.read_parquet(SHARED / "prices" / f"{name}.parquet").rename(
        columns={"date": "session"}
    )
    reference = pd.read_parquet(SHARED / "reference" / f"{name}_ourpped.parquet")
    symbols = sorted(prices["symbol"].astype(str).unique())
    prices["symbol"] = prices["symbol"].astype(str)
    ours = features(panel_of(prices, symbols), z_close="raw")
    sessions = pd.DatetimeIndex(sorted(prices["session"].unique()))
    at = (
        sessions.get_indexer(reference["date"]),
        pd.Index(symbols).get_indexer(reference["symbol"].astype(str)),
    )
    expected = reference.iloc[:, 2:13].to_numpy(float)
    missing = (expected == -123321).all(axis=1)
    assert missing.sum() == rows_without_history
    assert np.isnan(ours[at]).any(axis=1).tolist() == missing.tolist()
    assert np.abs(ours[at] - expected)[~missing].max() < 1e-5
    change = ours[at][~missing, FEATURES.index("z_adj_close")]
    label = np.select([change >= 0.55, change <= -0.5], [1, -1], default=0)
    assert (label == reference["label"].to_numpy()[~missing]).all()


@pytest.mark.slow
@needs_shared
def test_features_and_labels_of_ni225_equal_those_of_its_authors() -> None:
    """Theirs begin with a history that the public prices lack: 30 sessions are not compared."""
    prices = pd.read_parquet(SHARED / "prices/ni225_paper.parquet").rename(
        columns={"date": "session"}
    )
    prices["symbol"] = prices["symbol"].astype(str)
    reference = pd.read_parquet(SHARED / "reference/ni225_ourpped.parquet").astype({"symbol": str})
    symbols = sorted(prices["symbol"].unique())
    reference = reference[reference["symbol"].isin(symbols)]  # not the index
    sessions = pd.DatetimeIndex(sorted(prices["session"].unique()))
    day = sessions.get_indexer(reference["date"])
    ours = features(panel_of(prices, symbols), z_close="raw")
    ours = ours[day, pd.Index(symbols).get_indexer(reference["symbol"])]
    is_late = day >= HISTORY - 1
    assert is_late.sum() == 51 * (856 - HISTORY + 1)
    expected = reference[[f"f{number}" for number in range(1, 12)]].to_numpy(float)
    assert np.abs(ours - expected)[is_late].max() < 1e-5
    change = ours[is_late, FEATURES.index("z_adj_close")]
    label = np.select([change >= 0.55, change <= -0.5], [1, -1], default=0)
    assert (label == reference["label"].to_numpy()[is_late]).all()


def test_changing_any_price_after_as_of_changes_no_input() -> None:
    bars = made_bars()
    before = build(bars)
    as_of = before.as_of[20]
    later = bars["session"] > as_of
    bars.loc[later, ["open", "high", "low", "close", "adj_close"]] *= np.random.default_rng(
        1
    ).uniform(0.5, 2, (later.sum(), 5))
    after = build(bars)
    seen = int((before.as_of <= as_of).sum())
    assert seen == 21
    for name in ("stocks", "index", "observed"):
        assert torch.equal(getattr(after, name)[:seen], getattr(before, name)[:seen])
    assert not torch.equal(after.stocks[seen:], before.stocks[seen:])
    assert torch.equal(after.movement[: seen - 1], before.movement[: seen - 1])


def test_bars_that_come_or_fail_to_come_after_as_of_change_no_input() -> None:
    bars = made_bars()
    before = build(bars)
    as_of = before.as_of[20]
    absent = (bars["session"] > as_of) & bars["symbol"].isin(STOCKS[:4])
    listed = bars[bars["symbol"] == "GGG"].assign(symbol="HHH")
    after = build_windows(
        pd.concat([bars[~absent], listed]),
        sessions=SESSIONS,
        symbols=STOCKS,
        index_symbol=INDEX,
        config=CONFIG,
    )
    for name in ("stocks", "index", "observed"):
        assert torch.equal(getattr(after, name)[:21], getattr(before, name)[:21])
    assert after.as_of[:21].equals(before.as_of[:21])


def test_the_target_session_is_the_next_one_and_its_row_is_never_input() -> None:
    windows = build(made_bars())
    assert (windows.as_of[1:] == windows.target[:-1]).all()
    assert windows.target[-1] == SESSIONS[-1]
    assert windows.movement[-1].isnan().all()
    last_move = windows.stocks[1:, :, -1, FEATURES.index("z_adj_close")]
    assert_close_in_float32(100 * windows.movement[:-1], last_move)


def test_a_night_reads_the_same_from_the_few_sessions_it_needs() -> None:
    bars = made_bars()
    whole = build(bars)
    needed = SESSIONS[:-1][-CONFIG.history :]
    few = build(bars[bars["session"].isin(needed)])
    assert len(few) == 1
    assert torch.equal(few.stocks[0], whole.stocks[-1])
    assert torch.equal(few.index[0], whole.index[-1])


def test_windows_are_views_of_one_panel() -> None:
    windows = build(made_bars())
    assert windows.between(windows.target[3], windows.target[7]).target.equals(windows.target[3:8])


def test_missing_history_is_a_mask() -> None:
    bars = made_bars()
    listed = SESSIONS[20]
    bars = bars[~((bars["symbol"] == "CCC") & (bars["session"] < listed))]
    windows = build(bars)
    first_seen = windows.as_of[windows.observed[:, 2].numpy()][0]
    assert SESSIONS.get_loc(first_seen) == 20 + CONFIG.history - 1
    others = [0, 1, 3, 4, 5, 6]
    assert windows.observed[:, others].all()


def test_a_missing_bar_masks_its_stock_while_it_is_in_the_window_and_leaves_two_moves_unknown() -> (
    None
):
    bars = made_bars()
    missing = SESSIONS[60]
    windows = build(bars[~((bars["symbol"] == "BBB") & (bars["session"] == missing))])
    hidden = windows.as_of[~windows.observed[:, 1].numpy()]
    assert list(hidden) == list(SESSIONS[60 : 60 + WINDOW])
    unknown = windows.target[windows.movement[:, 1].isnan().numpy()]
    assert list(unknown) == [SESSIONS[60], SESSIONS[61], SESSIONS[-1]]


def test_a_longer_gap_than_allowed_starts_history_anew() -> None:
    bars = made_bars()
    gone = SESSIONS[40 : 40 + MAX_GAP + 1]
    kept = bars[~((bars["symbol"] == "BBB") & bars["session"].isin(gone))]
    found = features(panel_of(kept, ["BBB"]), z_close="raw")[:, 0]
    complete = np.flatnonzero(np.isfinite(found).all(axis=-1))
    assert set(range(40 + MAX_GAP + 1, 40 + MAX_GAP + HISTORY)).isdisjoint(complete)
    assert 40 + MAX_GAP + HISTORY in complete


@pytest.mark.parametrize(("missing", "crossed"), [(5, True), (6, False)])
def test_a_gap_of_five_sessions_is_crossed_and_behind_a_longer_one_each_feature_waits_for_its_bars(
    missing: int, crossed: bool
) -> None:
    price = np.linspace(100, 160, 97)[:, None]
    price[50 : 50 + missing] = np.nan
    found = np.isfinite(
        features(Panel(price, price, price, price, price), z_close="raw")[50 + missing :, 0]
    )
    first = [int(np.flatnonzero(each)[0]) for each in found.T]
    assert first == ([0] * 11 if crossed else [0, 0, 0, 1, 1, 4, 9, 14, 19, 24, 29])


def test_the_features_have_their_names_and_their_order() -> None:
    averages = ("z_d5", "z_d10", "z_d15", "z_d20", "z_d25", "z_d30")
    assert ("z_open", "z_high", "z_low", "z_close", "z_adj_close", *averages) == FEATURES


def test_thirty_bars_are_history_enough_and_averages_are_over_the_last_bars() -> None:
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


def test_a_move_as_large_as_allowed_is_a_move_and_a_larger_one_is_none() -> None:
    price = np.array([[100.0], [150.0], [240.0], [240.0]])
    panel = Panel(price, price, price, price, price)
    np.testing.assert_array_equal(returns(panel, 0.5)[:, 0], [np.nan, 0.5, np.nan, 0])
    found = features(panel, z_close="raw", max_return=0.5)[:, 0]
    np.testing.assert_array_equal(found[:, FEATURES.index("z_adj_close")], [np.nan, 50, np.nan, 0])


def test_a_dividend_stays_in_the_move_of_the_close_and_a_spin_off_does_not() -> None:
    """The close changes by 1 % and -6 %, the adjusted close by 2.5 % and 2 %."""
    close, adjusted = np.array([[100.0], [101.0], [94.94]]), np.array([[100.0], [102.5], [104.55]])
    found = features(Panel(close, close, close, close, adjusted), z_close="adjusted")[1:, 0]
    assert found[:, FEATURES.index("z_close")] == in_float64([1, 2])
    assert found[:, FEATURES.index("z_adj_close")] == in_float64([2.5, 2])


def test_a_session_without_a_quorum_is_no_session_and_moves_do_not_span_it() -> None:
    bars = made_bars()
    holiday = SESSIONS[50]
    absent = (bars["session"] == holiday) & bars["symbol"].isin([*STOCKS[:4], INDEX])
    windows = build(bars[~absent])
    assert holiday not in windows.as_of
    assert windows.observed.all()
    day = windows.as_of.get_loc(SESSIONS[49])
    assert windows.movement[day].isnan().all()


def test_an_unrecorded_split_is_no_move_and_no_feature_reaches_across_it() -> None:
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


@pytest.mark.parametrize(("z_close", "seen"), [("raw", -50.0), ("adjusted", 0.0)])
def test_a_split_goes_through_the_adjusted_close_where_asked(z_close: str, seen: float) -> None:
    close = np.full((40, 1), 100.0)
    close[35:] = 50.0
    flat = np.full((40, 1), 100.0)
    found = features(Panel(close, close, close, close, flat), z_close=z_close)
    assert found[35, 0, FEATURES.index("z_close")] == in_float64(seen)
    assert found[35, 0, FEATURES.index("z_adj_close")] == in_float64(0.0)
    assert (found[29:35, 0] == 0).all()


def test_a_stock_without_any_adjusted_close_has_its_moves_from_the_close() -> None:
    bars = made_bars()
    bars.loc[bars["symbol"] == "AAA", "adj_close"] = np.nan
    assert torch.equal(build(bars).stocks, build(made_bars()).stocks)
    bars.loc[bars["symbol"] == "BBB", "adj_close"] *= 2.0
    by_close = build(bars, WindowConfig(window=WINDOW, returns="close"))
    assert torch.equal(by_close.stocks, build(made_bars()).stocks)


def test_labels_follow_the_papers_thresholds_and_a_tie_is_a_fall() -> None:
    windows = build(made_bars()).days(slice(0, 1))
    returns = torch.tensor(
        [[0.0055, 0.0054, 0.0, -0.0049, -0.0050, torch.nan, 0.02]], dtype=torch.float64
    )
    windows.movement.copy_(returns.float())
    assert windows.labelled("published")[0].tolist() == [
        True,
        False,
        False,
        False,
        True,
        False,
        True,
    ]
    assert windows.labelled("all")[0].tolist() == [True, True, True, True, True, False, True]
    assert windows.rises()[0].tolist() == [True, True, False, False, False, False, True]


def test_too_little_history_says_what_is_needed() -> None:
    bars = made_bars()
    with pytest.raises(DtmlError, match="needs 34 sessions"):
        build(bars[bars["session"] < SESSIONS[30]])
