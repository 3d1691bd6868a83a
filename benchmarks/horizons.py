"""Measure what a ranking earns above equal parts when it is held for 1, 5, 10 or 20 sessions.

`python -m benchmarks.horizons [kospi200 sp500 csi300] [--prices FOLDER]`. For each market and
holding period, ridges are trained and walked with the gap that its outcomes need. Three ways to
trade are compared: all at once, in staggered parts, and by separate ranks to buy and to hold.
Features, penalty and the settings of each way are chosen on the sessions before the first scored
close alone; the scored days are then read once. Figures are net of the costs in the market's file,
less what equal parts of all stocks earned without costs.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from benchmarks.holding import Stagger, staggered_track, two_rank_track
from benchmarks.shared_data import SHARED
from dtml.backtest.performance import session_sharpe
from dtml.backtest.portfolio import equal_weight_track
from dtml.backtest.quotes import Quotes
from dtml.evaluation.metrics import day_interval, ratio
from dtml.evaluation.ranking import both_known, paired_rank_ic, rank_ics, score_ranking
from dtml.evaluation.splits import Split
from dtml.markets import Market, load_market
from dtml.markets.definition import YEAR, Constituent, FeatureSet, Leg, Trading
from dtml.prices.bars import HINDSIGHT, bars_frame, check
from dtml.prices.sessions import sessions_between
from dtml.ranking.features import FEATURE_SETS
from dtml.ranking.models import RANK_VARIANCE
from dtml.ranking.outcomes import outcomes, sessions_to
from dtml.ranking.panel import Grid
from dtml.ranking.walk import History, earliest, folds, market_panel

# Sessions that each holding period takes.
HORIZONS: Mapping[Leg, int] = {
    "open_to_open": 1,
    "five_days": 5,
    "ten_days": 10,
    "twenty_days": 20,
}
PENALTIES = (0.1, 1.0, 10.0)
TOPS = (20, 50)
SMOOTH = (1, 5, 20)
BANDS = (1.0, 2.0)  # of a portfolio that is traded seldom
HOLD_BANDS = (2.0, 3.0, 5.0)  # of one that is traded every session
# Sessions before a portfolio's first whose prices are read, for the last price of each stock.
PRICED_BEFORE = 80
ALL_AT_ONCE, STAGGERED, TWO_RANKS = WAYS = ("all at once", "staggered", "two ranks")
RESAMPLES = 10_000

Sums = tuple[Float[ndarray, "features features"], Float[ndarray, " features"], int]


@dataclass(frozen=True)
class PriceFile:
    """A price file, the market whose calendar, checks and costs it has, and the days scored.

    `validation` is the number of sessions before `first` on which everything is chosen. `members`
    is a table of the members as of each day; None if all stocks of the file always count.
    """

    market: str
    prices: str
    first: str
    last: str
    validation: int = YEAR
    members: str | None = None


FILES: Mapping[str, PriceFile] = {
    "kospi200": PriceFile("kospi200", "kospi200_2020", "2022-01-03", "2026-05-29"),
    "sp500": PriceFile("sp500", "sp500", "2018-01-02", "2022-12-30"),
    "csi300": PriceFile(
        "csi300",
        "csi300_asof",
        "2017-01-03",
        "2020-07-31",
        validation=488,  # 2015 and 2016
        members="csi300_asof_members",
    ),
}


def market_of(file: PriceFile, folder: Path, symbols: Sequence[str]) -> Market:
    """Return the market of a price file, with the stocks of the file as its constituents."""
    market = load_market(file.market)
    stays: list[Constituent] = []
    if file.members is None:
        stays = [Constituent(symbol, symbol) for symbol in symbols]
    else:
        table = pd.read_csv(folder / f"{file.members}.csv", dtype=str)
        priced = table[table["symbol"].isin(symbols)]
        for symbol, since, until in priced.itertuples(index=False):
            # The table's last day is one of membership; a constituent's `until` is the day after.
            left = pd.NaT if pd.isna(until) else pd.Timestamp(until) + pd.Timedelta(1, "D")
            stays.append(
                Constituent(
                    symbol,
                    symbol,
                    since=pd.Timestamp(since).date(),
                    until=None if left is pd.NaT else left.date(),
                )
            )
    return replace(market, constituents=tuple(stays))


@dataclass(frozen=True)
class Prices:
    """What is read of a price file: ranked features of all sessions, and quotes to trade at."""

    file: PriceFile
    market: Market
    history: History  # of the shortest leg, with the features of the set "long"
    quotes: Quotes

    @classmethod
    def read(cls, file: PriceFile, folder: Path) -> "Prices":
        """Read a price file of a folder, and check its bars as a night does."""
        table = pd.read_parquet(folder / f"{file.prices}.parquet")
        bars = bars_frame(table.rename(columns={"date": "session"}))
        market = market_of(file, folder, sorted(bars["symbol"].unique()))
        bars = bars[bars["symbol"].isin(market.symbols)]
        days = bars["session"]
        sessions = sessions_between(market.calendar, days.min().date(), days.max().date())
        checked = check(
            bars,
            sessions=sessions,
            closed_until=sessions[-1].date(),
            checks=market.checks,
            index_symbol=market.index.symbol,
            returns=market.returns,
        )
        panel = market_panel(market, checked.accepted)
        largest = market.checks.max_return
        history = History.of(
            panel,
            "open_to_open",
            market.is_constituent(panel.sessions, panel.symbols),
            max_return=largest,
            feature_set="long",
        )
        quotes = Quotes.of(
            checked.accepted,
            sessions,
            panel.symbols,
            market.returns,
            max_return=largest,
            refused=lasting_leaps(checked.rejected),
            price_limit=market.trading.price_limit,
        )
        return cls(file, market, history, quotes)

    def history_of(self, leg: Leg) -> History:
        """Return the history of a leg."""
        panel = self.history.panel
        outcome = outcomes(panel, leg, max_return=self.market.checks.max_return)
        known = np.where(self.history.there, outcome, np.nan)
        return replace(self.history, leg=leg, outcome=known)

    @cached_property
    def spans(self) -> tuple[slice, slice]:
        """Return the positions of the validation days, and of the scored days.

        The validation begins on the same day for all legs.
        """
        sessions = self.history.panel.sessions
        first = int(sessions.searchsorted(pd.Timestamp(self.file.first)))
        stop = int(sessions.searchsorted(pd.Timestamp(self.file.last), side="right"))
        begin = max(first - self.file.validation, earliest("twenty_days"))
        return slice(begin, first), slice(first, stop)

    def quotes_on(self, days: slice) -> Quotes:
        """Return the quotes that a portfolio of some days reads: those of other days cost time."""
        sessions = self.history.panel.sessions[days]
        quotes = self.quotes
        begin = int(quotes.sessions.searchsorted(sessions[0])) - PRICED_BEFORE
        stop = int(quotes.sessions.searchsorted(sessions[-1])) + 3  # its fill, and the fill after
        rows = slice(max(begin, 0), stop)
        return Quotes(
            sessions=quotes.sessions[rows],
            open=quotes.open[rows],
            close=quotes.close[rows],
            symbols=quotes.symbols,
            moved=quotes.breaks[rows],
            limit=quotes.limits("next_open")[rows],
        )

    def folds(self, history: History, days: slice) -> list[Split]:
        """Return the folds of a walk over some days."""
        sessions = history.panel.sessions
        return folds(history, sessions[days.start], sessions[days.stop - 1])


def lasting_leaps(rejected: pd.DataFrame) -> pd.DataFrame:
    """Return the bars that were rejected for an unexplained return after which the price stayed."""
    key = ["symbol", "session"]
    came_back = pd.MultiIndex.from_frame(rejected.loc[rejected["reason"].isin(HINDSIGHT), key])
    leapt = rejected[rejected["reason"] == "unexplained_return"]
    return leapt[~pd.MultiIndex.from_frame(leapt[key]).isin(came_back)]


class RidgeWalk:
    """Ridges of several feature sets and penalties on one leg, from sums that grow with the days.

    A ridge needs only X'X and X'y, which are summed once for all folds, penalties and sets: the
    columns of the set "usual" come first among those of "long".
    """

    def __init__(self, history: History) -> None:
        self.history = history
        width = history.features.shape[-1]
        self._sums: Sums = (np.zeros((width, width)), np.zeros(width), 0)
        self._days = 0
        self._kept: dict[int, Sums] = {0: self._sums}

    def _until(self, stop: int) -> Sums:
        """Return the sums over the days before a position; positions may only grow."""
        if stop not in self._kept:
            rows, outcome = self.history.rows(slice(self._days, stop))
            x = np.nan_to_num(rows).astype(float)
            gram, x_outcome, count = self._sums
            self._sums = (gram + x.T @ x, x_outcome + x.T @ outcome, count + len(x))
            self._days = stop
            self._kept[stop] = self._sums
        return self._kept[stop]

    def scores(self, walked: Sequence[Split], feature_set: FeatureSet, penalty: float) -> Grid:
        """Return the scores of a ridge that is trained anew for each fold, [sessions stocks]."""
        width = len(FEATURE_SETS[feature_set])
        history = self.history
        scores = np.full_like(history.outcome, np.nan)
        for fold in walked:
            gram, x_outcome, count = self._until(fold.trained.stop)
            shrunk = gram[:width, :width] + penalty * count * RANK_VARIANCE * np.eye(width)
            weights = np.linalg.solve(shrunk, x_outcome[:width])
            features = np.nan_to_num(history.features[fold.scored, :, :width])
            scores[fold.scored] = features @ weights
        return np.where(history.there, scores, np.nan)


@dataclass(frozen=True)
class Horizon:
    """The scores of a leg on the validation and the scored days, and how they were chosen."""

    chosen: str
    gain_of_long: str  # in rank IC on validation days, of the features "long" over "usual"
    scores: Grid
    rank_ic: str  # on the scored days


def horizon_of(prices: Prices, leg: Leg) -> Horizon:
    """Choose features and penalty on validation days, and score the days that follow."""
    history = prices.history_of(leg)
    validation, scored = prices.spans
    overlap = sessions_to(leg)
    # The outcomes of these days ended before the first scored day.
    ended = slice(validation.start, validation.stop - overlap)
    outcome = history.outcome[ended]
    ridge = RidgeWalk(history)
    walked = prices.folds(history, validation)
    trials: dict[tuple[FeatureSet, float], Grid] = {}
    for feature_set, penalty in product(FEATURE_SETS, PENALTIES):
        trials[feature_set, penalty] = ridge.scores(walked, feature_set, penalty)

    def quality(trial: tuple[FeatureSet, float]) -> float:
        return float(np.nanmean(rank_ics(*both_known(trials[trial][ended], outcome))))

    best_set, best_penalty = max(trials, key=quality)
    scores = trials[best_set, best_penalty]
    later = ridge.scores(prices.folds(history, scored), best_set, best_penalty)
    scores[scored] = later[scored]
    long_scores = trials["long", best_penalty][ended]
    usual_scores = trials["usual", best_penalty][ended]
    gain = paired_rank_ic(long_scores, usual_scores, outcome, overlap=overlap)
    found = score_ranking(scores[scored], history.outcome[scored], overlap=overlap)
    return Horizon(
        chosen=f"{best_set} features, penalty {best_penalty:g}",
        gain_of_long=f"{gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]",
        scores=scores,
        rank_ic="{rank_ic:.4f} [{rank_ic_low:.4f}, {rank_ic_high:.4f}]".format(**found),
    )


@dataclass(frozen=True)
class Traded:
    """Some days on which portfolios are followed: the scores of each leg, and quotes."""

    as_of: pd.DatetimeIndex
    scores: Mapping[Leg, Grid]
    quotes: Quotes
    equal: pd.DataFrame  # the track of equal parts of all stocks ranked, without costs

    @classmethod
    def of(cls, prices: Prices, scores: Mapping[Leg, Grid], days: slice) -> "Traded":
        """Return what portfolios of some days read."""
        as_of = prices.history.panel.sessions[days]
        quotes = prices.quotes_on(days)
        of_days = {leg: of_leg[days] for leg, of_leg in scores.items()}
        half = np.where(prices.history.there[days], 0.5, np.nan)
        equal = equal_weight_track(half, as_of, quotes, "next_open")
        return cls(as_of, of_days, quotes, equal)


@dataclass(frozen=True)
class Setting:
    """One setting of a way to trade a horizon; `buy` is the leg whose ranking says what to buy."""

    way: str
    leg: Leg
    trading: Trading
    buy: Leg

    def track(self, traded: "Traded") -> pd.DataFrame:
        """Return what it earned on some days."""
        hold = traded.scores[self.leg]
        if self.way == TWO_RANKS:
            buy = traded.scores[self.buy]
            return two_rank_track(buy, hold, traded.as_of, traded.quotes, self.trading)
        horizon = HORIZONS[self.leg]
        stagger = Stagger(horizon, parts=horizon if self.way == STAGGERED else 1)
        return staggered_track(hold, traded.as_of, traded.quotes, self.trading, stagger)

    def __str__(self) -> str:
        words = f"{self.trading.top} stocks, {self.trading.smooth} nights, band "
        words = f"{words}{self.trading.band:g}"
        return f"{words}, bought by {self.buy}" if self.way == TWO_RANKS else words


def settings_of(way: str, leg: Leg, trading: Trading) -> Iterator[Setting]:
    """Yield every setting of a way to trade a horizon."""
    bands = HOLD_BANDS if way == TWO_RANKS else BANDS
    buys: tuple[Leg, ...] = tuple(HORIZONS) if way == TWO_RANKS else (leg,)
    for top, smooth, band, buy in product(TOPS, SMOOTH, bands, buys):
        yield Setting(way, leg, replace(trading, top=top, smooth=smooth, band=band), buy)


def a_year(gain: Float[ndarray, " days"]) -> str:
    """Return the mean gain of a year in percent, with its 95 % interval over days."""
    scaled = 100 * YEAR * gain
    summands = np.stack([scaled, np.ones_like(scaled)], axis=-1)[:, None]  # [days 1 2]
    low, high = day_interval(summands, ratio, resamples=RESAMPLES)
    return f"{scaled.mean():+.1f} % [{low[0]:+.1f}, {high[0]:+.1f}]"


@dataclass(frozen=True)
class Cell:
    """What a way to trade a horizon earned, with the setting that validation days chose."""

    setting: Setting
    validation_sharpe: float  # per session, of the gain over equal parts
    gain: str
    turnover: float


def cell_of(way: str, leg: Leg, trading: Trading, validation: Traded, scored: Traded) -> Cell:
    """Choose the setting of a way on validation days, and follow it on the scored days."""

    def gain_of(track: pd.DataFrame, traded: Traded) -> Float[ndarray, " days"]:
        return np.asarray(track["net"] - traded.equal["net"], dtype=float)

    settings = list(settings_of(way, leg, trading))
    ratios = [session_sharpe(gain_of(each.track(validation), validation)) for each in settings]
    best = int(np.nanargmax(ratios))
    track = settings[best].track(scored)
    gain = a_year(gain_of(track, scored))
    return Cell(settings[best], ratios[best], gain, float(track["turnover"].mean()))


def measure(name: str, folder: Path) -> None:
    """Print the tables of a market."""
    prices = Prices.read(FILES[name], folder)
    horizons = {leg: horizon_of(prices, leg) for leg in HORIZONS}
    scores = {leg: horizon.scores for leg, horizon in horizons.items()}
    print(f"\n**{name}**: {FILES[name].first} to {FILES[name].last}\n")
    print(
        "| sessions held | chosen on validation days | long over usual features, rank IC "
        "| rank IC [95 %] |\n| --- | --- | --- | --- |"
    )
    for leg, horizon in horizons.items():
        print(
            f"| {HORIZONS[leg]} | {horizon.chosen} | {horizon.gain_of_long} | {horizon.rank_ic} |"
        )
    print(
        "\n| sessions held | way | setting | turnover a day | over equal parts, a year [95 %] |"
        "\n| --- | --- | --- | --- | --- |"
    )
    validation, scored = prices.spans
    # The last ranking before the scored days is left out: its return ends after they begin.
    chosen_on = Traded.of(prices, scores, slice(validation.start, validation.stop - 1))
    read_once = Traded.of(prices, scores, scored)
    cells = []
    for leg, way in product(HORIZONS, WAYS):
        if HORIZONS[leg] == 1 and way == STAGGERED:
            continue  # a single part: the same as all at once
        cell = cell_of(way, leg, prices.market.trading, chosen_on, read_once)
        cells.append(cell)
        print(
            f"| {HORIZONS[leg]} | {way} | {cell.setting} | {cell.turnover:.1%} | {cell.gain} |",
            flush=True,
        )
    best = max(cells, key=lambda cell: cell.validation_sharpe)
    print(
        f"\n{name}: what validation days put first, {best.setting.way} for "
        f"{HORIZONS[best.setting.leg]} sessions, earned {best.gain} a year over equal parts"
    )


def main() -> None:
    """Print the tables of the markets named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("markets", nargs="*", metavar="MARKET", help=", ".join(FILES))
    parser.add_argument("--prices", type=Path, default=SHARED / "prices", metavar="FOLDER")
    options = parser.parse_args()
    unknown = [name for name in options.markets if name not in FILES]
    if unknown:
        parser.error(f"no such market: {', '.join(unknown)}")
    for name in options.markets or FILES:
        measure(name, options.prices)


if __name__ == "__main__":
    main()
