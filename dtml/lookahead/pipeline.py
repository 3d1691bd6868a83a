"""The honest path from bars to predictions, which the look-ahead audit and the test of attention
run.

It is the path of a night and of a backtest written once more, without a store: what a store is
asked for is audited where it is asked (`flows.audit`). A `History` is what may be read; it can be
cut short, changed, or drawn by coin.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Literal

import numpy as np
import pandas as pd
import torch

from dtml.checkpoints import Ensemble
from dtml.experiments import Experiment
from dtml.inference import predict
from dtml.markets import Constituent, Market
from dtml.prices.bars import PRICES
from dtml.prices.returns import adjusted_price
from dtml.training.fit import fit_members, stack_members
from dtml.windows import Windows, build_windows

Course = Literal["shuffled", "rising", "falling"]
CPU = torch.device("cpu")
ADJUSTED_TOO = [*PRICES, "adj_close"]
NEVER = date(9999, 1, 1)
STRUCK, LOST = 0.2, 0.05  # shares of stocks and of rows that a change of a history strikes
BUSIER = 1000.0  # times that a stock may trade more in a scrambled future


@dataclass(frozen=True)
class History:
    """The data that a pipeline may read.

    `bars` is the long frame `symbol, session, open, high, low, close, adj_close, volume`;
    `sessions` are those of the exchange from the first bar to at least one after the last; `market`
    knows the memberships.
    """

    bars: pd.DataFrame
    sessions: pd.DatetimeIndex
    market: Market

    def known_at(self, at: pd.Timestamp) -> "History":
        """Return what was known at the close of a session: no later bar, no
        later entry, no later exit.
        """
        return replace(
            self, bars=self.bars[self.bars["session"] <= at], market=self._market_at(at, NEVER, ())
        )

    def with_holes(self, at: pd.Timestamp, seed: int) -> "History":
        """Return the history in which some constituents lack a session's bar,
        and half of these the one before too.
        """
        struck = self._some_constituents(at, seed)
        last = self.sessions[: self.sessions.searchsorted(at, side="right")]
        session, symbol = self.bars["session"], self.bars["symbol"]
        lost = (session == last[-1]) & symbol.isin(struck) | (session == last[-2]) & symbol.isin(
            struck[::2]
        )
        return replace(self, bars=self.bars[~lost])

    def scrambled_after(
        self, at: pd.Timestamp, seed: int, course: Course = "shuffled"
    ) -> "History":
        """Return another future after a session: other prices, volumes, memberships, rows missing,
        stocks that end.

        In a rising one every price rises from session to session, in a falling one every price
        falls.
        """
        generator = np.random.default_rng(seed)
        past, future = (
            self.bars[part] for part in (self.bars["session"] <= at, self.bars["session"] > at)
        )
        ended = self._some_constituents(at, seed)
        future = future[~future["symbol"].isin(ended) & (generator.random(len(future)) > LOST)]
        drawn = future.iloc[generator.permutation(len(future))]
        drawn[ADJUSTED_TOO] *= np.exp(0.05 * generator.standard_normal((len(drawn), 1)))
        names = pd.Index(self.bars["symbol"].unique())
        drawn["volume"] *= drawn["symbol"].map(
            pd.Series(BUSIER ** generator.random(len(names)), index=names)
        )
        if course != "shuffled":
            price = adjusted_price(drawn, self.market.returns)
            drawn = drawn.loc[price.sort_values(ascending=course == "rising").index]
        inserted = drawn.sort_values("symbol", kind="stable")
        inserted["session"] = future.sort_values(["symbol", "session"])[
            "session"
        ].to_numpy()  # of the same stock
        follows = (at + pd.Timedelta(1, "D")).date()
        return replace(
            self, bars=pd.concat([past, inserted]), market=self._market_at(at, follows, ended)
        )

    def rescaled(self) -> "History":
        """Return the same history after later corporate actions: a dividend of half the price, and
        two splits.

        Every adjusted close is halved; of every other stock each price is divided by 4, and each
        volume multiplied. These are powers of 2, so what does not depend on the scale of past
        prices stays the same to the last bit.
        """
        scale = np.where(
            self.bars["symbol"].isin(sorted(self.bars["symbol"].unique())[::2]), 0.25, 1.0
        )
        bars = self.bars.assign(**{name: self.bars[name] * scale for name in ADJUSTED_TOO})
        return replace(
            self, bars=bars.assign(adj_close=bars["adj_close"] / 2, volume=bars["volume"] / scale)
        )

    def tossed(self, seed: int) -> "History":
        """Return the same history with the direction of every session drawn by coin, one toss for
        all symbols.

        Whatever was known before, each stock then rises as likely as it falls; sizes of returns,
        missing bars and how
        stocks rise and fall together stay. Shuffling sessions would not suffice: a stock that rises
        more often than it falls would still do so, and a model that learns it is honest.
        """
        bars = self.bars.assign(price=adjusted_price(self.bars, self.market.returns))
        bars = bars[bars["price"] > 0].sort_values(["symbol", "session"], kind="stable")
        days = pd.Index(bars["session"].unique())
        coin = pd.Series(np.random.default_rng(seed).choice([-1.0, 1.0], len(days)), index=days)
        side = bars["session"].map(coin)
        change = pd.Series(np.log(bars["price"])).groupby(bars["symbol"]).diff().fillna(0.0)
        level = 100 * np.exp((side * change).groupby(bars["symbol"]).cumsum())
        opening, high, low = (
            (bars[name] / bars["close"]) ** side for name in ("open", "high", "low")
        )
        made = {"open": opening, "high": np.maximum(high, low), "low": np.minimum(high, low)}
        made = {name: level * ratio for name, ratio in made.items()} | {
            "close": level,
            "adj_close": level,
        }
        return replace(self, bars=bars.drop(columns="price").assign(**made))

    def cut(self, *, stocks: int, sessions: int, seed: int) -> "History":
        """Return a smaller history: so many of the stocks and of their last sessions."""
        generator = np.random.default_rng(seed)
        symbols = np.array(self.market.symbols)
        chosen = sorted(generator.permutation(len(symbols))[:stocks])
        market = self.market.with_symbols(symbols[chosen].tolist())
        stock, index = (
            self.bars["symbol"].isin(market.symbols),
            self.bars["symbol"] == market.index.symbol,
        )
        days = np.sort(self.bars.loc[stock, "session"].unique())[-sessions:]
        return replace(
            self, bars=self.bars[(stock | index) & self.bars["session"].isin(days)], market=market
        )

    def _market_at(self, at: pd.Timestamp, entry: date, leaving: Sequence[str]) -> Market:
        """Return the market with its later entries, and the exits of those
        `leaving`, all on one day.
        """
        day = at.date()

        def seen(stay: Constituent) -> Constituent:
            since = entry if stay.since is not None and stay.since > day else stay.since
            is_over = stay.until is not None and stay.until <= day
            until = stay.until if is_over else entry if stay.symbol in leaving else None
            return replace(stay, since=since, until=until)

        return replace(self.market, constituents=tuple(map(seen, self.market.constituents)))

    def _some_constituents(self, at: pd.Timestamp, seed: int) -> list[str]:
        """Draw one constituent with a bar of that session, and a share of the others."""
        traded = set(self.bars.loc[self.bars["session"] == at, "symbol"])
        listed = [
            each.symbol for each in self.market.constituents_on(at.date()) if each.symbol in traded
        ]
        drawn = np.random.default_rng([seed, 1]).permutation(len(listed))[
            : 1 + int(STRUCK * len(listed))
        ]
        return [listed[i] for i in drawn]


@dataclass(frozen=True)
class Pipeline:
    """The honest way from a history to predictions, in the steps of a night; a leak overrides one
    of them.

    `fits` keeps each ensemble by all that decides its weights: equal days give equal weights, so
    the checks of an audit train once where they would train often.
    """

    experiment: Experiment
    fits: dict[str, Ensemble] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def received(self, history: History) -> History:
        """Return the history as its source hands it over."""
        return history

    def windows(self, history: History) -> Windows:
        """Return the windows of all days; a stock is observed while it was a constituent."""
        market, how = history.market, self.experiment.windows
        symbols, index = self.symbols(market), market.index.symbol
        made = build_windows(
            history.bars, sessions=history.sessions, symbols=symbols, index_symbol=index, config=how
        )
        return made.only(market.membership(made.as_of, symbols))

    def symbols(self, market: Market) -> tuple[str, ...]:
        """Return the stocks of a window, in order."""
        return market.symbols

    def spans(self, windows: Windows, as_of: pd.Timestamp) -> tuple[Windows, Windows]:
        """Return the days that a training as of a date fits, and those that choose its epoch."""
        return self.experiment.spans(windows, as_of.date())

    def fit(self, train: Windows, validation: Windows) -> Ensemble:
        """Train all members, once for equal days and settings."""
        key = hashlib.sha256(repr(self.experiment).encode())
        for part in (train, validation):
            key.update(part.digest.encode() + part.movement.contiguous().numpy().tobytes())
        if (name := key.hexdigest()) not in self.fits:
            members, mine = self.experiment.members_of(), self.experiment
            weights = stack_members(fit_members(train, validation, members, device=CPU))
            seeds = tuple(each.seed for each in members)
            self.fits[name] = Ensemble(
                "audit", train.symbols, seeds, mine.model, mine.windows, weights
            )
        return self.fits[name]

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:
        """Return the model that serves from the close of a date on."""
        return self.fit(*self.spans(windows, as_of))

    def predict(self, ensemble: Ensemble, windows: Windows) -> pd.DataFrame:
        """Return rows as `dtml.inference.predict` does, a day at a time, as nights are
        predicted.
        """
        days = windows.observed.any(dim=1).nonzero().flatten().tolist()
        return pd.concat(
            [predict(ensemble, windows.days(slice(day, day + 1)), CPU) for day in days],
            ignore_index=True,
        )
