"""Windows by hand: which sessions and prices they hold, in which order, and
what is known of each day.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from dtml.errors import DtmlError
from dtml.features import Panel, features
from dtml.prices.returns import adjusted_price, returns_between
from dtml.windows import WindowConfig, build_windows
from tests.support.bounds import assert_arrays_cast_to_float32, assert_arrays_close_in_float64
from tests.support.facts import in_order
from tests.support.windows import random_bars

STOCKS, INDEX = ("AAA", "BBB", "CCC"), "IDX"
SESSIONS = pd.bdate_range("2020-01-01", periods=48).as_unit("ns")
CONFIG = WindowConfig(window=3)


def made_bars():
    """Bars on all sessions but the last, which is still to come."""
    return random_bars((*STOCKS, INDEX), SESSIONS[:-1])


def build(bars, config=CONFIG):
    return build_windows(bars, sessions=SESSIONS, symbols=STOCKS, index_symbol=INDEX, config=config)


def without(bars, symbols, places):
    return bars[~(bars["symbol"].isin(symbols) & bars["session"].isin(SESSIONS[places]))]


def test_a_window_holds_the_features_of_its_sessions_stock_by_stock_and_the_index_apart():
    windows = build(made_bars().sample(frac=1, random_state=2))
    wide = made_bars().pivot(index="session", columns="symbol")
    names = ("open", "high", "low", "close", "adj_close")
    panel = Panel(*(wide[name][[*STOCKS, INDEX]].to_numpy() for name in names))
    seen = features(panel, z_close="adjusted").astype(np.float32)
    assert windows.stocks.shape == (16, 3, 3, 11)
    for day, first in enumerate(range(29, 45)):
        window = seen[first : first + 3]
        np.testing.assert_array_equal(windows.stocks[day], window[:, :3].swapaxes(0, 1))
        np.testing.assert_array_equal(windows.index[day], window[:, 3])
    assert list(windows.as_of) == list(SESSIONS[31:47])
    assert list(windows.target) == list(SESSIONS[32:48])
    closes = wide["adj_close"][list(STOCKS)].to_numpy()
    assert_arrays_cast_to_float32(windows.movement[:-1], closes[32:] / closes[31:-1] - 1)


def test_days_are_cut_out_with_both_ends():
    windows = build(made_bars())
    cut = windows.between(SESSIONS[35], SESSIONS[38])
    assert list(cut.target) == list(SESSIONS[35:39])
    for name in ("stocks", "index", "observed", "movement"):
        assert torch.equal(getattr(cut, name), getattr(windows, name)[3:7])
    assert list(windows.between(last=SESSIONS[33]).target) == list(SESSIONS[32:34])
    assert list(windows.between(SESSIONS[46]).target) == list(SESSIONS[46:48])


def test_the_digest_is_of_all_that_a_model_reads_and_of_nothing_else():
    windows = build(made_bars())
    others = (
        {"rows": windows.rows * 2},
        {"observed": ~windows.observed},
        {"symbols": ("AAA", "BBB", "DDD")},
        {"as_of": windows.as_of - pd.Timedelta(days=7)},
    )
    assert len({windows.digest, *(replace(windows, **each).digest for each in others)}) == 5
    same = replace(windows, movement=windows.movement * 2)
    assert same.digest == build(made_bars()).digest == windows.digest


def test_a_session_has_a_bar_of_the_index_and_of_half_of_the_stocks():
    """Of three stocks two are a quorum; of the two that are left where one was
    never listed, one is.
    """
    two = made_bars().query("symbol != 'CCC'")
    for absent, of_three, of_two in (
        (["AAA"], True, True),
        (["AAA", "BBB"], False, False),
        ([INDEX], False, False),
    ):
        windows, fewer = (build(without(bars, absent, [40])) for bars in (made_bars(), two))
        assert (SESSIONS[40] in windows.as_of, SESSIONS[40] in fewer.as_of) == (of_three, of_two)
        assert SESSIONS[40] in windows.target  # the exchange had it
        assert not fewer.observed[:, 2].any()
        assert (fewer.stocks[:, 2] == 0).all()


def test_a_move_to_a_session_without_data_is_not_known_and_one_to_the_next_is():
    windows = build(without(made_bars(), [*STOCKS, INDEX], [40]))
    known = windows.movement.isfinite().all(dim=1).numpy()
    assert list(windows.as_of[~known]) == [SESSIONS[39], SESSIONS[46]]
    assert len(windows) == 15


def test_symbols_and_sessions_that_are_not_asked_for_change_nothing():
    bars = made_bars()
    more = pd.concat([bars[bars["symbol"] == "AAA"].assign(symbol="ZZZ", close=1.0), bars])
    later = bars[bars["session"] == SESSIONS[-2]].assign(
        session=SESSIONS[-2] + pd.Timedelta(days=300)
    )
    assert build(pd.concat([more, later])).digest == build(bars).digest


def test_a_day_is_there_only_with_a_whole_window_of_the_index_and_of_one_stock():
    bars = made_bars()
    assert build(without(bars, [INDEX], list(range(4)))).as_of[0] == SESSIONS[35]
    last = build(without(bars, ["AAA", "BBB"], [0]))
    assert last.as_of[0] == SESSIONS[31]
    assert last.observed[:2].tolist() == [[False, False, True], [True, True, True]]
    # the index is there, and no stock
    halted = without(without(bars, ["BBB", "CCC"], [0]), ["AAA"], list(range(1, 7)))
    assert build(halted).as_of[0] == SESSIONS[32]


def test_days_end_where_the_index_changes_its_unit_and_no_window_hangs_over():
    bars = made_bars()
    later = (bars["symbol"] == INDEX) & (bars["session"] >= SESSIONS[45])
    bars.loc[later, ["open", "high", "low", "close", "adj_close"]] /= 3
    windows = build(bars, WindowConfig(window=3, max_return=0.35))
    assert windows.as_of[-1] == SESSIONS[44]
    whole = build(made_bars())
    assert torch.equal(windows.stocks, whole.stocks[: len(windows)])


def test_moves_between_sessions_by_hand():
    """B has no adjusted close at all, so its returns come from the close; of A
    one session is missing.
    """
    days = SESSIONS[:3]
    bars = pd.DataFrame({"symbol": list("AABBB"), "session": days[[0, 2, 0, 1, 2]]})
    bars = bars.assign(
        close=[10.0, 20, 4, 5, 8], adj_close=[8.0, 20, np.nan, np.nan, np.nan], volume=1.0
    )
    assert adjusted_price(bars, "adj_close").tolist() == [8, 20, 4, 5, 8]
    assert adjusted_price(bars, "close").tolist() == [10, 20, 4, 5, 8]
    found = returns_between(bars, days[[0, 1, 0]], days[[1, 2, 2]], ("B", "C", "A"), "adj_close")
    assert_arrays_close_in_float64(
        found, [[0.25, np.nan, np.nan], [0.6, np.nan, np.nan], [1, np.nan, 1.5]]
    )
    assert returns_between(bars, days[[0]], days[[2]], ("A",), "close").tolist() == [[1]]


def test_too_few_sessions_say_how_many_there_are_and_how_many_it_takes():
    facts = ("window of 3 sessions: ", " 32 sessions ", " IDX ", "3 stocks", "31 sessions, 31 of")
    bars = made_bars()
    with pytest.raises(DtmlError, match=in_order(*facts)):
        build(bars[bars["session"] < SESSIONS[31]])
    assert len(build(bars[bars["session"] < SESSIONS[32]])) == 1
