"""Small files of prices as people have them, and a market that reads them."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

from dtml.markets import Constituent, Index, Market
from dtml.sources.files import FileSource

FIRST, LAST = date(2024, 3, 4), date(2024, 3, 20)
MARKET = Market(
    name="small",
    title="Small",
    calendar="XNYS",
    timezone="America/New_York",
    currency="USD",
    index=Index("INDEX", "^IDX", "The index"),
    constituents=(Constituent("BRKB", "BRK-B"), Constituent("005930", "005930.KS")),
)
Writer = Callable[[pd.DataFrame, Path], None]


def long(symbols: tuple[str, ...] = ("AAA", "BRK-B", "005930"), sessions: int = 13) -> pd.DataFrame:
    """A table of prices as people have them: date first, sorted by date, no
    dividends and no splits.
    """
    days = pd.bdate_range(FIRST, periods=sessions)
    tables = []
    for place, symbol in enumerate(symbols):
        close = 50 + 10.5 * place + np.arange(sessions) / 8
        table = pd.DataFrame(
            {"date": days, "symbol": symbol, "open": close - 0.5, "high": close + 1}
        )
        tables.append(
            table.assign(low=close - 1, close=close, adj_close=close / 2, volume=1000 + place)
        )
    return pd.concat(tables).sort_values(["date", "symbol"], ignore_index=True)


def read(source: FileSource) -> pd.DataFrame:
    """All bars of 2024 that a source has of its stocks and of the index."""
    asked = dict.fromkeys([*source.symbols(), MARKET.index.symbol], date(2024, 1, 1))
    bars = source.fetch(asked, date(2024, 12, 31)).bars
    return bars.sort_values(["symbol", "session"], ignore_index=True)


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    table.to_parquet(path)


def write_csv(table: pd.DataFrame, path: Path) -> None:
    table.to_csv(path, index=False)


def redated(bars: pd.DataFrame, sessions: int, *symbols: str) -> pd.DataFrame:
    """The bars with those of some symbols dated so many sessions later,
    earlier below 0; the last ones of each are cut off.
    """
    are_moved = bars["symbol"].isin(symbols)
    mine = bars[are_moved].sort_values(["symbol", "session"])
    dates = mine.groupby("symbol")["session"].shift(-sessions)
    moved = mine.assign(session=dates).dropna(subset=["session"])
    return pd.concat([bars[~are_moved], moved], ignore_index=True)
