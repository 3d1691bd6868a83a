"""A simulated market of 60 stocks and four years, and whether own code sees later prices of it."""

from dataclasses import replace
from datetime import date

import numpy as np

from dtml.markets import load_market
from dtml.own.code import OwnCode, OwnCodeError
from dtml.own.process import IsolatedCode
from dtml.ranking.panel import Panel
from dtml.ranking.walk import market_panel
from dtml.sources.simulated import SimulatedMarket, SimulatedSource

LAST = date(2023, 12, 29)
GRIDS = ("open", "high", "low", "close")
LARGE = SimulatedMarket(leaders=20, followers=2, start=date(2020, 1, 2))


def large_panel() -> Panel:
    """The market's whole past, 1,006 sessions."""
    market = load_market("simulated").with_symbols(LARGE.symbols)
    return market_panel(market, SimulatedSource(market=LARGE).bars(LAST))


def with_later(panel: Panel, day: int) -> Panel:
    """A panel with other bars after a session, as later dividends and splits rescale the others."""
    later = np.arange(len(panel.sessions))[:, None] > day
    noise = np.exp(np.random.default_rng(0).standard_normal(panel.close.shape))
    scale = np.where(later, noise, 0.25 ** (np.arange(panel.close.shape[1]) % 3))
    grids = {name: getattr(panel, name) * scale for name in GRIDS}
    split = np.where(np.arange(panel.close.shape[1]) % 2, 4.0, 1.0)  # the value stays as it was
    value = np.where(later, panel.value * noise, panel.value)
    return replace(panel, **grids, value=value, volume=panel.volume * split)


def sees_later(text: str, panel: Panel) -> bool:
    """Whether a value of two sessions differs where the bars after them do.

    In between, the code is asked for a later session: it might keep what it saw then.
    """
    own = IsolatedCode(OwnCode("mine.py", text))
    day = len(panel.sessions) - 60
    days = [day - 1, day]
    other = with_later(panel, day)
    try:
        before = own.values(panel, days)
    except OwnCodeError:  # it may not keep a value where it would
        return False
    own.values(other, [day + 9])
    after = own.values(other, days)
    return not np.allclose(after, before, rtol=1e-9, atol=1e-12, equal_nan=True)
