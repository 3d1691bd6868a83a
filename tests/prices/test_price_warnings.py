"""Prices that are doubtful though every bar passes: an adjusted close that
takes out more than the dividend.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from db.engine import reading
from db.rows import prices
from dtml.prices.alignment import over_corrected
from flows.nightly.context import MarketContext
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import run_night
from tests.support.nights import AS_OF, BARS, FrameSource
from tests.support.real_sets import SETS, checked, needs_real_sets

FOUND = {"kdd17": ["NVS"], "acl18": ["BCH"]}
FOUND["kospi200_2015"] = [
    "003410",
    "003850",
    "004990",
    "005300",
    "015760",
    "018880",
    "078930",
    "204320",
]


def paying(taken_out: float) -> pd.DataFrame:
    """Bars of which L02 pays 3 % every 40 sessions, and whose adjusted close takes out so much."""
    bars = BARS.sort_values(["symbol", "session"], ignore_index=True)
    mine = bars["symbol"] == "L02"
    paid = (np.arange(mine.sum()) % 40 == 39).cumsum()
    for name in ("open", "high", "low", "close"):
        bars.loc[mine, name] = bars.loc[mine, name] * 0.97**paid
    bars.loc[mine, "adj_close"] = bars.loc[mine, "adj_close"] * (0.97 / (1 - taken_out)) ** paid
    return bars


def warned(context: MarketContext) -> list[str]:
    with reading(context.engine) as conn:
        return prices.price_warnings(conn, context.name)["symbol"].tolist()


@pytest.mark.soak
@pytest.mark.slow
@needs_real_sets
@pytest.mark.parametrize("name", SETS)
def test_of_each_real_set_these_stocks_rise_on_their_ex_days(name: str) -> None:
    assert over_corrected(checked(name).accepted)["symbol"].tolist() == FOUND.get(name, [])


def test_a_dividend_that_is_taken_out_whole_is_no_warning_and_one_taken_out_twice_is() -> None:
    assert over_corrected(paying(0.03)).empty
    (row,) = over_corrected(paying(0.06)).to_dict("records")
    assert (row["symbol"], row["reason"]) == ("L02", "over_corrected_dividends")
    assert "ex-days, on which adj_close / close steps by 6." in row["value"]
    assert over_corrected(paying(0.06)[lambda bars: bars["session"] < "2022-03-01"]).empty


def test_a_night_warns_of_a_symbol_in_the_store_and_on_its_page_until_the_source_mends_it(
    context: MarketContext,
) -> None:
    night = run_night(replace(context, source=FrameSource(paying(0.06))), AS_OF)
    assert warned(context) == ["L02"]
    page = night.report.read_text()
    assert "Doubtful prices" in page
    assert "adj_close rises by" in page
    fetch_bars(context, AS_OF, whole=True)
    assert warned(context) == []
