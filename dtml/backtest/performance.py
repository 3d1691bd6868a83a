"""The usual statistics of a portfolio, and how much of them chance and many trials explain.

Sharpe ratios are of net returns, without a risk-free rate. `year` is the exchange's sessions a
year.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.bootstrap import difference
from dtml.evaluation.metrics import RESAMPLES, UNKNOWN, Estimate, estimate
from dtml.evaluation.ranking import Daily
from dtml.markets.definition import BASIS_POINT, YEAR


@dataclass(frozen=True)
class Performance:
    """The statistics of a portfolio over `days` sessions, after costs; ratios, not percent.

    - `annual_return` is geometric; `annual_volatility` is NaN for a single session;
    - `sharpe` is per year, with its 95 % interval; NaN where returns do not vary, the ends also
      below `dtml.evaluation.metrics.MINIMUM_DAYS`;
    - `index_gain` is this ratio less that of the index, with the interval of the difference; NaN as
      `sharpe`, and without an index;
    - `deflated_sharpe`, in [0, 1]; NaN without trials;
    - `max_drawdown` is 0 or less; `hit_rate` is the share of days with a return above 0;
    - `turnover` is the mean per day, a share of the equity;
    - `break_even` is the cost in basis points of the value traded at which the mean return, less
      borrow, is 0; NaN without turnover;
    - `settled` counts the positions that met an unexplained move; `unbooked` is the return, in
      shares of the equity, that these moves would have added.
    """

    days: int
    annual_return: float
    annual_volatility: float
    sharpe: float
    sharpe_low: float
    sharpe_high: float
    index_gain: float
    index_gain_low: float
    index_gain_high: float
    deflated_sharpe: float
    max_drawdown: float
    hit_rate: float
    turnover: float
    break_even: float
    settled: int
    unbooked: float


def performance(
    track: pd.DataFrame,
    *,
    trials: Sequence[float] | None,
    index: pd.DataFrame | None = None,
    resamples: int = RESAMPLES,
    year: int = YEAR,
) -> Performance:
    """Return the statistics of a track of `dtml.backtest.portfolio.follow` that has a day.

    `trials` are the Sharpe ratios per session of every portfolio tried, this one included; None for
    one that was not chosen. `index` is the index's track at the same fills.
    """
    net = track["net"].to_numpy(dtype=float)
    ratio = sharpe(net, resamples=resamples, year=year)
    gain = UNKNOWN
    if index is not None:
        # `merge` calls the returns of the track net_x, and those of the index net_y.
        paired = track[["session", "net"]].merge(index[["session", "net"]], on="session")
        own, of_index = paired[["net_x", "net_y"]].to_numpy().T
        gain = sharpe(own, of_index, resamples=resamples, year=year)
    turnover = float(track["turnover"].mean())
    before_trading_costs = float((track["gross"] - track["borrow"]).mean())
    return Performance(
        days=len(net),
        annual_return=float(equity(net)[-1] ** (year / len(net)) - 1),
        annual_volatility=float(net.std(ddof=1) * np.sqrt(year)) if len(net) > 1 else np.nan,
        **ratio.named("sharpe"),
        **gain.named("index_gain"),
        deflated_sharpe=np.nan if trials is None else deflated_sharpe(net, trials),
        max_drawdown=float(drawdown(net).min()),
        hit_rate=float((net > 0).mean()),
        turnover=turnover,
        break_even=before_trading_costs / turnover / BASIS_POINT if turnover > 0 else np.nan,
        settled=int(track["settled"].sum()),
        unbooked=float(track["unbooked"].sum()),
    )


def equity(net: Daily) -> Daily:
    """Return the value of an initial 1 at the end of each day."""
    return np.cumprod(1 + net)


def drawdown(net: Daily) -> Daily:
    """Return how far equity is below its highest value so far, from 1 on; 0 or less."""
    value = equity(net)
    highest = np.maximum.accumulate(np.maximum(value, 1))
    return value / highest - 1


def session_sharpe(net: Daily) -> float:
    """Return the mean return over its deviation (ddof 1), not annualised; NaN if constant."""
    if len(net) < 2 or np.ptp(net) == 0:
        return np.nan
    return float(net.mean() / net.std(ddof=1))


def sharpe(
    net: Daily, other: Daily | None = None, *, resamples: int = RESAMPLES, year: int = YEAR
) -> Estimate:
    """Return the Sharpe ratio per year, or how far it exceeds that of `other` on the same days.

    The interval resamples days. NaN where any returns do not vary.
    """
    tracks = [net] if other is None else [net, other]
    ratios = [session_sharpe(each) for each in tracks]
    value = ratios[0] if other is None else ratios[0] - ratios[1]
    if np.isnan(value):
        return UNKNOWN
    # Those of the first and then those of the second, as `difference` takes them.
    summands = np.concatenate([_summands(each) for each in tracks], axis=-1)
    statistic = _sharpe_of_totals if other is None else difference(_sharpe_of_totals)
    found = estimate(summands, statistic, resamples=resamples)
    # Not the value found, because totals keep only seven digits.
    return Estimate(*(float(each * np.sqrt(year)) for each in (value, found.low, found.high)))


def _summands(net: Daily) -> Float[ndarray, "days 3"]:
    """Return what each day adds to the number of days, the returns and their squares.

    Returns are divided by their range: resampled totals keep only seven digits.
    """
    unit = net / np.ptp(net)
    return np.stack([np.ones_like(unit), unit, unit**2], axis=-1)


def deflated_sharpe(net: Daily, trials: Sequence[float]) -> float:
    """Return the probability that the true Sharpe ratio exceeds the best to expect by chance.

    Bailey & Lopez de Prado, "The Deflated Sharpe Ratio" (2014), eq. 2, against `expected_best`,
    allowing for skew and fat tails; with one trial their probabilistic Sharpe ratio against 0
    (2012). `trials` are per session, NaN ones left out. Days and trials count as independent. NaN
    if `net` does not vary.
    """
    from scipy.special import ndtr
    from scipy.stats import kurtosis, skew

    ratio = session_sharpe(net)
    if np.isnan(ratio):
        return np.nan
    tails = (kurtosis(net, fisher=False) - 1) / 4
    error = np.sqrt(1 - skew(net) * ratio + tails * ratio**2)
    return float(ndtr((ratio - expected_best(trials)) * np.sqrt(len(net) - 1) / error))


def expected_best(trials: Sequence[float]) -> float:
    """Return the highest Sharpe ratio that chance alone leads to expect of these trials.

    It is in their unit, and 0 for one trial. Eq. 1 of Bailey & Lopez de Prado (2014), with the
    variance across trials (ddof 1), which trials that resemble each other lower: the ratio is then
    deflated too little.
    """
    from scipy.special import ndtri

    number = int(np.isfinite(trials).sum())
    if number < 2:
        return 0.0
    # The expected maximum of as many standard normal numbers, from two of their quantiles.
    lower_quantile = ndtri(1 - 1 / number)
    upper_quantile = ndtri(1 - 1 / (number * math.e))
    highest = (1 - np.euler_gamma) * lower_quantile + np.euler_gamma * upper_quantile
    return float(np.nanstd(trials, ddof=1) * highest)


def _sharpe_of_totals(totals: ndarray) -> ndarray:
    """Return the Sharpe ratio from the totals of `_summands`; 0 where a resample does not vary."""
    days, total, squares = np.moveaxis(totals, -1, 0)
    mean = total / days
    deviation = np.sqrt(np.maximum(squares / days - mean**2, 0) * days / (days - 1))
    varies = deviation > 1e-6  # of the range of all returns; less is rounding
    return np.asarray(np.divide(mean, deviation, out=np.zeros_like(mean), where=varies))
