"""Windows by hand: which sessions and prices they hold, in which order, and
what is known of each day.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from dtml.errors import DtmlError, UsageError
from dtml.features import Panel, features
from dtml.prices.returns import adjusted_price, labelled, published_labels, returns_between
from dtml.windows import WindowConfig, Windows, build_windows
from tests.support.bounds import assert_arrays_cast_to_float32, assert_arrays_close_in_float64
from tests.support.facts import in_order

STOCKS, INDEX = ("AAA", "BBB", "CCC"), "IDX"
SESSIONS = pd.bdate_range("2020-01-01", periods=48).as_unit("ns")
CONFIG = WindowConfig(window=3)


def made_bars() -> pd.DataFrame:
    """Bars of every stock and the index on all sessions but the last, which is still to come."""
    generator, parts = np.random.default_rng(5), []
    for symbol in (*STOCKS, INDEX):
        close = 50 * np.exp(np.cumsum(0.02 * generator.standard_normal(len(SESSIONS) - 1)))
        prices = {"open": close * 1.002, "high": close * 1.01, "low": close * 0.98, "close": close}
        parts.append(
            pd.DataFrame(
                {"symbol": symbol, "session": SESSIONS[:-1], **prices, "adj_close": close * 0.9}
            )
        )
    return pd.concat(parts, ignore_index=True).assign(volume=np.nan)


def build(bars: pd.DataFrame, config: WindowConfig = CONFIG) -> Windows:
    return build_windows(bars, sessions=SESSIONS, symbols=STOCKS, index_symbol=INDEX, config=config)


def without(bars: pd.DataFrame, symbols: list[str], places: list[int]) -> pd.DataFrame:
    return bars[~(bars["symbol"].isin(symbols) & bars["session"].isin(SESSIONS[places]))]


def test_a_window_holds_the_features_of_its_sessions_stock_by_stock_and_the_index_apart() -> None:
    windows = build(made_bars().sample(frac=1, random_state=2))
    wide = made_bars().pivot(index="session", columns="symbol")
    names = ("open", "high", "low", "close", "adj_close")
    seen = features(
        Panel(*(wide[name][[*STOCKS, INDEX]].to_numpy() for name in names)), z_close="adjusted"
    )
    assert windows.stocks.shape == (16, 3, 3, 11)
    assert windows.stocks.dtype == windows.index.dtype == windows.movement.dtype == torch.float32
    for day in range(16):
        first = 29 + day
        np.testing.assert_array_equal(
            windows.stocks[day], seen[first : first + 3, :3].swapaxes(0, 1).astype(np.float32)
        )
        np.testing.assert_array_equal(
            windows.index[day], seen[first : first + 3, 3].astype(np.float32)
        )
    assert list(windows.as_of) == list(SESSIONS[31:47])
    assert list(windows.target) == list(SESSIONS[32:48])
    assert (windows.symbols, windows.window, len(windows)) == (STOCKS, 3, 16)
    closes = wide["adj_close"][list(STOCKS)].to_numpy()
    assert_arrays_cast_to_float32(windows.movement[:-1], closes[32:] / closes[31:-1] - 1)


def test_the_rows_behind_the_windows_are_their_sessions_with_the_index_last() -> None:
    windows = build(made_bars())
    rows = windows.rows
    assert rows.shape == (18, 4, 11)
    for day in range(16):
        assert torch.equal(rows[day : day + 3, :3].movedim(1, 0), windows.stocks[day])
        assert torch.equal(rows[day : day + 3, 3], windows.index[day])
    assert windows.days(slice(0, 0)).stocks.shape == (0, 3, 3, 11)


def test_days_are_cut_out_with_both_ends() -> None:
    windows = build(made_bars())
    cut = windows.between(SESSIONS[35], SESSIONS[38])
    assert list(cut.target) == list(SESSIONS[35:39])
    assert list(cut.as_of) == list(SESSIONS[34:38])
    for name in ("stocks", "index", "observed"):
        assert torch.equal(getattr(cut, name), getattr(windows, name)[3:7])
    assert torch.equal(cut.movement, windows.movement[3:7])
    assert list(windows.between(last=SESSIONS[33]).target) == list(SESSIONS[32:34])
    assert list(windows.between(SESSIONS[46]).target) == list(SESSIONS[46:48])
    assert len(windows.between()) == 16


def test_the_digest_is_of_all_that_a_model_reads_and_of_nothing_else() -> None:
    windows = build(made_bars())
    other = {
        "rows": windows.rows * 2,
        "observed": ~windows.observed,
        "symbols": ("AAA", "BBB", "DDD"),
        "as_of": windows.as_of - pd.Timedelta(days=7),
    }
    digests = {replace(windows, **{name: value}).digest for name, value in other.items()} | {
        windows.digest
    }
    assert len(digests) == 5
    assert all(len(each) == 64 for each in digests)
    same = replace(
        windows, movement=windows.movement * 2, as_of=windows.as_of + pd.Timedelta(hours=1)
    )
    assert same.digest == build(made_bars()).digest == windows.digest


def test_only_members_are_observed() -> None:
    windows = build(without(made_bars(), ["AAA"], [40]))
    members = np.ones((16, 3), dtype=bool)
    members[:, 1] = False
    found = windows.only(members)
    assert not found.observed[:, 1].any()
    assert torch.equal(found.observed[:, [0, 2]], windows.observed[:, [0, 2]])
    assert windows.observed[:, 1].all()


@pytest.mark.parametrize(
    ("absent", "is_session"), [(["AAA"], True), (["AAA", "BBB"], False), ([INDEX], False)]
)
def test_a_session_has_a_bar_of_the_index_and_of_half_of_the_stocks(
    absent: list[str], is_session: bool
) -> None:
    """Of three stocks two are a quorum; of the two that are left where one was
    never listed, one is.
    """
    windows = build(without(made_bars(), absent, [40]))
    assert (SESSIONS[40] in windows.as_of) == is_session
    assert SESSIONS[40] in windows.target  # the exchange had it
    fewer = build(without(made_bars().query("symbol != 'CCC'"), absent, [40]))
    assert (SESSIONS[40] in fewer.as_of) == (absent == ["AAA"])
    assert not fewer.observed[:, 2].any()
    assert (fewer.stocks[:, 2] == 0).all()


def test_a_move_to_a_session_without_data_is_not_known_and_one_to_the_next_is() -> None:
    windows = build(without(made_bars(), [*STOCKS, INDEX], [40]))
    known = windows.movement.isfinite().all(dim=1).numpy()
    assert list(windows.as_of[~known]) == [SESSIONS[39], SESSIONS[46]]
    assert len(windows) == 15


def test_symbols_and_sessions_that_are_not_asked_for_change_nothing() -> None:
    bars = made_bars()
    more = pd.concat([bars[bars["symbol"] == "AAA"].assign(symbol="ZZZ", close=1.0), bars])
    later = bars[bars["session"] == SESSIONS[-2]].assign(
        session=SESSIONS[-2] + pd.Timedelta(days=300)
    )
    assert build(pd.concat([more, later])).digest == build(bars).digest


def test_a_day_is_there_only_with_a_whole_window_of_the_index_and_of_one_stock() -> None:
    bars = made_bars()
    late = build(without(bars, [INDEX], list(range(4))))
    assert late.as_of[0] == SESSIONS[35]
    assert build(without(bars, list(STOCKS), [0])).as_of[0] == SESSIONS[32]
    one = build(without(bars, ["AAA"], [0]))
    assert one.as_of[0] == SESSIONS[31]
    assert one.observed[:2].tolist() == [[False, True, True], [True, True, True]]
    last = build(without(bars, ["AAA", "BBB"], [0]))
    assert last.as_of[0] == SESSIONS[31]
    assert last.observed[:2].tolist() == [[False, False, True], [True, True, True]]
    # the index is there, and no stock
    halted = without(without(bars, ["BBB", "CCC"], [0]), ["AAA"], list(range(1, 7)))
    assert build(halted).as_of[0] == SESSIONS[32]


def test_days_end_where_the_index_changes_its_unit_and_no_window_hangs_over() -> None:
    bars = made_bars()
    later = (bars["symbol"] == INDEX) & (bars["session"] >= SESSIONS[45])
    bars.loc[later, ["open", "high", "low", "close", "adj_close"]] /= 3
    windows = build(bars, WindowConfig(window=3, max_return=0.35))
    assert windows.as_of[-1] == SESSIONS[44]
    assert (
        len(windows.stocks)
        == len(windows.index)
        == len(windows.observed)
        == len(windows.movement)
        == len(windows)
    )
    whole = build(made_bars())
    assert torch.equal(windows.stocks, whole.stocks[: len(windows)])


def test_the_largest_move_is_none_or_a_number_and_a_window_one_session_or_more() -> None:
    assert WindowConfig().largest_return == np.inf
    assert WindowConfig(max_return=0.3).largest_return == 0.3
    assert (WindowConfig().window, WindowConfig().history, WindowConfig(window=1).history) == (
        10,
        39,
        30,
    )
    assert (WindowConfig().z_close, WindowConfig().returns) == ("adjusted", "adj_close")
    with pytest.raises(UsageError, match=r"^window .*1 session.* 0$"):
        WindowConfig(window=0)


def test_labels_at_the_papers_thresholds() -> None:
    change = np.array([[0.0055, 0.00549, -0.005, -0.00499, 0.0, np.nan, np.inf]])
    assert published_labels(change).tolist() == [[1, 0, -1, 0, 0, 0, 1]]
    assert labelled(change, "published").tolist() == [
        [True, False, True, False, False, False, False]
    ]
    assert labelled(change, "all").tolist() == [[True, True, True, True, True, False, False]]


def test_moves_between_sessions_by_hand() -> None:
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


def test_too_few_sessions_say_how_many_there_are_and_how_many_it_takes() -> None:
    facts = ("window of 3 sessions: ", " 32 sessions ", " IDX ", "3 stocks", "31 sessions, 31 of")
    bars = made_bars()
    with pytest.raises(DtmlError, match=in_order(*facts)):
        build(bars[bars["session"] < SESSIONS[31]])
    assert len(build(bars[bars["session"] < SESSIONS[32]])) == 1
    with pytest.raises(DtmlError, match="31 sessions, 30 of"):
        build(bars[bars["session"] < SESSIONS[31]].iloc[:-1])
