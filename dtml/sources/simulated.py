"""A seeded market whose best possible accuracy is known, on the sessions of a real exchange.

Leaders move on news of their own; a follower copies its leader's last session with a known
correlation, and the rest of its return is market, sector and itself. So on a follower the best
accuracy is that of the sign of its leader's last return, on a leader one half. There are splits,
dividends, halts and one late listing. A price depends only on the seed and the sessions before it.
The adjusted close ends at the close, as Yahoo's does.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import product

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.evaluation.ranking import rank_ics
from dtml.markets.definition import AnyCalendar
from dtml.prices.sessions import sessions_between
from dtml.sources import Fetched, Source

Shocks = Float[ndarray, "sessions stocks"]
Events = Bool[ndarray, "sessions stocks"]

BEST_OVER = 4000  # sessions over which the best rank IC is measured; its standard error is .002
DAILY_VOLATILITY = 0.018
MARKET_SHARE = 0.4  # of the part of a follower's variance that its leader does not explain
SECTOR_SHARE = 0.2  # of the same
HALT_RATE = 1 / 2000  # per stock and session, as the next two
SPLIT_RATE = 1 / 3000
DIVIDEND_RATE = 1 / 63
DIVIDEND = 0.006  # of the price before
LISTED_LATE = "F02B"
LISTING = date(2019, 6, 3)


@dataclass(frozen=True)
class SimulatedMarket:
    """The market's settings; `correlation` is of a follower with its leader's last return."""

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
        leaders = range(1, self.leaders + 1)
        letters = [chr(ord("A") + place) for place in range(self.followers)]
        return tuple(f"F{leader:02d}{letter}" for leader, letter in product(leaders, letters))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Return all stocks, leaders first."""
        return self.leader_symbols + self.follower_symbols

    @property
    def best_accuracy(self) -> float:
        """Return the accuracy on followers that no model can beat in the long run.

        Jointly normal returns agree in sign with probability 1/2 + arcsin(correlation) / pi
        (Sheppard, 1899).
        """
        return 0.5 + math.asin(self.correlation) / math.pi

    @property
    def best_rank_ic(self) -> float:
        """Return the mean rank IC, over drawn sessions, of the expected returns, which no score
        exceeds.

        A follower's is its leader's last return times the correlation, a leader's is 0.
        """
        returns = self.returns(BEST_OVER)
        copied = np.repeat(returns[:-1, : self.leaders], self.followers, axis=1)
        of_leaders = np.zeros((BEST_OVER - 1, self.leaders))
        of_followers = self.correlation * copied
        expected = np.hstack([of_leaders, of_followers])
        return float(rank_ics(expected, returns[1:]).mean())

    def leader_of(self, symbol: str) -> str:
        """Return the stock whose last return `symbol` copies; a leader is its own."""
        return f"L{symbol[1:3]}"

    def returns(self, sessions: int) -> Shocks:
        """Draw the total returns of all stocks as log returns, leaders first."""
        # Everything is drawn in standard deviations, so that each stock has `DAILY_VOLATILITY`.
        leading = self.generator("leaders").standard_normal((sessions, self.leaders))
        no_news = np.zeros((1, self.leaders))
        last_leading = np.vstack([no_news, leading[:-1]])
        copied = np.repeat(last_leading, self.followers, axis=1)
        market = self.generator("market").standard_normal((sessions, 1))
        sectors = self.generator("sectors").standard_normal((sessions, self.sectors))
        own = self.generator("own").standard_normal(copied.shape)
        # Leaders of consecutive numbers share a sector, with their followers.
        sector_of_leader = np.arange(self.leaders) * self.sectors // self.leaders
        sector_of_follower = np.repeat(sector_of_leader, self.followers)
        # What leaders do not explain of a follower has a variance of 1.
        unexplained = (
            math.sqrt(MARKET_SHARE) * market
            + math.sqrt(SECTOR_SHARE) * sectors[:, sector_of_follower]
            + math.sqrt(1 - MARKET_SHARE - SECTOR_SHARE) * own
        )
        rest = math.sqrt(1 - self.correlation**2)
        following = self.correlation * copied + rest * unexplained
        return DAILY_VOLATILITY * np.hstack([leading, following])

    def happens(self, stream: str, sessions: int, rate: float) -> Events:
        """Draw the stock-days of an event, independent of each other and of the returns."""
        return self.generator(stream).random((sessions, len(self.symbols))) < rate

    def generator(self, stream: str) -> np.random.Generator:
        """Return a stream's new generator, drawn by session: later ones change no earlier."""
        return np.random.default_rng([self.seed, *stream.encode()])


@dataclass(frozen=True)
class SimulatedSource(Source):
    """Bars of a simulated market, on the sessions of `calendar`."""

    calendar: AnyCalendar = "XNYS"
    index_symbol: str = "SIMX"
    market: SimulatedMarket = field(default_factory=SimulatedMarket)
    name: str = "simulated"

    def symbols(self) -> list[str]:
        """Return all stocks, leaders first."""
        return list(self.market.symbols)

    def remark(self) -> str:
        """Say which accuracy and rank IC a model can reach at best on this market."""
        market = self.market
        followers = len(market.follower_symbols)
        correct_stocks = followers * market.best_accuracy + 0.5 * market.leaders
        overall = correct_stocks / len(market.symbols)
        return (
            f"no model can beat an ACC of {market.best_accuracy:.3f} on the {followers} followers, "
            f"0.500 on the {market.leaders} leaders, {overall:.3f} on all stock-days of this "
            f"market, nor a rank IC of {market.best_rank_ic:.2f}"
        )

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its own first session to `last`."""
        return Fetched.of(self.bars(last), first, missing=lambda _symbol: "")

    def bars(self, last: date) -> pd.DataFrame:
        """Return the bars frame of the whole market from its start to `last`."""
        sessions = sessions_between(self.calendar, self.market.start, last)
        returns = self.market.returns(len(sessions))  # log returns, [sessions stocks]
        # The mean log return: about the return of equal weights that are rebalanced every session.
        index_returns = returns.mean(axis=1, keepdims=True)
        traded = ~self.market.happens("halts", len(sessions), HALT_RATE)
        if LISTED_LATE in self.market.symbols:  # a market of other settings may lack it
            stock = self.market.symbols.index(LISTED_LATE)
            traded[sessions < pd.Timestamp(LISTING), stock] = False
        bars_of_stocks = self._priced(
            returns,
            sessions=sessions,
            symbols=list(self.market.symbols),
            traded=traded,
            actions=True,
        )
        bars_of_index = self._priced(
            index_returns,
            sessions=sessions,
            symbols=[self.index_symbol],
            traded=np.ones_like(index_returns, dtype=bool),
            actions=False,
        )
        return pd.concat([bars_of_stocks, bars_of_index], ignore_index=True)

    def _priced(
        self,
        returns: Shocks,
        sessions: pd.DatetimeIndex,
        symbols: list[str],
        traded: Events,
        *,
        actions: bool,
    ) -> pd.DataFrame:
        """Turn log returns, [sessions stocks], into bars of the stock-days `traded`, by session and
        symbol.

        The adjusted close carries the total return, the close is the price paid; `actions` are
        splits and dividends.
        """
        total = 100 * np.exp(np.cumsum(returns, axis=0))
        split = np.ones_like(returns)  # new shares per old share
        paid = np.zeros_like(returns)  # dividends, as shares of the price before
        rows, columns = returns.shape
        if actions:  # no stock has both on one day
            splits = self.market.happens("splits", rows, SPLIT_RATE)
            dividends = self.market.happens("dividends", rows, DIVIDEND_RATE) & ~splits
            is_three = self.market.generator("split size").random(returns.shape) < 0.5
            split[splits] = np.where(is_three, 3.0, 2.0)[splits]
            paid[dividends] = DIVIDEND
        # A split multiplies the shares, and a dividend is reinvested in more of them. `shares`
        # counts those that one share of the first session has become.
        shares = np.cumprod(split / (1 - paid), axis=0)
        close = total / shares
        # The adjusted close ends at the close: it is divided by the shares of the last bar.
        last_traded = traded.shape[0] - 1 - traded[::-1].argmax(axis=0)  # a position, by stock
        last_shares = shares[last_traded, np.arange(traded.shape[1])]
        # The close of the session before, divided by the split of this one. The first session has
        # none before it, and takes its own close.
        prior = np.vstack([close[:1], close[:-1]]) / split

        stream = "stock" if actions else "index"  # only stocks have actions
        drawn = self.market.generator(f"{stream} open").standard_normal(prior.shape)
        opening = np.asarray(prior * np.exp(DAILY_VOLATILITY / 4 * drawn))
        drawn_range = self.market.generator(f"{stream} range").random((rows, 2 * columns))
        above, below = np.split(DAILY_VOLATILITY / 2 * drawn_range, 2, axis=1)
        drawn_volume = self.market.generator(f"{stream} volume").random(returns.shape)
        volume = np.exp(drawn_volume)
        # `paid` is a share of the price before the dividend, which is close / (1 - paid).
        dividend = np.where(paid > 0, paid / (1 - paid) * close, np.nan)

        values = {
            "open": opening,
            "high": np.maximum(opening, close) * (1 + above),
            "low": np.minimum(opening, close) * (1 - below),
            "close": close,
            "adj_close": total / last_shares,
            "volume": np.round(1e6 * volume),
            "dividend": dividend,
            "split": np.where(split != 1, split, np.nan),
        }
        session_places, stock_places = np.nonzero(traded)  # of the bars, session by session
        bars = pd.DataFrame({name: of_days[traded] for name, of_days in values.items()})
        bars.insert(0, "symbol", np.array(symbols)[stock_places])
        bars.insert(1, "session", sessions[session_places])
        return bars
