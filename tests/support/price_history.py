"""A small market's true past, and what Yahoo would hold of it on any day:
dividends and splits restate it.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pandas as pd

from dtml.prices.bars import bars_frame

INDEX = "^MADE"
STOCKS = tuple(f"S{number:02d}" for number in range(1, 13))
PRICES = ("open", "high", "low", "close")
MARKET = """
title = "A made market"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
source = "yahoo"
retrain = {retrain}
[index]
symbol = "MADE"
source_symbol = "{index}"
name = "An index"
[model]
window = 3
hidden = 4
heads = 2
epochs = 1
first_kept_epoch = 1
seeds = 1
train_sessions = 66
validation_sessions = 10
[checks]
max_missing = 0.4
[constituents]
as_of = 2024-01-02
symbols = [{symbols}]
"""


@dataclass(frozen=True)
class History:
    """Bars as they were traded, by the market's symbol, with dividends and splits on their
    sessions.

    `renamed` maps a stock to its new symbol at Yahoo and the first day of it.
    """

    traded: Mapping[str, pd.DataFrame]
    renamed: Mapping[str, tuple[str, date]] = field(default_factory=dict)

    def source_symbol(self, symbol: str, day: date) -> str:
        """What Yahoo names a stock on a day."""
        name, since = self.renamed.get(symbol, (symbol, date.max))
        return name if since <= day else symbol

    def told(self, day: date) -> dict[str, pd.DataFrame]:
        """The bars that Yahoo holds after the close of a day, by its own
        symbols, adjusted as of that day.
        """
        return {
            self.source_symbol(symbol, day): adjusted(bars, day)
            for symbol, bars in self.traded.items()
        }


def adjusted(traded: pd.DataFrame, day: date) -> pd.DataFrame:
    """Bars up to a day as Yahoo adjusts them on it: every price by later
    splits, adj_close by dividends too.
    """
    bars = traded[traded["session"] <= pd.Timestamp(day)].reset_index(drop=True)
    ratio, paid = bars["split"].fillna(1.0), bars["dividend"].fillna(0.0)
    kept = 1 - paid / (bars["close"].shift(1) / ratio)
    shares, cash = _of_later(ratio), _of_later(kept.fillna(1.0))
    close = bars["close"] / shares
    prices = {name: bars[name] / shares for name in PRICES}
    amounts = {"volume": bars["volume"] * shares, "dividend": bars["dividend"] / shares}
    return bars.assign(**prices, **amounts, adj_close=close * cash)


def _of_later(factors: pd.Series) -> pd.Series:
    """The product of the factors of all later sessions."""
    return factors[::-1].cumprod().shift(1, fill_value=1.0)[::-1]


def made_history(sessions: pd.DatetimeIndex, told_from: date, seed: int) -> History:
    """A random market over these sessions, whose events come from `told_from` on.

    A dividend comes every fifth session or so, a split every twentieth; one stock is renamed in
    each quarter: never so many that a night could not be complete.
    """
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    common = rng.normal(0.0003, 0.008, len(sessions))
    traded = {INDEX: _walk(INDEX, sessions, common, rng)}
    traded |= {stock: _walk(stock, sessions, 0.7 * common, rng) for stock in STOCKS}
    days = [day.date() for day in sessions if day.date() >= told_from]
    for place in range(1, len(days)):
        at = len(sessions) - len(days) + place
        if place % 5 == draw.randrange(5) or place == 2:
            stock = draw.choice(STOCKS)
            traded[stock].loc[at, "dividend"] = round(
                float(traded[stock]["close"][at - 1]) * 0.01, 2
            )
        if place % 20 == 4:
            _split(traded[draw.choice(STOCKS)], at, draw.choice([2.0, 3.0, 0.5]))
    changing = draw.sample(STOCKS, 3)
    starts = range(draw.randrange(2, 5), len(days), 63)
    renamed = {
        stock: (f"{stock}N", days[start]) for stock, start in zip(changing, starts, strict=False)
    }
    return History(traded, renamed)


def _walk(
    symbol: str, sessions: pd.DatetimeIndex, common: np.ndarray, rng: np.random.Generator
) -> pd.DataFrame:
    close = rng.uniform(30, 200) * np.exp(np.cumsum(common + rng.normal(0, 0.01, len(sessions))))
    width = np.abs(rng.normal(0, 0.004, (2, len(sessions))))
    opening = close * np.exp(rng.normal(0, 0.004, len(sessions)))
    high, low = (
        np.maximum(opening, close) * (1 + width[0]),
        np.minimum(opening, close) * (1 - width[1]),
    )
    volume = rng.integers(100_000, 900_000, len(sessions)).astype(float)
    prices = {
        "open": opening,
        "high": high,
        "low": low,
        "close": close,
        "adj_close": close,
        "volume": volume,
    }
    return bars_frame(pd.DataFrame({"symbol": symbol, "session": sessions, **prices}))


def _split(traded: pd.DataFrame, at: int, ratio: float) -> None:
    """Let one old share be `ratio` new ones from position `at` on."""
    traded.loc[at, "split"] = ratio
    traded.loc[at:, list(PRICES)] /= ratio
    traded.loc[at:, "dividend"] /= ratio


def without_sessions(bars: pd.DataFrame, days: Collection[date]) -> pd.DataFrame:
    """The bars without those of some days."""
    return bars[~bars["session"].isin([pd.Timestamp(day) for day in days])].reset_index(drop=True)


def with_row_on(bars: pd.DataFrame, day: date) -> pd.DataFrame:
    """The bars with one more on a day without a session: the last close before
    it, and no volume.
    """
    before = bars[bars["session"] < pd.Timestamp(day)].tail(1)
    flat = dict.fromkeys(("open", "high", "low"), before["close"])
    row = before.assign(
        session=pd.Timestamp(day), volume=0.0, dividend=np.nan, split=np.nan, **flat
    )
    return pd.concat([bars, row], ignore_index=True).sort_values("session", ignore_index=True)


def market_text(stocks: Mapping[str, str], retrain: str = '"missing"') -> str:
    """A market file of these stocks with their symbols at Yahoo, and of the smallest model there
    is.
    """
    rows = [
        f'{{ symbol = "{stock}", source_symbol = "{symbol}" }}' for stock, symbol in stocks.items()
    ]
    return MARKET.format(retrain=retrain, index=INDEX, symbols=", ".join(rows))
