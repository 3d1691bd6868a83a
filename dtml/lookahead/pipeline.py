"""The honest path from bars to predictions, as of a night and a backtest, without a store.

A `History` is what may be read; the store's queries are audited in `flows.audit`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
import pandas as pd
import torch

from dtml.checkpoints import Ensemble
from dtml.experiments import Experiment
from dtml.inference import predict
from dtml.markets import Constituent, Market
from dtml.prices.bars import PRICES
from dtml.prices.sessions import next_session, sessions_between
from dtml.training import fit_members, stack_members
from dtml.windows import Windows, build_windows

Answer = pd.DataFrame | np.ndarray
Said = Mapping[str, Answer]  # what a path says of the sessions up to a date, by name
LOOK_BACK = 10  # sessions before a date that are predicted when the date is checked
LOOK_AHEAD = 5  # sessions after the date that are predicted too
CPU = torch.device("cpu")
ADJUSTED_TOO = [*PRICES, "adj_close"]
NEVER = date(9999, 1, 1)  # an entry on this day is none
STRUCK = 0.2  # share of stocks that lose bars or end when a history is changed
LOST = 0.05  # share of the later rows that a scrambled future lacks
BUSIER = 1000.0  # factor by which a stock may trade more in a scrambled future
DEARER = 4.0  # factor by which its prices may be higher there


@dataclass(frozen=True)
class History:
    """The data that a pipeline may read.

    `bars`: `symbol, session, open, high, low, close, adj_close, volume`; `sessions` from the first
    bar to one after the last; `market` knows the memberships.
    """

    bars: pd.DataFrame
    sessions: pd.DatetimeIndex
    market: Market

    def known_at(self, at: pd.Timestamp) -> "History":
        """Return what was known at a session's close: no later bar, entry or exit."""
        return replace(
            self,
            bars=self.bars[self.bars["session"] <= at],
            market=self._market_at(at, change_day=NEVER, leaving=()),
        )

    def with_holes(self, at: pd.Timestamp, seed: int) -> "History":
        """Return the history in which some constituents lack the bar of `at`, or also the last."""
        struck = self._some_constituents(at, seed)
        day_before, day = self.sessions[self.sessions <= at][-2:]
        session, symbol = self.bars["session"], self.bars["symbol"]
        lost = (session == day) & symbol.isin(struck)
        lost |= (session == day_before) & symbol.isin(struck[::2])
        return replace(self, bars=self.bars[~lost])

    def scrambled_after(self, at: pd.Timestamp, seed: int) -> "History":
        """Return the history with other prices, volumes, memberships and gaps after `at`."""
        generator = np.random.default_rng(seed)
        ended = self._some_constituents(at, seed)
        is_past = self.bars["session"] <= at
        later = self.bars[~is_past & ~self.bars["symbol"].isin(ended)]
        future = later[generator.random(len(later)) > LOST].sort_values(["symbol", "session"])
        # Each stock keeps its sessions, on which its bars come in another order.
        shuffled_places = generator.permutation(len(future))
        drawn = future.iloc[shuffled_places].sort_values("symbol", kind="stable")
        # One factor for all prices of a bar, of about 5 % up or down, and one of each stock, so
        # that its highest price may lie in the future; another of its volumes, so that a ranking of
        # stocks by volume changes.
        noise = np.exp(0.05 * generator.standard_normal(len(drawn)))
        symbols = self.bars["symbol"].unique()
        times_busier, times_dearer = (
            drawn["symbol"].map(pd.Series(most ** generator.random(len(symbols)), symbols))
            for most in (BUSIER, DEARER)
        )
        inserted = drawn.assign(
            session=future["session"].to_numpy(),
            volume=drawn["volume"] * times_busier,
            **drawn[ADJUSTED_TOO].mul(noise * times_dearer, axis=0),
        )
        day_after = (at + pd.Timedelta(1, "D")).date()
        return replace(
            self,
            bars=pd.concat([self.bars[is_past], inserted]),
            market=self._market_at(at, change_day=day_after, leaving=ended),
        )

    def rescaled(self) -> "History":
        """Return the same history as a source restates it after later corporate actions.

        A dividend of half the price for all, splits of 4 to 1 for every second stock: powers of 2,
        which change no bit of what does not depend on the scale.
        """
        symbols = sorted(self.bars["symbol"].unique())
        is_divided = self.bars["symbol"].isin(symbols[::2])
        scale = np.where(is_divided, 0.25, 1.0)
        scaled = {name: self.bars[name] * scale for name in ADJUSTED_TOO}
        bars = self.bars.assign(**scaled)
        bars = bars.assign(adj_close=bars["adj_close"] / 2, volume=bars["volume"] / scale)
        return replace(self, bars=bars)

    def cut(self, *, stocks: int, sessions: int, seed: int) -> "History":
        """Return some drawn stocks and the index in the last `sessions` in which one has a bar."""
        generator = np.random.default_rng(seed)
        symbols = np.array(self.market.symbols)
        shuffled = generator.permutation(len(symbols))
        chosen = sorted(shuffled[:stocks])  # the stocks stay in the order of the market
        market = self.market.with_symbols(symbols[chosen].tolist())
        is_stock = self.bars["symbol"].isin(market.symbols)
        is_index = self.bars["symbol"] == market.index.symbol
        all_days = np.sort(self.bars.loc[is_stock, "session"].unique())
        is_recent = self.bars["session"].isin(all_days[-sessions:])
        is_kept = (is_stock | is_index) & is_recent
        return replace(self, bars=self.bars[is_kept], market=market)

    def _market_at(self, at: pd.Timestamp, *, change_day: date, leaving: Sequence[str]) -> Market:
        """Return the market with the same memberships up to `at`, and others after it.

        All later entries happen on `change_day`, on which `leaving` leave; other later exits are
        dropped. `NEVER` drops the entries too.
        """
        day = at.date()

        def changed(stay: Constituent) -> Constituent:
            since = stay.since
            if since is not None and since > day:
                since = change_day
            until = stay.until
            if until is None or until > day:
                until = change_day if stay.symbol in leaving else None
            return replace(stay, since=since, until=until)

        constituents = tuple(changed(stay) for stay in self.market.constituents)
        return replace(self.market, constituents=constituents)

    def _some_constituents(self, at: pd.Timestamp, seed: int) -> list[str]:
        """Draw constituents with a bar of that session: one, and a share `STRUCK` of all such."""
        traded = set(self.bars.loc[self.bars["session"] == at, "symbol"])
        constituents = [
            stay.symbol for stay in self.market.constituents_on(at.date()) if stay.symbol in traded
        ]
        # Another series of draws than that of `scrambled_after`, whose seed is `seed` alone.
        drawn = np.random.default_rng([seed, 1]).permutation(len(constituents))
        count = 1 + int(STRUCK * len(constituents))
        return [constituents[place] for place in drawn[:count]]


@dataclass(frozen=True)
class Pipeline:
    """The honest way from a history to predictions, in a night's steps; a leak overrides one."""

    experiment: Experiment

    def windows(self, history: History) -> Windows:
        """Return the windows of all days; a stock is observed while it was a constituent."""
        symbols = self.symbols(history.market)
        windows = build_windows(
            history.bars,
            sessions=history.sessions,
            symbols=symbols,
            index_symbol=history.market.index.symbol,
            config=self.experiment.windows,
        )
        return windows.only(history.market.is_constituent(windows.as_of, symbols))

    def symbols(self, market: Market) -> tuple[str, ...]:
        """Return the stocks of a window, in order."""
        return market.symbols

    def spans(self, windows: Windows, as_of: pd.Timestamp) -> tuple[Windows, Windows]:
        """Return the days that a training as of a date fits, and those that choose its epoch."""
        return self.experiment.spans(windows, as_of.date())

    def fit(self, train: Windows, validation: Windows) -> Ensemble:
        """Train all members."""
        members = self.experiment.members_of()
        return Ensemble(
            market="audit",
            symbols=train.symbols,
            seeds=tuple(member.seed for member in members),
            model=self.experiment.model,
            windows=self.experiment.windows,
            weights=stack_members(fit_members(train, validation, members, device=CPU)),
        )

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:
        """Return the model that serves from the close of a date on."""
        train, validation = self.spans(windows, as_of)
        return self.fit(train, validation)

    def predict(self, ensemble: Ensemble, windows: Windows) -> pd.DataFrame:
        """Return `dtml.inference.predict` a day at a time, as nights are."""
        has_stocks = windows.observed.any(dim=1)
        predictions = []
        for day in has_stocks.nonzero().flatten().tolist():
            of_day = windows.days(slice(day, day + 1))
            predictions.append(predict(ensemble, of_day, CPU))
        return pd.concat(predictions, ignore_index=True)

    def said(self, history: History, at: pd.Timestamp, trained: pd.Timestamp) -> Said:
        """Return the windows up to `at`, and the predictions of `at` and `LOOK_BACK` days before
        it.

        By a model as of `trained`, together with `LOOK_AHEAD` later days, as in a backtest.
        """
        windows = self.windows(history)
        rows = self.predict(self.model(windows, trained), days_around(windows, at, back=LOOK_BACK))
        past = windows.days(slice(0, int((windows.as_of <= at).sum())))
        days = pd.MultiIndex.from_arrays([past.as_of, past.target])
        is_known = torch.from_numpy(past.target <= at)[:, None]
        return {
            "days and stocks": pd.DataFrame(past.observed.numpy(), days, list(past.symbols)),
            "windows of stocks": past.stocks.numpy(),
            "windows of the index": past.index.numpy(),
            "outcomes": past.movement.where(is_known, torch.nan).numpy(),
            "predictions": rows[rows["as_of"] <= at].reset_index(drop=True),
        }


def days_around(windows: Windows, at: pd.Timestamp, back: int) -> Windows:
    """Return the day of a date, and up to `back` days before it and `LOOK_AHEAD` after it."""
    place = int(windows.as_of.searchsorted(at))
    return windows.days(slice(max(0, place - back), place + 1 + LOOK_AHEAD))


def past_of(market: Market, bars: pd.DataFrame) -> History:
    """Return a market's bars as the history that the audit cuts and changes."""
    first = bars["session"].min().date()
    # A `History` has the sessions of its bars and at least one after them.
    last = next_session(market.calendar, bars["session"].max().date())
    return History(
        bars=bars,
        sessions=sessions_between(market.calendar, first, last),
        market=market,
    )
