"""Measure what a list of survivors adds to a ranking and to its portfolio.

`python -m benchmarks.members_of_the_day [--boosting]`: CSI 300 is walked twice with the same
settings, those of the package. One walk ranks the constituents of each day, of which every session
has exactly 300; the other ranks, on all days, the constituents of the last day. The two are paired
by day: rank IC, and the daily returns of the portfolio after costs, of all stocks in equal parts,
and of the first over the second.
"""

import argparse
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from benchmarks.shared_data import SHARED
from dtml.backtest.performance import performance, session_sharpe
from dtml.backtest.portfolio import equal_weight_track
from dtml.backtest.quotes import Quotes
from dtml.backtest.turnover import track_of
from dtml.evaluation.metrics import Estimate
from dtml.evaluation.ranking import both_known, mean_of_days, rank_ics, score_ranking
from dtml.evaluation.survivorship import survivorship_of
from dtml.markets import Market
from dtml.markets.definition import YEAR
from dtml.pages.survivorship import survivorship_words
from dtml.prices.sessions import sessions_between
from dtml.ranking.rankers import BLEND, RankersConfig
from dtml.ranking.rankers import walk as walk_rankers
from dtml.ranking.walk import History, folds
from flows.studies.csi300 import Files, history_of, market_of, read_bars

FILES = Files(
    prices=SHARED / "prices" / "csi300_asof.parquet",
    index=SHARED / "index" / "SH000300.parquet",
    members=SHARED / "prices" / "csi300_asof_members.csv",
)
BEGINNING = date(2010, 1, 4)
FIRST = date(2013, 1, 4)  # close scored; three years lie before it
LAST = date(2020, 7, 30)
END = date(2020, 7, 31)
Daily = Float[ndarray, " days"]


@dataclass(frozen=True)
class Walked:
    """What a walk over a list gave on each day: rank ICs by ranker, and returns of portfolios."""

    rank_ic: Mapping[str, "pd.Series[float]"]
    portfolio: pd.DataFrame
    equal: pd.DataFrame
    t: Mapping[str, float]


def walked(market: Market, bars: pd.DataFrame, history: History, *, boosting: bool) -> Walked:
    """Walk the rankers over the constituents of a market, and trade the ranking."""
    splits = folds(history, pd.Timestamp(FIRST), pd.Timestamp(LAST))
    config = RankersConfig(history.leg)
    if not boosting:
        # `walk` trains both; with one tree the boosting takes no time, and is not reported.
        config = replace(config, boosting=replace(config.boosting, trees=1))
    scores = walk_rankers(history, splits, config)
    names = ("ridge", "boosting", BLEND) if boosting else ("ridge",)
    days = slice(splits[0].scored.start, splits[-1].scored.stop)
    sessions = history.panel.sessions[days]
    rank_ic: dict[str, pd.Series[float]] = {}
    ts: dict[str, float] = {}
    for name in names:
        known = both_known(scores[name][days], history.outcome[days])
        rank_ic[name] = pd.Series(rank_ics(*known), index=sessions)
        ts[name] = score_ranking(*known)["t"]
    traded = np.where(history.there[days], scores[names[-1]][days], np.nan)
    all_sessions = sessions_between(market.calendar, BEGINNING, END)
    quotes = Quotes.of(
        bars,
        all_sessions,
        history.panel.symbols,
        market.returns,
        max_return=market.checks.max_return,
        price_limit=market.trading.price_limit,
    )
    every = np.where(np.isfinite(traded), 0.5, np.nan)
    return Walked(
        rank_ic=rank_ic,
        portfolio=track_of(traded, sessions, quotes, market.trading),
        equal=equal_weight_track(every, sessions, quotes, "next_open"),
        t=ts,
    )


def survivors(market: Market, day: date) -> Market:
    """Return the market with the constituents of one day on all days."""
    stays = [replace(stay, since=None, until=None) for stay in market.constituents_on(day)]
    return replace(market, constituents=tuple(stays))


def shown(estimate: Estimate, digits: int = 4, unit: float = 1.0) -> str:
    """Return a figure with its interval."""
    low, high = estimate.low * unit, estimate.high * unit
    return f"{estimate.value * unit:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def row(words: str, dated: "pd.Series[float]", alive: "pd.Series[float]", unit: float) -> str:
    """Return a line of the table: both means over days, and their difference paired by day."""
    paired = pd.concat([dated, alive], axis=1).dropna().to_numpy()
    gain = mean_of_days(paired[:, 1] - paired[:, 0])
    digits = 4 if unit == 1 else 1
    cells = [
        words,
        shown(mean_of_days(paired[:, 0]), digits, unit),
        shown(mean_of_days(paired[:, 1]), digits, unit),
        shown(gain, digits, unit),
    ]
    return f"| {' | '.join(cells)} |"


def net(track: pd.DataFrame) -> "pd.Series[float]":
    """Return the net return of each session."""
    return pd.Series(track["net"].to_numpy(), index=pd.DatetimeIndex(track["session"]))


def main() -> None:
    """Walk both lists, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boosting", action="store_true", help="also train boosting, and a blend")
    boosting = parser.parse_args().boosting
    begin = time.perf_counter()
    dated_market = market_of(FILES.members, END)
    sessions = sessions_between(dated_market.calendar, BEGINNING, END)
    counts = dated_market.is_constituent(sessions).sum(axis=1)
    assert (counts == 300).all(), "a session has not 300 constituents"
    print(f"{len(sessions)} sessions, {counts.min()} to {counts.max()} constituents on each")
    bars = read_bars(dated_market, FILES, END)
    history = history_of(dated_market, bars, "next_close")
    dated = walked(dated_market, bars, history, boosting=boosting)
    alive_market = survivors(dated_market, END)
    history = history_of(alive_market, bars, "next_close")
    alive = walked(alive_market, bars, history, boosting=boosting)
    print("| daily mean | constituents of the day | those of the last day | survivors add |")
    print("| --- | --- | --- | --- |")
    for name in dated.rank_ic:
        print(row(f"rank IC, {name}", dated.rank_ic[name], alive.rank_ic[name], 1.0))
    a_year = YEAR * 100  # percent a year
    print(row("equal parts of all, % a year", net(dated.equal), net(alive.equal), a_year))
    best = list(dated.rank_ic)[-1]
    words = f"top {dated_market.trading.top} of {best} after costs, % a year"
    print(row(words, net(dated.portfolio), net(alive.portfolio), a_year))
    excesses = [net(each.portfolio) - net(each.equal) for each in (dated, alive)]
    print(row("the same over equal parts, % a year", *excesses, a_year))
    for words, each in (("of the day", dated), ("of the last day", alive)):
        figures = performance(each.portfolio, trials=None, index=each.equal)
        equal = session_sharpe(each.equal["net"].to_numpy()) * YEAR**0.5
        print(
            f"{words}: t {each.t}; Sharpe {figures.sharpe:.2f} [{figures.sharpe_low:.2f}, "
            f"{figures.sharpe_high:.2f}], of equal parts {equal:.2f}"
        )
    scored = sessions_between(dated_market.calendar, FIRST, LAST)
    for market in (dated_market, alive_market):
        print(survivorship_words(survivorship_of(market, scored, bars)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{time.perf_counter() - begin:.0f} s, {peak:.1f} GB at the peak")


if __name__ == "__main__":
    main()
