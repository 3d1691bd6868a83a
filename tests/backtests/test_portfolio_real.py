"""Portfolios on the real sets of prices: no track books a move that the checks of bars refused."""

import numpy as np
import pandas as pd
import pytest

from dtml.backtest.portfolio import FREE, Fill, Quotes, Strategy, equal_weight_track, follow
from dtml.prices.sessions import sessions_between
from tests.support.bounds import as_drawn
from tests.support.real_sets import SETS, checked, needs_real_sets

pytestmark = [needs_real_sets, pytest.mark.soak]
FILLS: tuple[Fill, ...] = ("next_open", "close")


def quotes_of(name: str, symbols: tuple[str, ...], first: str, last: str, *, is_careful: bool = True) -> Quotes:
    """Quotes of the accepted bars of some stocks; a careless one knows of no refused move."""
    real, found = SETS[name], checked(name)
    bars = found.accepted[found.accepted["symbol"].isin(symbols) & found.accepted["session"].between(first, last)]
    sessions = sessions_between(real.calendar, pd.Timestamp(first).date(), pd.Timestamp(last).date())
    refused = found.rejected[found.rejected["reason"] == "unexplained_return"]
    bound = {"max_return": real.max_return, "refused": refused} if is_careful else {}
    return Quotes.of(bars, sessions, symbols, real.returns, **bound)


def test_a_tenfold_price_between_two_refused_bars_is_not_earned() -> None:
    """003410 is refused on 2020-12-01 (+900 %) and on 2020-12-04 (-88 %), and accepted between them."""
    stocks = sorted(set(checked("kospi200_2015").accepted["symbol"]) - {"^KS11"})
    symbols = (*stocks[:14], "003410")
    span = ("2020-03-16", "2020-12-16")
    held = quotes_of("kospi200_2015", symbols, *span)
    wanted = np.full((len(held.sessions) - 1, 15), 0.5)
    track = equal_weight_track(wanted, held.sessions[:-1], held, "next_open").set_index("session")
    careless = quotes_of("kospi200_2015", symbols, *span, is_careful=False)
    before = equal_weight_track(wanted, held.sessions[:-1], careless, "next_open").set_index("session")
    assert before["gross"].max() == as_drawn(0.6, within=0.02)
    assert track["gross"].abs().max() < 0.15
    met = track[track["settled"] > 0]
    assert {"2020-12-01", "2020-12-04"} <= set(met.index.strftime("%Y-%m-%d"))
    assert met.loc["2020-12-01", "unbooked"] == as_drawn(0.6, within=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each == "kospi200_2015" else [pytest.mark.soak]) for each in SETS]
)
def test_the_holder_of_one_stock_alone_earns_no_move_beyond_the_bound(name: str, fill: Fill) -> None:
    """From close to close; an open may lie as far from the close before as the next open on the other side."""
    found = checked(name)
    met = found.rejected[found.rejected["reason"] == "unexplained_return"]["symbol"].unique()[:12]
    symbols = tuple(str(each) for each in met if not str(each).startswith("^"))
    last = str(found.accepted["session"].max().date())
    quotes = quotes_of(name, symbols, str(found.accepted["session"].min().date()), last)
    bound = SETS[name].max_return if fill == "close" else (1 + SETS[name].max_return) ** 2 - 1
    booked = 0
    for stock in range(len(symbols)):
        weights = np.zeros((len(quotes.sessions), len(symbols)))
        weights[:, stock] = 0.4
        track = follow(weights, quotes.sessions, quotes, Strategy("long", fill, costs=FREE))
        assert track["gross"].abs().max() <= 0.4 * bound
        booked += int(track["settled"].sum())
    assert booked >= len(symbols) or name == "kospi200_2020"  # the only bar refused there is the last
