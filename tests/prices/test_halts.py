"""A halt that the source fills with bars of volume 0 is a halt: what nobody traded is no price."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.portfolio import Strategy, equal_weight_track, follow
from dtml.backtest.quotes import Quotes
from dtml.markets import load_market
from dtml.markets.definition import FREE, Constituent, Index
from dtml.prices.bars import PRICES, bars_frame
from dtml.prices.returns import index_of_constituents, returns_between, returns_of, traded
from dtml.ranking.outcomes import LEGS, outcomes
from dtml.ranking.panel import panel_of
from dtml.windows import WindowConfig, build_windows
from tests.support.panels import SESSIONS, made_bars

INDEX, SYMBOLS = "S06", tuple(f"S{i:02d}" for i in range(6))
DAYS = SESSIONS[60:200]
HALTS = {"S03": (10, 14), "S04": (30, 31), "S05": (40, 125)}  # places in DAYS, both included


def bars_of_market():
    """Bars of six stocks, three of which are halted on `HALTS`, and of an index.

    The index has a volume on its first session alone.
    """
    bars = made_bars()
    bars = bars[bars["session"].isin(DAYS)]
    is_later = (bars["symbol"] == INDEX) & (bars["session"] > DAYS[0])
    bars["volume"] = bars["volume"].mask(is_later, 0.0)
    for symbol, (first, last) in HALTS.items():
        halted = bars["session"].between(DAYS[first], DAYS[last])
        bars = bars[~((bars["symbol"] == symbol) & halted)]
    return bars_frame(bars)


def filled(bars):
    """The same bars, with each halt filled as sources do: the last close, and a volume of 0."""
    fills = []
    for symbol, (first, last) in HALTS.items():
        of_symbol = bars[bars["symbol"] == symbol]
        before = of_symbol[of_symbol["session"] < DAYS[first]].iloc[-1]
        fill = pd.DataFrame({"symbol": symbol, "session": DAYS[first : last + 1], "volume": 0.0})
        fills.append(
            fill.assign(**dict.fromkeys(PRICES, before["close"]), adj_close=before["adj_close"])
        )
    return bars_frame(pd.concat([bars, *fills])).sample(frac=1, random_state=1)


def everything(bars):
    """What rankings, models, nights, backtests, the paper account and indices read of bars."""
    panel = panel_of(bars, sessions=DAYS, symbols=SYMBOLS, returns="adj_close")
    windows = build_windows(
        bars,
        sessions=SESSIONS[60:201],
        symbols=SYMBOLS,
        index_symbol=INDEX,
        config=WindowConfig(window=3),
    )
    quotes = Quotes.of(bars, DAYS, SYMBOLS, "adj_close", max_return=0.3)
    pairs = pd.DataFrame({"as_of": DAYS[:-1], "target": DAYS[1:]})
    rows = pairs.merge(pd.DataFrame({"symbol": SYMBOLS}), how="cross")
    market = replace(
        load_market("simulated"),
        index=Index(symbol=INDEX, source_symbol=INDEX, name="Index", of_constituents=True),
        constituents=tuple(Constituent(symbol=name, source_symbol=name) for name in SYMBOLS),
    )
    return {
        **{name: getattr(panel, name) for name in (*PRICES, "volume", "value")},
        **{leg: outcomes(panel, leg) for leg in LEGS},
        "inputs": windows.stocks.numpy(),
        "observed": windows.observed.numpy(),
        "movement": windows.movement.numpy(),
        "opens": quotes.fills("next_open"),
        "closes": quotes.fills("close"),
        "marks": quotes.marks("next_open"),
        "night": returns_of(rows, bars, "adj_close"),
        "backtest": returns_between(bars, DAYS[:-1], DAYS[1:], SYMBOLS, "adj_close"),
        "index": index_of_constituents(market, bars)[list(PRICES)].to_numpy(),
    }


def test_filling_a_halt_changes_nothing():
    bars = bars_of_market()
    without, with_fills = everything(bars), everything(filled(bars))
    for name, values in without.items():
        np.testing.assert_array_equal(with_fills[name], values, err_msg=name)
    assert np.isnan(without["night"]).sum() > sum(last - first for first, last in HALTS.values())


def test_a_halted_stock_is_kept_until_it_trades():
    """Told during the halt to hold the other stock, a portfolio sells this one when it resumes."""
    price = np.where(np.arange(12) < 8, 50.0, 20.0)  # the halt is from session 4 to session 7
    halted = pd.DataFrame({"symbol": "A", "session": DAYS[:12], "volume": 10.0})
    halted = halted.assign(**dict.fromkeys(PRICES, price))
    halted.loc[4:7, "volume"] = 0
    other = halted.assign(symbol="B", volume=np.nan, **dict.fromkeys(PRICES, 9.0))
    quotes = Quotes.of(bars_frame(pd.concat([halted, other])), DAYS[:12], ("A", "B"), "close")
    weights = np.where((np.arange(12) < 5)[:, None], [1.0, 0.0], [0.0, 1.0])
    track = follow(weights, DAYS[:12], quotes, Strategy("long", max_weight=1.0, costs=FREE))
    assert (1 + track["net"]).prod() == pytest.approx(0.4)
    assert track.set_index("session")["turnover"][DAYS[5:8]].tolist() == [0, 0, 0]
    predicted = np.full((12, 2), 0.5)
    predicted[5:, 0] = np.nan
    parts = equal_weight_track(predicted, DAYS[:12], quotes, "next_open")
    assert (1 + parts["net"]).prod() == pytest.approx(0.5 + 0.5 * 0.4)


def test_a_split_recorded_in_a_halt_counts_when_the_stock_trades_again():
    price = [90.0, 90.0, 90.0, 90.0, 30.0, 30.0]
    bars = pd.DataFrame({"symbol": "A", "session": DAYS[:6], "volume": [5.0, 5, 0, 0, 5, 5]})
    bars = bars_frame(
        bars.assign(**dict.fromkeys(PRICES, price), split=[np.nan] * 3 + [3.0] + [np.nan] * 2)
    )
    quotes = Quotes.of(bars, DAYS[:6], ("A",), "close", max_return=0.3)
    np.testing.assert_array_equal(quotes.close[:, 0], [90, 90, np.nan, np.nan, 90, 90])
    assert not quotes.breaks.any()


@pytest.mark.parametrize(
    ("volume", "close", "expected"),
    [
        ([5, 0, 0, 0, 5], [7, 7, 8, 8, 9], [1, 0, 0, 0, 1]),  # a volume of 0 after a volume
        ([np.nan] * 5, [7, 7, 7, 8, 8], [1, 1, 1, 1, 1]),  # no volumes at all
        ([5, np.nan, 5, 5, 5], [7, 7, 7, 8, 8], [1, 1, 1, 1, 1]),
        ([0, 0, 0, 0, 0], [7, 8, 9, 8, 7], [1, 1, 1, 1, 1]),  # a source that writes 0 for unknown
        ([0, 0, 0, 0, 5], [7, 7, 7, 7, 8], [1, 0, 0, 0, 1]),  # prices that begin in a halt
    ],
)
def test_who_traded_a_bar_is_known_from_it_and_earlier_ones(volume, close, expected):
    bars = pd.DataFrame({"symbol": "A", "session": DAYS[:5], "volume": volume})
    bars = bars_frame(bars.assign(**dict.fromkeys(PRICES, close)))
    assert traded(bars).tolist() == [bool(flag) for flag in expected]
    for stop in range(1, 5):  # no later bar changes the answer
        assert traded(bars[:stop]).tolist() == [bool(flag) for flag in expected[:stop]]
