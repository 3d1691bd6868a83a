"""The metrics of a day's ranking: rank IC, AUC, ACC and MCC within the day, and decile spread.

ACC and MCC are against the median. Without skill the rank IC is 0, the AUC and the ACC are one half
and the MCC is 0, whatever the market does: a move that all stocks share changes no figure. The
sample is days: each figure is one number a day, averaged, but for ACC and MCC, which are of the
counts of all days. Intervals are those of `dtml.evaluation.bootstrap`: `interval`, or
`overlapping_interval` where outcomes overlap.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.evaluation.bootstrap import Statistic, Summands, difference, overlapping_interval
from dtml.evaluation.family import beside_strongest_rule, family_p
from dtml.evaluation.metrics import MINIMUM_DAYS, accuracy, confusion, day_interval, mcc, ratio
from dtml.ranking.panel import mean_of_known, ranked

Days = Float[ndarray, "days stocks"]
Daily = Float[ndarray, " days"]

RESAMPLES = 10_000
DECILES = 10
MINIMUM_STOCKS = 5  # a correlation of fewer means little


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval, whose ends are NaN below 20 days."""

    value: float
    low: float
    high: float

    def named(self, name: str) -> dict[str, float]:
        """Return the value and its ends as `NAME`, `NAME_low` and `NAME_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


@dataclass(frozen=True)
class RankScore:
    """How well the stocks of each day were ranked; see `score_ranking`.

    `days` are those with a rank IC. `icir` is the mean daily rank IC over its standard deviation,
    NaN below two days; `t` is the mean over its Newey-West standard error.
    """

    days: int
    stock_days: int
    rank_ic: Estimate
    icir: float
    t: float
    auc: Estimate
    acc: Estimate
    mcc: Estimate
    decile_spread: Estimate


def score_ranking(scores: Days, outcome: Days, *, overlap: int = 1) -> RankScore:
    """Score the ranking that `scores` give the stocks of each day against their returns.

    Returns are ratios minus 1. A stock-day counts if it has a score and an outcome, a day if at
    least `MINIMUM_STOCKS` of its stocks count. `overlap` is the number of days whose outcomes share
    a session, which `t` and the intervals allow for. ACC and MCC compare whether a stock's rank is
    in the upper half of its day by score and by return; equal values share their mean rank, and the
    middle itself is not above.
    """
    scores, outcome = both_known(scores, outcome)
    counts = against_median(scores, outcome)[:, None]  # [days models 4], of a single model
    return _score(
        rank_ic=rank_ics(scores, outcome),
        auc=within_day_aucs(scores, outcome),
        decile_spread=decile_spreads(scores, outcome),
        stock_days=int(np.isfinite(scores).sum()),
        acc_estimate=_estimate(counts, accuracy, overlap),
        mcc_estimate=_estimate(counts, mcc, overlap),
        overlap=overlap,
    )


def score_daily(daily: Mapping[str, Daily], *, overlap: int = 1) -> RankScore:
    """Score a ranking over days from the figures of each day.

    `daily` has the figures `n` (stock-days), `rank_ic, auc, acc, mcc, decile_spread`, each with a
    value a day. Here the MCC is the mean over days, because the counts of the days, from which
    `score_ranking` pools it, are not stored; all else is as in `score_ranking`.
    """
    n = daily["n"]
    correct_and_all = np.stack([daily["acc"] * n, n], axis=-1)[n > 0]  # [days 2]
    return _score(
        rank_ic=daily["rank_ic"],
        auc=daily["auc"],
        decile_spread=daily["decile_spread"],
        stock_days=int(n.sum()),
        acc_estimate=_estimate(correct_and_all[:, None].astype(float), ratio, overlap),
        mcc_estimate=mean_of_days(daily["mcc"], overlap=overlap),
        overlap=overlap,
    )


def _score(
    *,
    rank_ic: Daily,
    auc: Daily,
    decile_spread: Daily,
    stock_days: int,
    acc_estimate: Estimate,
    mcc_estimate: Estimate,
    overlap: int,
) -> RankScore:
    known_ics = rank_ic[np.isfinite(rank_ic)]
    icir = np.nan
    if len(known_ics) > 1:
        icir = float(known_ics.mean() / known_ics.std())
    return RankScore(
        days=len(known_ics),
        stock_days=stock_days,
        rank_ic=mean_of_days(rank_ic, overlap=overlap),
        icir=icir,
        t=rank_ic_t(rank_ic, overlap=overlap),
        auc=mean_of_days(auc, overlap=overlap),
        acc=acc_estimate,
        mcc=mcc_estimate,
        decile_spread=mean_of_days(decile_spread, overlap=overlap),
    )


def figures_of(score: RankScore) -> dict[str, float | int]:
    """Return the figures of a score under the names that the store gives them."""
    return {
        "days": score.days,
        "n": score.stock_days,
        "icir": score.icir,
        "t": score.t,
        **score.rank_ic.named("rank_ic"),
        **score.auc.named("auc"),
        **score.acc.named("acc"),
        **score.mcc.named("mcc"),
        **score.decile_spread.named("decile_spread"),
    }


def score_each_day(scores: Days, outcome: Days) -> pd.DataFrame:
    """Score the ranking of each day by itself, as `score_ranking` does: a row a day.

    The columns are those of `figures_of`. A day has no interval, `icir` or `t`.
    """
    scores, outcome = both_known(scores, outcome)
    rank_ic = rank_ics(scores, outcome)
    counts = against_median(scores, outcome)
    with np.errstate(invalid="ignore"):  # 0 / 0 on a day without a stock
        acc = accuracy(counts)
    n = counts.sum(axis=1)
    figures = {
        "days": np.isfinite(rank_ic).astype(int),
        "n": n,
        "icir": np.nan,
        "t": np.nan,
    }
    of_a_day = {
        "rank_ic": rank_ic,
        "auc": within_day_aucs(scores, outcome),
        "acc": acc,
        "mcc": np.where(n > 0, mcc(counts), np.nan),
        "decile_spread": decile_spreads(scores, outcome),
    }
    for name, values in of_a_day.items():
        figures |= {name: values, f"{name}_low": np.nan, f"{name}_high": np.nan}
    return pd.DataFrame(figures)


def paired_rank_ic(scores: Days, others: Days, outcome: Days, *, overlap: int = 1) -> Estimate:
    """Return the mean rank IC of some scores less that of others, on the stock-days that have both.

    `overlap` is as in `score_ranking`. A day counts if at least `MINIMUM_STOCKS` of its stocks do,
    and both rank ICs are known.
    """
    score_ics, other_ics = paired_daily_rank_ics(scores, others, outcome)
    is_known = np.isfinite(score_ics) & np.isfinite(other_ics)
    # The rank IC and the day (1) of both, whose totals `ratio` turns into the two means.
    summands = np.stack([score_ics, is_known, other_ics, is_known], axis=-1)[is_known]
    of_one_model = summands[:, None].astype(float)  # [days models 4]
    return _estimate(of_one_model, difference(ratio), overlap)


def rank_differences(
    predictions: Mapping[str, Days], outcome: Days, *, overlap: int = 1
) -> Iterator[dict[str, str | float]]:
    """Yield a row for each ordered pair of predictors: how far the first is ahead of the other.

    `predictions` are the scores of two or more predictors by name, on the same days and stocks as
    `outcome`. The columns are `predictor`, `other`, `gain, gain_low, gain_high` and `gain_p`. The
    `gain` is the difference of their mean rank ICs on the same stock-days, with the ends of its own
    interval; `gain_p` is its p-value, adjusted for all pairs (`dtml.evaluation.family`), from the
    days on which every pair has a difference. `overlap` is as in `score_ranking`.
    """
    pairs = list(combinations(predictions, 2))
    gains = []
    for first, second in pairs:
        first_ics, second_ics = paired_daily_rank_ics(
            predictions[first], predictions[second], outcome
        )
        gains.append(first_ics - second_ics)
    adjusted = family_p(np.stack(gains, axis=1), overlap=overlap)
    # A p-value is two-sided, so both orders of a pair have the same one.
    p_of_pair = {frozenset(pair): float(p) for pair, p in zip(pairs, adjusted, strict=True)}
    for first, second in permutations(predictions, 2):
        gain = paired_rank_ic(
            predictions[first],
            predictions[second],
            outcome,
            overlap=overlap,
        )
        yield {
            "predictor": first,
            "other": second,
            **gain.named("gain"),
            "gain_p": p_of_pair[frozenset((first, second))],
        }


def beside_rules(
    own: Daily, of_rules: Mapping[str, Daily], *, overlap: int = 1
) -> dict[str, Any] | None:
    """Compare a ranking's daily rank ICs with those of rules on the same days, by their names.

    Returns the strongest rule as `beside_strongest_rule` does, with its name as `other`; `gain_p`
    is adjusted for all the rules. `overlap` is as in `score_ranking`.
    """
    if not of_rules:
        return None
    gains = np.stack([own - daily for daily in of_rules.values()], axis=1)
    rows = [mean_of_days(gain, overlap=overlap).named("gain") for gain in gains.T]
    frame = pd.DataFrame(rows).assign(other=list(of_rules), gain_p=family_p(gains, overlap=overlap))
    return beside_strongest_rule(frame)


def paired_daily_rank_ics(scores: Days, others: Days, outcome: Days) -> tuple[Daily, Daily]:
    """Return the rank IC of some scores and of others on each day, on the stocks that have both.

    Both rank ICs are NaN on a day on which fewer than `MINIMUM_STOCKS` stocks have both scores and
    an outcome, and one of them where its scores, or the outcomes, are all equal.
    """
    has_scores = np.isfinite(scores) & np.isfinite(others)
    score_ics = rank_ics(*both_known(np.where(has_scores, scores, np.nan), outcome))
    other_ics = rank_ics(*both_known(np.where(has_scores, others, np.nan), outcome))
    return score_ics, other_ics


def both_known(scores: Days, outcome: Days) -> tuple[Days, Days]:
    """Return both, NaN where either is missing and on days with fewer than `MINIMUM_STOCKS`."""
    is_known = np.isfinite(scores) & np.isfinite(outcome)
    is_known &= is_known.sum(axis=1, keepdims=True) >= MINIMUM_STOCKS
    return np.where(is_known, scores, np.nan), np.where(is_known, outcome, np.nan)


def rank_ics(scores: Days, outcome: Days) -> Daily:
    """Return Spearman's correlation of scores and outcomes on each day.

    NaN where either has a single value. A stock that lacks only one of the two distorts it: pass
    the result of `both_known`.
    """
    score_ranks = _centred_ranks(scores)
    outcome_ranks = _centred_ranks(outcome)
    covariance = (score_ranks * outcome_ranks).sum(axis=1)
    variances = (score_ranks**2).sum(axis=1) * (outcome_ranks**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 on a day with a single value
        return np.asarray(covariance / np.sqrt(variances))


def pearson_ics(scores: Days, outcome: Days) -> Daily:
    """Return the correlation of score and return, not of their ranks, within each day.

    It is NaN where either does not vary, or, where the mean of its equal values is rounded, a
    figure near 0. Scores and returns must be known on the same stock-days, as `both_known` gives
    them.
    """
    known = np.isfinite(scores)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)

    def centred(values: Days) -> Days:
        filled = np.where(known, values, 0.0)
        mean = filled.sum(axis=1, keepdims=True) / count
        return np.where(known, values - mean, 0.0)

    x = centred(scores)
    y = centred(outcome)
    size = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    missing = np.full(len(x), np.nan)
    return np.asarray(np.divide((x * y).sum(axis=1), size, out=missing, where=size > 0))


def _centred_ranks(values: Days) -> Days:
    """Return each day's ranks less their mean, 0 where missing."""
    ranks = ranked(values)
    return np.asarray(np.nan_to_num(ranks - mean_of_known(ranks, 1)[:, None]))


def within_day_aucs(scores: Days, outcome: Days) -> Daily:
    """Return each day's share of pairs that the scores rank correctly.

    A pair is a stock whose outcome ranks in the upper half of its day and a stock whose outcome
    does not; equal outcomes share their mean rank, and the middle rank is not in the upper half. A
    pair with equal scores counts half. NaN on a day without a pair. Scores and outcomes must be
    known on the same stock-days, as `both_known` gives them.
    """
    is_upper = _in_upper_half(outcome)
    has_score = np.isfinite(scores)
    upper_count = is_upper.sum(axis=1)
    lower_count = (has_score & ~is_upper).sum(axis=1)
    # The ranks of `ranked`, between -1/2 and 1/2, become 1 for the day's lowest score, 2, ...
    other_stocks = has_score.sum(axis=1, keepdims=True) - 1
    rank = (ranked(scores) + 0.5) * other_stocks + 1
    # Mann and Whitney's U: among themselves, the stocks of the upper half would have 1, 2, ...
    rank_sum = np.where(is_upper, rank, 0).sum(axis=1)
    correct_pairs = rank_sum - upper_count * (upper_count + 1) / 2
    pairs = upper_count * lower_count
    missing = np.full(len(scores), np.nan)
    return np.asarray(np.divide(correct_pairs, pairs, out=missing, where=pairs > 0))


def decile_spreads(scores: Days, outcome: Days) -> Daily:
    """Return the mean outcome of the day's highest tenth, by scores, less that of the lowest.

    NaN where a tenth has no stock, without scores or with equal ones at that end, and where a stock
    of either tenth has no outcome.
    """
    share_below = ranked(scores) + 0.5  # 0 for the lowest score of the day, 1 for the highest
    top = _daily_mean(outcome, share_below >= 1 - 1 / DECILES)
    bottom = _daily_mean(outcome, share_below <= 1 / DECILES)
    return np.asarray(top - bottom)


def _daily_mean(outcome: Days, counted: Bool[ndarray, "days stocks"]) -> Daily:
    """Return the mean outcome of the stocks that count on each day; NaN on a day without any."""
    count = counted.sum(axis=1)
    total = np.where(counted, outcome, 0).sum(axis=1)
    missing = np.full(len(outcome), np.nan)
    return np.asarray(np.divide(total, count, out=missing, where=count > 0))


def against_median(scores: Days, outcome: Days) -> Int[ndarray, "days 4"]:
    """Count stock-days predicted and observed in the upper or lower half of their day.

    Columns: predicted upper and observed upper, predicted upper and observed lower, predicted lower
    and observed upper, predicted lower and observed lower. Equal values share their mean rank; the
    middle rank counts as lower. Scores and outcomes must be known on the same stock-days, as
    `both_known` gives them: a missing outcome would count as lower.
    """
    kinds = confusion(_in_upper_half(scores), _in_upper_half(outcome), np.isfinite(scores))
    return np.asarray(kinds.sum(axis=1))


def rank_ic_t(rank_ic: Daily, *, overlap: int = 1) -> float:
    """Return the mean daily rank IC over its Newey-West standard error, as `RankScore` has it.

    `overlap` is the number of days that one outcome spans. Days without a rank IC are left out.
    """
    known_ics = rank_ic[np.isfinite(rank_ic)]
    # The number of lags that Newey & West (1994) recommend; outcomes that overlap need as many lags
    # as the days that they span.
    hundreds_of_days = max(len(known_ics), 1) / 100
    usual_lags = int(4 * hundreds_of_days ** (2 / 9))
    return newey_west_t(known_ics, lags=max(overlap, usual_lags))


def newey_west_t(daily: Daily, *, lags: int) -> float:
    """Return the mean over its standard error (Newey & West, 1987).

    The error allows for correlations up to `lags` days apart, with Bartlett weights. NaN with fewer
    than two days, or where the figure does not vary.
    """
    if len(daily) < 2:
        return float("nan")
    deviations = daily - daily.mean()
    variance = deviations @ deviations
    for lag in range(1, min(lags, len(daily) - 1) + 1):
        bartlett_weight = 1 - lag / (lags + 1)
        variance += 2 * bartlett_weight * (deviations[lag:] @ deviations[:-lag])
    return float(daily.mean() * len(daily) / np.sqrt(variance)) if variance > 0 else float("nan")


def _in_upper_half(values: Days) -> Bool[ndarray, "days stocks"]:
    """Return which values rank in the upper half of their day.

    A rank in the middle is not, and a missing value is not.
    """
    return np.asarray(np.nan_to_num(ranked(values), nan=-1.0) > 0)


def mean_of_days(daily: Daily, *, overlap: int = 1) -> Estimate:
    """Return the mean of a figure over the days that have one; `overlap` as in `score_ranking`."""
    known_days = daily[np.isfinite(daily)]
    summands = np.stack([known_days, np.ones_like(known_days)], axis=-1)  # [days 2], of `ratio`
    return _estimate(summands[:, None], ratio, overlap)  # [days models 2], of a single model


def _estimate(summands: Summands, statistic: Statistic, overlap: int = 1) -> Estimate:
    """Return a statistic of totals over days, of one model, with its interval.

    The interval resamples days or, where the outcomes of more than one day overlap, is that of
    `overlapping_interval`; its ends are NaN below `MINIMUM_DAYS`. A day that adds 0 to every total
    does not count; everything is NaN without a day that counts.
    """
    summands = summands[summands.any(axis=(1, 2))]
    if not len(summands):
        return Estimate(np.nan, np.nan, np.nan)
    if overlap > 1 and len(summands) >= MINIMUM_DAYS:
        low, high = overlapping_interval(summands, statistic, overlap=overlap)
    else:
        low, high = day_interval(summands, statistic, resamples=RESAMPLES, seed=0)
    value = statistic(summands.sum(axis=0))
    return Estimate(value=float(value[0]), low=float(low[0]), high=float(high[0]))
