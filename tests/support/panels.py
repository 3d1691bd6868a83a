"""Markets made for the ranking: bars of a few stocks that wander, with halts, gaps and volumes."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from dtml.ranking.features import FEATURES
from dtml.ranking.panel import Panel, panel_of
from dtml.ranking.walk import History

SESSIONS = pd.bdate_range("2020-01-02", periods=420)


def made_bars(stocks: int = 7, seed: int = 3) -> pd.DataFrame:
    """Bars of `S00`, `S01`, ...: the first is listed late, the second pauses,
    the third has days without volume.
    """
    drawn = np.random.default_rng(seed)
    shape = (len(SESSIONS), stocks)
    close = 50 * np.exp(np.cumsum(0.02 * drawn.standard_normal(shape), axis=0))
    opened = close * np.exp(0.01 * drawn.standard_normal(shape))
    high = np.maximum(opened, close) * (1 + 0.01 * drawn.random(shape))
    low = np.minimum(opened, close) * (1 - 0.01 * drawn.random(shape))
    volume = np.exp(10 + drawn.standard_normal(shape)).round()
    volume[100:103, 2] = 0
    columns = {"open": opened, "high": high, "low": low, "close": close, "volume": volume}
    names = [f"S{i:02d}" for i in range(stocks)]
    long = pd.concat(
        [
            pd.DataFrame(
                {"session": SESSIONS, "symbol": name} | {k: v[:, i] for k, v in columns.items()}
            )
            for i, name in enumerate(names)
        ]
    ).assign(adj_close=lambda bars: bars["close"])
    late = (long["symbol"] == "S00") & (long["session"] < SESSIONS[40])
    paused = (long["symbol"] == "S01") & long["session"].between(SESSIONS[200], SESSIONS[202])
    return long[~late & ~paused].reset_index(drop=True)


def made_panel(bars: pd.DataFrame | None = None) -> Panel:
    """The panel of these bars, or of `made_bars`."""
    bars = made_bars() if bars is None else bars
    return panel_of(
        bars, sessions=SESSIONS, symbols=tuple(sorted(bars["symbol"].unique())), returns="adj_close"
    )


@cache
def reverting() -> History:
    """A market in which the day's losers rise: outcomes are drawn anew from the
    rank of the last return.
    """
    history = History.of(made_panel(made_bars(stocks=23)), "next_close")
    noise = np.random.default_rng(3).standard_normal(history.outcome.shape)
    last = history.features[..., list(FEATURES).index("return_1")]
    return replace(history, outcome=np.where(history.there, 0.01 * noise - 0.03 * last, np.nan))
