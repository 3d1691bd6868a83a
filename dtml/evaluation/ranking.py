"""The metrics of a day's ranking: rank ICs, AUC, ACC and MCC within the day, and decile spread.

ACC and MCC are against the median. Without skill rank ICs and MCC are 0, AUC and ACC one half,
whatever the market does. The residual IC is what a ranking adds to rules: the correlation of what
is left of its ranks, after those of all rules, with the outcomes' ranks. Upper and lower IC are the
rank ICs among the stocks that it puts into the upper and into the lower half of their day. Each
figure is one number a day, averaged, but for ACC and MCC, which are of the counts of all days.
Intervals: `dtml.evaluation.bootstrap`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.evaluation.bootstrap import difference
from dtml.evaluation.family import beside_strongest_rule, family_p
from dtml.evaluation.metrics import Estimate, accuracy, confusion, estimate, mcc, quotient, ratio
from dtml.ranking.panel import mean_of_known, ranked

Days = Float[ndarray, "days stocks"]
Daily = Float[ndarray, " days"]
Flags = Bool[ndarray, "days stocks"]

RESAMPLES = 10_000
DECILES = 10
NO_GROUP = -1
MINIMUM_STOCKS = 5  # a correlation of fewer means little
ROUNDING = 1e-9  # of what is left of the ranks of a rule itself, as a share of their variance
FIGURES = (
    "rank_ic",
    "residual_ic",
    "upper_ic",
    "lower_ic",
    "auc",
    "acc",
    "mcc",
    "decile_spread",
)


def score_ranking(
    scores: Days, outcome: Days, rules: Sequence[Days] = (), *, overlap: int = 1
) -> dict[str, float | int]:
    """Score the ranking that `scores` give the stocks of each day against their returns.

    Returns `days` (with a rank IC), `n` (stock-days), `icir` (mean daily rank IC over its standard
    deviation, NaN below two days), `t` (over its Newey-West error), and `FIGURES` with intervals.
    Returns are ratios minus 1. A day counts if `MINIMUM_STOCKS` of its stocks have score and
    outcome. The residual IC is of the scores of `rules`, NaN for one of them and without any.
    `overlap` is the number of days whose outcomes share a session. ACC and MCC compare
    whether a stock is in the upper half of its day.
    """
    daily, counts = _of_days(scores, outcome, rules)
    counts = counts[counts.any(axis=1)]
    halves = {
        name: estimate(counts, statistic, resamples=RESAMPLES, overlap=overlap)
        for name, statistic in (("acc", accuracy), ("mcc", mcc))
    }
    return _over_days(daily, halves, overlap)


def score_daily(daily: Mapping[str, Daily], *, overlap: int = 1) -> dict[str, float | int]:
    """Return what `score_ranking` does, from `n` and the `FIGURES` of each day.

    The MCC is the mean over days.
    """
    n = daily["n"]
    correct_and_all = np.stack([daily["acc"] * n, n], axis=-1)[n > 0].astype(float)
    halves = {
        "acc": estimate(correct_and_all, ratio, resamples=RESAMPLES, overlap=overlap),
        "mcc": mean_of_days(daily["mcc"], overlap=overlap),
    }
    return _over_days(daily, halves, overlap)


def score_each_day(scores: Days, outcome: Days, rules: Sequence[Days] = ()) -> pd.DataFrame:
    """Score each day by itself, a row each: `score_ranking` without intervals, icir and t."""
    daily, _counts = _of_days(scores, outcome, rules)
    unknown = ["icir", "t", *(f"{name}_{end}" for name in FIGURES for end in ("low", "high"))]
    days = np.isfinite(daily["rank_ic"]).astype(int)
    return pd.DataFrame({"days": days, **daily, **dict.fromkeys(unknown, np.nan)})


def _of_days(
    scores: Days, outcome: Days, rules: Sequence[Days]
) -> tuple[dict[str, ndarray], Int[ndarray, "days 4"]]:
    """Return the figures of each day, and its counts against the median."""
    scores, outcome = both_known(scores, outcome)
    counts = against_median(scores, outcome)
    n = counts.sum(axis=1)
    is_upper = _in_upper_half(scores)
    with np.errstate(invalid="ignore"):  # 0 / 0 on a day without a stock
        acc = accuracy(counts)
    return {
        "n": n,
        "rank_ic": rank_ics(scores, outcome),
        "residual_ic": residual_ics(scores, outcome, rules),
        "upper_ic": rank_ics(*both_known(np.where(is_upper, scores, np.nan), outcome)),
        "lower_ic": rank_ics(*both_known(np.where(is_upper, np.nan, scores), outcome)),
        "auc": within_day_aucs(scores, outcome),
        "acc": acc,
        "mcc": np.where(n > 0, mcc(counts), np.nan),
        "decile_spread": decile_spreads(scores, outcome),
    }, counts


def _over_days(
    daily: Mapping[str, ndarray], halves: Mapping[str, Estimate], overlap: int
) -> dict[str, float | int]:
    rank_ic = daily["rank_ic"]
    known = rank_ic[np.isfinite(rank_ic)]
    figures = {
        "days": len(known),
        "n": int(daily["n"].sum()),
        "icir": float(known.mean() / known.std()) if len(known) > 1 else np.nan,
        "t": rank_ic_t(rank_ic, overlap=overlap),
    }
    for name in FIGURES:
        found = halves.get(name) or mean_of_days(daily[name], overlap=overlap)
        figures |= found.named(name)
    return figures


def paired_rank_ic(scores: Days, others: Days, outcome: Days, *, overlap: int = 1) -> Estimate:
    """Return the mean rank IC of some scores less that of others, on the stock-days that have both.

    `overlap`, `MINIMUM_STOCKS`: as in `score_ranking`.
    """
    return _paired_gain(paired_daily_rank_ics(scores, others, outcome), overlap)


def _paired_gain(of_both: Float[ndarray, "2 days"], overlap: int) -> Estimate:
    is_known = np.isfinite(of_both).all(axis=0)
    # The rank IC and the day (1) of both, whose totals `ratio` turns into the two means.
    summands = np.stack([of_both[0], is_known, of_both[1], is_known], axis=-1)[is_known]
    return estimate(summands, difference(ratio), resamples=RESAMPLES, overlap=overlap)


def rank_differences(
    predictions: Mapping[str, Days], outcome: Days, *, overlap: int = 1
) -> Iterator[dict[str, str | float]]:
    """Yield a row for each ordered pair of predictors: how far the first is ahead of the other.

    Columns: `predictor`, `other`, `gain, gain_low, gain_high` (of their mean rank ICs on the same
    stock-days) and `gain_p`, adjusted for all pairs (`dtml.evaluation.family`) on the days that all
    have.
    """
    pairs = list(combinations(predictions, 2))
    of_pairs = [
        paired_daily_rank_ics(predictions[first], predictions[second], outcome)
        for first, second in pairs
    ]
    gains = [first - second for first, second in of_pairs]
    adjusted = family_p(np.stack(gains, axis=1), overlap=overlap)
    for pair, of_both, p in zip(pairs, of_pairs, adjusted, strict=True):
        for order in (1, -1):  # a p-value is two-sided
            gain = _paired_gain(of_both[::order], overlap)
            predictor, other = pair[::order]
            named = {"predictor": predictor, "other": other}
            yield {**named, **gain.named("gain"), "gain_p": float(p)}


def beside_rules(
    own: Daily, of_rules: Mapping[str, Daily], *, overlap: int = 1
) -> dict[str, Any] | None:
    """Compare a ranking's daily rank ICs with those of rules on the same days, by their names.

    Returns the strongest rule as `beside_strongest_rule` does, with its name in `other`; `gain_p`
    is adjusted for all the rules. `overlap` is as in `score_ranking`.
    """
    if not of_rules:
        return None
    gains = np.stack([own - daily for daily in of_rules.values()], axis=1)
    rows = [mean_of_days(gain, overlap=overlap).named("gain") for gain in gains.T]
    frame = pd.DataFrame(rows).assign(other=list(of_rules), gain_p=family_p(gains, overlap=overlap))
    return beside_strongest_rule(frame)


def paired_daily_rank_ics(scores: Days, others: Days, outcome: Days) -> Float[ndarray, "2 days"]:
    """Return the rank IC of some scores and of others on each day, on the stocks that have both.

    NaN with fewer than `MINIMUM_STOCKS`, and where scores, or outcomes, are all equal.
    """
    is_known = np.isfinite(scores) & np.isfinite(others)
    return np.stack(
        [
            rank_ics(*both_known(np.where(is_known, each, np.nan), outcome))
            for each in (scores, others)
        ]
    )


def both_known(scores: Days, outcome: Days) -> tuple[Days, Days]:
    """Return both, NaN where either is missing and on days with fewer than `MINIMUM_STOCKS`."""
    is_known = np.isfinite(scores) & np.isfinite(outcome)
    is_known &= is_known.sum(axis=1, keepdims=True) >= MINIMUM_STOCKS
    return np.where(is_known, scores, np.nan), np.where(is_known, outcome, np.nan)


def rank_ics(scores: Days, outcome: Days) -> Daily:
    """Return Spearman's correlation of scores and outcomes on each day.

    It is NaN where either is constant. Both must be known on the same stock-days (`both_known`).
    """
    return pearson_ics(ranked(scores), ranked(outcome))


def pearson_ics(scores: Days, outcome: Days) -> Daily:
    """Return the correlation of score and return within each day, on stock-days of `both_known`.

    NaN where either is constant, or near 0 where the mean of its equal values is rounded.
    """
    x, y = _centred(scores), _centred(outcome)
    return quotient((x * y).sum(axis=1), np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1)))


def residual_ics(scores: Days, outcome: Days, rules: Sequence[Days]) -> Daily:
    """Return the correlation of the outcomes' ranks with what is left of the ranks of the scores.

    Left are the residuals of the day's least squares on the ranks of all rules; a rule's missing
    score counts as its mean rank. NaN where nothing is left, without rules, and on a day with
    fewer than `MINIMUM_STOCKS` stocks more than rules. Stock-days as of `both_known`.
    """
    if not rules:
        return np.full(len(scores), np.nan)
    has_score = np.isfinite(scores)
    ranks = _centred(ranked(scores))
    of_rules = np.stack(  # [days stocks rules]
        [_centred(ranked(np.where(has_score, rule, np.nan))) for rule in rules], axis=-1
    )
    transposed = of_rules.swapaxes(1, 2)
    # The pseudo-inverse, as rules may be equal on a day.
    inverse = np.linalg.pinv(transposed @ of_rules, rcond=ROUNDING, hermitian=True)
    weights = inverse @ (transposed @ ranks[..., None])  # [days rules 1]
    left = ranks - (of_rules @ weights)[..., 0]
    is_left = (left**2).sum(axis=1) > ROUNDING * (ranks**2).sum(axis=1)
    is_left &= has_score.sum(axis=1) >= len(rules) + MINIMUM_STOCKS
    ics = pearson_ics(np.where(has_score, left, np.nan), ranked(outcome))
    return np.asarray(np.where(is_left, ics.clip(-1, 1), np.nan))


def _centred(values: Days) -> Days:
    """Return each day's values less their mean, 0 where missing."""
    return np.asarray(np.nan_to_num(values - mean_of_known(values, 1)[:, None]))


def within_day_aucs(scores: Days, outcome: Days) -> Daily:
    """Return how often, on each day, a stock of the upper half has a higher score than a lower one.

    It is a share of all pairs, NaN without one. Halves are by outcome, on the stock-days of
    `both_known`.
    """
    return quotient(*pairs_won(scores, _in_upper_half(outcome)).T)


def pairs_won(scores: Days, is_upper: Flags) -> Float[ndarray, "days 2"]:
    """Count each day's pairs of an upper and another stock: those won by the upper, and all.

    Only stocks with a score; a tie is half a pair.
    """
    has_score = np.isfinite(scores)
    upper = is_upper.sum(axis=1)
    # The ranks of `ranked`, between -1/2 and 1/2, become 1 for the day's lowest score, 2, ...
    rank = (ranked(scores) + 0.5) * (has_score.sum(axis=1, keepdims=True) - 1) + 1
    # Mann and Whitney's U: among themselves, the upper stocks would have the ranks 1, 2, ...
    won = np.where(is_upper, rank, 0).sum(axis=1) - upper * (upper + 1) / 2
    return np.stack([won, upper * (has_score & ~is_upper).sum(axis=1)], axis=-1)


def score_groups(scores: Days) -> Int[ndarray, "days stocks"]:
    """Return the tenth of each stock-day, from 0 for the lowest scores to 9.

    It is `NO_GROUP` where a stock is not ranked. The outer tenths are those of `decile_spreads`.
    Equal scores share a group, so one may be empty.
    """
    share_below = ranked(scores) + 0.5  # 0 for the lowest score of the day, 1 for the highest
    edges = np.arange(1, DECILES) / DECILES
    middle = DECILES // 2
    # Edges belong to the outer group on both sides, so that both ends are cut alike.
    # The comparisons are [days stocks edges].
    passed = (share_below[..., None] > edges[:middle]).sum(axis=-1)
    passed += (share_below[..., None] >= edges[middle:]).sum(axis=-1)
    return np.where(np.isfinite(share_below), passed, NO_GROUP)


def decile_spreads(scores: Days, outcome: Days) -> Daily:
    """Return the mean outcome of the day's highest tenth, by scores, less that of the lowest.

    NaN where a tenth has no stock, or equal scores at its end, or a stock without an outcome.
    """
    group_of = score_groups(scores)
    top = mean_of_members(outcome, group_of == DECILES - 1)
    return np.asarray(top - mean_of_members(outcome, group_of == 0))


def mean_of_members(values: Days, members: Flags) -> Daily:
    """Return the mean value of each day's members; NaN on a day without one."""
    return quotient(np.where(members, values, 0.0).sum(axis=1), members.sum(axis=1))


def against_median(scores: Days, outcome: Days) -> Int[ndarray, "days 4"]:
    """Count stock-days predicted and observed in the upper or lower half of their day.

    Columns: upper and upper, upper and lower, lower and upper, lower and lower. Equal values share
    their mean rank; the middle one is lower. Stock-days as of `both_known`.
    """
    kinds = confusion(_in_upper_half(scores), _in_upper_half(outcome), np.isfinite(scores))
    return np.asarray(kinds.sum(axis=1))


def _in_upper_half(values: Days) -> Flags:
    return np.asarray(np.nan_to_num(ranked(values), nan=-1.0) > 0)


def rank_ic_t(rank_ic: Daily, *, overlap: int = 1) -> float:
    """Return the mean daily rank IC over its error (Newey & West, 1987), with Bartlett weights.

    An outcome spans `overlap` days. NaN with fewer than two known days, or where it does not vary.
    """
    known = rank_ic[np.isfinite(rank_ic)]
    days = len(known)
    if days < 2:
        return np.nan
    # The number of lags that Newey & West (1994) recommend; outcomes that overlap need as many lags
    # as the days that they span.
    lags = max(overlap, int(4 * (days / 100) ** (2 / 9)))
    deviations = known - known.mean()
    variance = deviations @ deviations
    for lag in range(1, min(lags, days - 1) + 1):
        variance += 2 * (1 - lag / (lags + 1)) * (deviations[lag:] @ deviations[:-lag])
    return float(known.mean() * days / np.sqrt(variance)) if variance > 0 else np.nan


def mean_of_days(daily: Daily, *, overlap: int = 1) -> Estimate:
    """Return the mean of a figure over the days that have one; `overlap` as in `score_ranking`."""
    known = daily[np.isfinite(daily)]
    summands = np.stack([known, np.ones_like(known)], axis=-1)
    return estimate(summands, ratio, resamples=RESAMPLES, overlap=overlap)
