"""Portfolios on the real sets of prices: no track books a move that the checks of bars refused."""

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.portfolio import PATIENCE, Strategy, equal_weight_track, follow
from dtml.backtest.quotes import Fill, Quotes
from dtml.markets.definition import FREE
from dtml.prices.bars import Checked
from dtml.prices.returns import traded
from dtml.prices.sessions import sessions_between
from tests.support.bounds import as_drawn
from tests.support.real_sets import SETS, bars_of, checked, judge, needs_real_sets

pytestmark = [needs_real_sets, pytest.mark.soak]
FILLS: tuple[Fill, ...] = ("next_open", "close")
# One of each kind: adjusted closes in New York and in London, raw ones with a daily limit in Seoul,
# and Seoul without a refused move but on the last day.
KINDS = ("ndx100", "ftse30", "kospi200_2015", "kospi200_2020")
DAY = pd.Timedelta(days=1)
HELD = 5  # stocks with a refused move, each held alone


def quotes_of(
    name: str,
    found: Checked,
    symbols: tuple[str, ...],
    first: str,
    last: str,
    *,
    is_careful: bool = True,
) -> Quotes:
    """Quotes of the accepted bars of some stocks; a careless one knows of no refused move."""
    real = SETS[name]
    bars = found.accepted[
        found.accepted["symbol"].isin(symbols) & found.accepted["session"].between(first, last)
    ]
    sessions = sessions_between(
        real.calendar, pd.Timestamp(first).date(), pd.Timestamp(last).date()
    )
    refused = found.rejected[found.rejected["reason"] == "unexplained_return"]
    bound = {"max_return": real.max_return, "refused": refused} if is_careful else {}
    return Quotes.of(bars, sessions, symbols, real.returns, **bound)


def tenfold(name: str, symbol: str, first: str, last: str) -> Checked:
    """A real set of which one stock stands at ten times its price for more
    sessions than a brief jump has.
    """
    real, bars = SETS[name], bars_of(name).copy()
    there = (bars["symbol"] == symbol) & bars["session"].between(first, last)
    bars.loc[there, ["open", "high", "low", "close"]] *= 10
    return judge(bars, real.calendar, real.returns, real.max_return, f"^{real.index}")


def test_a_tenfold_price_between_two_refused_bars_is_not_earned() -> None:
    """The bar that rises by 900 % and the one that falls by 90 % are refused,
    and those between them accepted.
    """
    name, span = "kospi200_2015", ("2020-03-16", "2020-12-16")
    symbols = tuple(sorted(set(checked(name).accepted["symbol"]) - {"^KS11"})[:15])
    found = tenfold(name, symbols[14], "2020-06-01", "2020-06-12")
    held = quotes_of(name, found, symbols, *span)
    wanted = np.full((len(held.sessions) - 1, 15), 0.5)
    track = equal_weight_track(wanted, held.sessions[:-1], held, "next_open").set_index("session")
    careless = quotes_of(name, found, symbols, *span, is_careful=False)
    before = equal_weight_track(wanted, held.sessions[:-1], careless, "next_open").set_index(
        "session"
    )
    assert before["gross"].max() == as_drawn(0.6, within=0.08)
    assert track["gross"].abs().max() < 0.15
    met = track[track["settled"] > 0]
    assert {"2020-06-01", "2020-06-15"} <= set(met.index.strftime("%Y-%m-%d"))
    assert met.loc["2020-06-01", "unbooked"] == as_drawn(0.6, within=0.08)


def test_the_holder_of_a_stock_through_a_brief_jump_earns_what_it_moved_across_it() -> None:
    """003410 is refused on three sessions of December 2020: at 5,550 won before
    them and at 6,700 after.
    """
    name = "kospi200_2015"
    quotes = quotes_of(name, checked(name), ("003410",), "2020-11-16", "2020-12-16")
    whole = np.ones((len(quotes.sessions), 1))
    track = follow(whole, quotes.sessions, quotes, Strategy("long", "close", costs=FREE)).set_index(
        "session"
    )
    assert track["settled"].sum() == 0
    assert track["gross"].max() == pytest.approx(6700 / 5550 - 1)


@pytest.mark.slow
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=[] if each == "kospi200_2015" else [pytest.mark.soak])
        for each in KINDS
    ],
)
def test_the_holder_of_one_stock_alone_earns_no_move_beyond_the_bound(
    name: str, fill: Fill
) -> None:
    """From close to close; an open may lie as far from the close before as the
    next open on the other side.
    """
    found = checked(name)
    bars = found.accepted.sort_values("session")
    trades = bars[traded(bars)][["symbol", "session"]]
    trades = trades.assign(last_trade=trades["session"], session=trades["session"] + DAY)
    refused = found.rejected[found.rejected["reason"] == "unexplained_return"]
    refused = pd.merge_asof(refused.sort_values("session"), trades, on="session", by="symbol")
    # a position is sold in a longer halt, before the move that is refused after it
    met = refused[refused["session"] - refused["last_trade"] < PATIENCE * DAY]["symbol"].unique()
    symbols = tuple(str(each) for each in met if not str(each).startswith("^"))[:HELD]
    last = str(found.accepted["session"].max().date())
    quotes = quotes_of(name, found, symbols, str(found.accepted["session"].min().date()), last)
    bound = SETS[name].max_return if fill == "close" else (1 + SETS[name].max_return) ** 2 - 1
    booked = 0
    for stock in range(len(symbols)):
        weights = np.zeros((len(quotes.sessions), len(symbols)))
        weights[:, stock] = 0.4
        track = follow(weights, quotes.sessions, quotes, Strategy("long", fill, costs=FREE))
        assert track["gross"].abs().max() <= 0.4 * bound
        booked += int(track["settled"].sum())
    # the only bar refused there is the last
    assert booked >= len(symbols) or name == "kospi200_2020"
