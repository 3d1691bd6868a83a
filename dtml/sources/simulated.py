"""A seeded market whose best possible accuracy is known, on the sessions of a real exchange.

Leaders rise and fall on news of their own. Each follower copies its leader's last session with a
known correlation
and shares the rest of its return with the market and its sector. Nothing else can be predicted: on
a follower the best possible accuracy is that of the sign of its leader's last return, on a leader
it is one half, so only a model that looks across stocks can beat a coin. There are splits,
dividends, halts (sessions without a bar) and one late listing. A price depends only on the seed and
the sessions before it. The adjusted close ends at the close, as Yahoo's does: each split and
dividend scales all earlier ones, and nothing else restates them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.evaluation.ranking import rank_ics
from dtml.prices.bars import BAR_COLUMNS
from dtml.prices.sessions import sessions_between
from dtml.sources import Fetched, Source

Shocks = Float[ndarray, "sessions stocks"]
Events = Bool[ndarray, "sessions stocks"]

BEST_OVER = 4000  # sessions, for a standard error of .002
DAILY_VOLATILITY = 0.018
MARKET_SHARE, SECTOR_SHARE = 0.4, 0.2  # of a follower's own variance
HALT_RATE, SPLIT_RATE, DIVIDEND_RATE = 1 / 2000, 1 / 3000, 1 / 63
LISTED_LATE, LISTING = "F02B", date(2019, 6, 3)


@dataclass(frozen=True)
class SimulatedMarket:
    """The settings of the market; `correlation` is that of a follower with its
    leader's last return.
    """

    leaders: int = 10
    followers: int = 2  # of each leader
    correlation: float = 0.6
    sectors: int = 5
    seed: int = 7
    start: date = date(1995, 1, 3)

    @property
    def leader_symbols(self) -> tuple[str, ...]:
        """Return the names of the leaders: L01, L02, ..."""
        return tuple(f"L{i + 1:02d}" for i in range(self.leaders))

    @property
    def follower_symbols(self) -> tuple[str, ...]:
        """Return the names of the followers: F01A and F01B follow L01, and so on."""
        return tuple(
            f"F{i + 1:02d}{chr(65 + j)}" for i in range(self.leaders) for j in range(self.followers)
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return all stocks, leaders first."""
        return self.leader_symbols + self.follower_symbols

    @property
    def best_accuracy(self) -> float:
        """Return the accuracy on followers that no model can beat in the long run.

        A follower's return and its leader's last return are jointly normal with this correlation,
        so their signs agree with probability 1/2 + arcsin(correlation) / pi (Sheppard, 1899).
        """
        return 0.5 + math.asin(self.correlation) / math.pi

    @property
    def best_rank_ic(self) -> float:
        """Return the mean rank IC, over drawn sessions, of the expected returns: no score orders a
        day's stocks better.

        A follower's expected return is its leader's last one times the correlation, a leader's is
        0.
        """
        returns = self.returns(BEST_OVER)
        copied = np.repeat(returns[:-1, : self.leaders], self.followers, axis=1)
        expected = np.hstack([np.zeros((BEST_OVER - 1, self.leaders)), self.correlation * copied])
        return float(rank_ics(expected, returns[1:]).mean())

    def leader_of(self, symbol: str) -> str:
        """Return the stock whose last return `symbol` copies; a leader is its own."""
        return f"L{symbol[1:3]}"

    def sector_of(self, symbol: str) -> str:
        """Return the sector: leaders of consecutive numbers share one, with their followers."""
        return f"sector {(int(symbol[1:3]) - 1) * self.sectors // self.leaders + 1}"

    def returns(self, sessions: int) -> Shocks:
        """Draw the total returns of all stocks as log returns, leaders first."""
        leading = self.generator("leaders").standard_normal((sessions, self.leaders))
        copied = np.repeat(
            np.vstack([np.zeros((1, self.leaders)), leading[:-1]]), self.followers, axis=1
        )
        rest = math.sqrt(1 - self.correlation**2)
        returns = np.hstack(
            [leading, self.correlation * copied + rest * self._common_and_own(sessions)]
        )
        return DAILY_VOLATILITY * returns

    def _common_and_own(self, sessions: int) -> Shocks:
        symbols = self.follower_symbols
        market = self.generator("market").standard_normal((sessions, 1))
        sectors = self.generator("sectors").standard_normal((sessions, self.sectors))
        own = self.generator("own").standard_normal((sessions, len(symbols)))
        sector = [int(self.sector_of(symbol).split()[1]) - 1 for symbol in symbols]
        own_share = 1 - MARKET_SHARE - SECTOR_SHARE
        common = math.sqrt(MARKET_SHARE) * market + math.sqrt(SECTOR_SHARE) * sectors[:, sector]
        return np.asarray(common + math.sqrt(own_share) * own)

    def happens(self, stream: str, sessions: int, rate: float) -> Events:
        """Draw rare events, independent of each other and of the returns."""
        return self.generator(stream).random((sessions, len(self.symbols))) < rate

    def generator(self, stream: str) -> np.random.Generator:
        """Return the stream's own generator: drawn from session by session, it
        leaves the past as it was.
        """
        return np.random.default_rng([self.seed, *stream.encode()])


@dataclass(frozen=True)
class SimulatedSource(Source):
    """Bars of a simulated market, on the sessions of `calendar`."""

    calendar: str = "XNYS"
    index_symbol: str = "SIMX"
    market: SimulatedMarket = field(default_factory=SimulatedMarket)
    name: str = "simulated"

    def symbols(self) -> list[str]:
        """Return all stocks, leaders first."""
        return list(self.market.symbols)

    def remark(self) -> str:
        """Return the best accuracy and the best rank IC that a model can reach
        on this market, in words.
        """
        market = self.market
        followers = len(market.follower_symbols)
        overall = (followers * market.best_accuracy + 0.5 * market.leaders) / len(market.symbols)
        each = (
            f"{market.best_accuracy:.3f} on the {followers} followers, 0.500 on the "
            f"{market.leaders} leaders"
        )
        whole = f"{overall:.3f} on all stock-days of this market"
        return (
            f"no model can beat an ACC of {each}, {whole}, nor a rank IC of "
            f"{market.best_rank_ic:.2f}"
        )

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its own first session to `last`."""
        return Fetched.of(self.bars(last), first, lambda _: "")

    def bars(self, last: date) -> pd.DataFrame:
        """Return the bars frame of the whole market from its start to `last`."""
        sessions = sessions_between(self.calendar, self.market.start, last)
        returns = self.market.returns(len(sessions))
        index = returns.mean(axis=1, keepdims=True)  # equal weights, rebalanced daily
        traded = ~self.market.happens("halts", len(sessions), HALT_RATE)
        if LISTED_LATE in self.market.symbols:
            traded[sessions < pd.Timestamp(LISTING), self.market.symbols.index(LISTED_LATE)] = False
        stocks = self._priced(returns, sessions, list(self.market.symbols), traded, actions=True)
        whole = self._priced(
            index, sessions, [self.index_symbol], np.ones_like(index, dtype=bool), actions=False
        )
        return pd.concat([stocks, whole], ignore_index=True)

    def _priced(
        self,
        returns: Shocks,
        sessions: pd.DatetimeIndex,
        symbols: list[str],
        traded: Events,
        *,
        actions: bool,
    ) -> pd.DataFrame:
        """Turn log returns into bars; the adjusted close carries the total
        return, the close is the price paid.
        """
        total = 100 * np.exp(np.cumsum(returns, axis=0))
        split, paid = (
            self._actions(*returns.shape)
            if actions
            else (np.ones_like(returns), np.zeros_like(returns))
        )
        shares = np.cumprod(
            split / (1 - paid), axis=0
        )  # that one share of the first session has become
        close = total / shares
        last = traded.shape[0] - 1 - traded[::-1].argmax(axis=0)
        adjusted = total / shares[last, np.arange(traded.shape[1])]
        prior = np.vstack([close[:1], close[:-1]]) / split
        stream, generator = "stock" if actions else "index", self.market.generator
        opening = prior * np.exp(
            DAILY_VOLATILITY / 4 * generator(f"{stream} open").standard_normal(returns.shape)
        )
        reach = (
            DAILY_VOLATILITY
            / 2
            * generator(f"{stream} range").random((len(returns), 2 * returns.shape[1]))
        )
        above, below = np.split(reach, 2, axis=1)
        columns = {
            "open": opening,
            "high": np.maximum(opening, close) * (1 + above),
            "low": np.minimum(opening, close) * (1 - below),
            "close": close,
            "adj_close": adjusted,
            "volume": np.round(1e6 * np.exp(generator(f"{stream} volume").random(returns.shape))),
            "dividend": np.where(paid > 0, paid / (1 - paid) * close, np.nan),
            "split": np.where(split != 1, split, np.nan),
        }
        row, column = np.nonzero(traded)
        frame = {"symbol": np.array(symbols)[column], "session": sessions[row]}
        return pd.DataFrame(frame | {name: value[row, column] for name, value in columns.items()})[
            list(BAR_COLUMNS)
        ]

    def _actions(self, sessions: int, stocks: int) -> tuple[Shocks, Shocks]:
        """Draw splits (new shares for one old) and dividends (shares of the
        price before), never both on one day.
        """
        splits = self.market.happens("splits", sessions, SPLIT_RATE)
        dividends = self.market.happens("dividends", sessions, DIVIDEND_RATE) & ~splits
        large = self.market.generator("split size").random((sessions, stocks)) < 0.5
        paid = np.where(dividends, 0.006, 0.0)
        return np.where(splits, np.where(large, 3.0, 2.0), 1.0), paid
