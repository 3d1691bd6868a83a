"""Calibrated probabilities, their curves, and a band around one half without predicted directions.

Correction and band are estimated on validation days, each with the same weight, because stocks of
one day move together. The correction is fitted to every second day, the band is measured on the
others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.errors import DtmlError
from dtml.evaluation.metrics import day_interval, estimate, ratio
from dtml.markets.definition import LEVELS

BINS = 100
DIRECTIONS_A_GROUP = 100  # stock-days that a point of a binned curve should have
GROUPS = (3, 10)  # points of such a curve, at least and at most
OF_BINS = ["n", "probability_sum", "rises"]
# Probabilities are clipped this far from 0 and 1, before their logit and after the correction.
SMALLEST = 1e-6
# Logits whose standard deviation is smaller differ by the rounding of single precision alone.
ROUNDING = 1e-6
# A threshold's distance above the stock-day that set it, more than rounding adds to a probability.
STEP = 1e-6
RESAMPLES = 2000
COUNTS = ["n", "covered", "decided", "decided_correct"]

Floats = Float[ndarray, "*shape"]
Flat = Float[ndarray, " stock_days"]
Rose = Bool[ndarray, " stock_days"]
Days = Float[ndarray, "days stocks"]


@dataclass(frozen=True)
class Calibration:
    """The correction of a model's probabilities, and the thresholds of its directions.

    The calibrated probability is logistic(`slope` * logit(probability) + `intercept`), `slope` 0 or
    more. `thresholds` maps each nominal level to the calibrated probability, in [.5, 1], above
    which a rise is predicted (1: never), measured on `directions` stock-days of `days` days.
    """

    slope: float
    intercept: float
    thresholds: Mapping[float, float] = field(default_factory=dict)
    days: int = 0
    directions: int = 0

    @property
    def bands(self) -> pd.DataFrame:
        """Return the thresholds as rows `level, threshold, days, n`, by level."""
        levels = sorted(self.thresholds.items())
        rows = pd.DataFrame(levels, columns=["level", "threshold"], dtype=float)
        return rows.assign(days=self.days, n=self.directions)

    def apply(self, probability: Floats) -> Floats:
        """Return calibrated probabilities, in (0, 1); NaN stays NaN."""
        corrected = _logistic(self.slope * logit(probability) + self.intercept)
        return np.asarray(np.clip(corrected, SMALLEST, 1 - SMALLEST))


def decide(calibrated: Floats, threshold: float | Floats) -> Floats:
    """Return 1.0 (a rise) above the threshold, 0.0 (a fall) below 1 less it, else NaN."""
    falls = np.where(calibrated < 1 - threshold, 0.0, np.nan)
    return np.where(calibrated > threshold, 1.0, falls)


@dataclass(frozen=True)
class _StockDays:
    """Stock-days with an outcome; `day` numbers their `days` from 0, without a gap."""

    day: Int[ndarray, " stock_days"]
    probability: Flat
    rose: Rose
    days: int

    @property
    def weight(self) -> Flat:
        """Return the share of each stock-day in its day."""
        return np.asarray(1 / np.bincount(self.day)[self.day])


def calibrate(probability: Days, movement: Days) -> Calibration:
    """Fit the correction to every second day of validation, and measure thresholds on the others.

    `probability` of a rise, in [0, 1], is NaN where not observed; `movement` a ratio minus 1, NaN
    unknown. The correction is Platt's (1999), shrunk where there are few days; its slope is 0, and
    every stock gets the base rate, where the model ranked the wrong way round, probabilities or
    outcomes were all the same, or a single day was fitted.

    On a day exchangeable with these, the expected share of stocks without a wrong direction is at
    least the level (Lee, Barber & Willett, 2023, after the pooling of Dunn, Wasserman & Ramdas,
    2022); one without a direction counts as covered. Too few days for a level give a threshold of
    1. Raises DtmlError when no stock-day counts.
    """
    is_known = np.isfinite(probability) & np.isfinite(movement)
    days = np.flatnonzero(is_known.any(axis=1))
    if not len(days):
        raise DtmlError(
            f"none of {is_known.size} validation stock-days has both a probability and an outcome: "
            "check that the prices have a bar for every session of the validation days"
        )
    fitted, measured = (
        _StockDays(
            day=np.nonzero(is_known[half])[0],
            probability=probability[half][is_known[half]],
            rose=(movement[half] > 0)[is_known[half]],
            days=len(half),
        )
        for half in (days[::2], days[1::2])
    )
    line = Calibration(*_line(fitted))
    return replace(
        line,
        thresholds=_thresholds(measured, line.apply(measured.probability)),
        days=measured.days,
        directions=len(measured.day),
    )


def _line(sample: _StockDays) -> tuple[float, float]:
    """Return slope and intercept of the correction, a line in the log odds of the probability.

    A logistic regression on Platt's targets, inside (0, 1). Height at the mean log odds and slope
    are each multiplied by estimate^2 / (estimate^2 + variance), that of least error. Without a
    slope above 0: the log odds of Laplace's base rate, with a rising and a falling day added.
    """
    rose = sample.rose
    weight = sample.weight
    risen_days = weight[rose].sum() + 1
    base_rate = float(logit(np.asarray(risen_days / (sample.days + 2))))  # in log odds
    log_odds = logit(sample.probability)
    centre = np.average(log_odds, weights=weight)
    deviation = np.sqrt(np.average((log_odds - centre) ** 2, weights=weight))
    has_one_outcome = rose.all() or not rose.any()
    if sample.days < 2 or deviation < ROUNDING or has_one_outcome:
        return 0.0, base_rate
    target_of_rise = (rose.sum() + 1) / (rose.sum() + 2)
    target_of_fall = 1 / ((~rose).sum() + 2)
    target = np.where(rose, target_of_rise, target_of_fall)
    scaled = (log_odds - centre) / deviation
    # scikit-learn takes classes only: each stock-day is given twice, as a rise and as a fall.
    estimates = logistic_line(
        np.concatenate([scaled, scaled]),
        np.repeat([True, False], len(scaled)),
        np.concatenate([weight * target, weight * (1 - target)]),
    )
    if estimates[1] <= 0:  # the model ranked the wrong way round
        return 0.0, base_rate

    # The sandwich estimate of the covariance, with the gradient of a day, [2 days], as one draw.
    design = np.stack([np.ones_like(scaled), scaled])  # [2 stock_days]
    chance = _logistic(estimates @ design)
    inverse = np.linalg.inv(design * weight * chance * (1 - chance) @ design.T)
    error = weight * (target - chance)
    gradient_by_day = np.stack([np.bincount(sample.day, error * row) for row in design])
    covariance = inverse @ gradient_by_day @ gradient_by_day.T @ inverse
    variance = np.diag(covariance) * sample.days / (sample.days - 1)
    relative_variance = variance / np.maximum(estimates**2, 1e-30)  # never divided by 0
    height_at_centre, slope_in_deviations = estimates / (1 + relative_variance)
    slope = float(slope_in_deviations / deviation)
    return slope, float(height_at_centre - slope * centre)


def logistic_line(
    x: Float[ndarray, " rows"],
    is_rise: Bool[ndarray, " rows"],
    weight: Float[ndarray, " rows"] | None = None,
) -> Float[ndarray, "2"]:
    """Return intercept and slope of the logistic regression of rises on `x`, centred and scaled.

    A deviation of a hundredth would stop the solver too early.
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    model.fit(x[:, None], is_rise, sample_weight=weight)
    return np.array([model.intercept_[0], model.coef_[0, 0]])


def _thresholds(sample: _StockDays, calibrated: Flat) -> dict[float, float]:
    """Return, by level, the smallest threshold at which at least that share has no wrong direction.

    Every day has the same weight, and one more, unknown day counts as wrong; where its weight
    exceeds what the level allows, the threshold is 1.
    """
    # A direction is wrong where the probability of the other outcome is above the threshold.
    probability_of_other = np.where(sample.rose, 1 - calibrated, calibrated)
    order = np.argsort(probability_of_other)
    surprise = probability_of_other[order]
    mass = np.cumsum(sample.weight[order])  # in days, of the stock-days up to each surprise
    thresholds: dict[float, float] = {}
    for level in LEVELS:
        needed = level * (sample.days + 1) - 1e-9  # sums of shares are not exact
        quantile = float(surprise[np.searchsorted(mass, needed)]) if needed <= sample.days else 1.0
        # Rounded to the digits of STEP, it is still above the quantile.
        thresholds[level] = min(max(round(quantile + STEP, 6), 0.5), 1.0)
    return thresholds


def count_band(directions: pd.DataFrame, bands: pd.DataFrame) -> pd.DataFrame:
    """Count the outcomes of each night at each level.

    `directions`: `target, run_id, calibrated, rise`; `bands`: `run_id, level, threshold`. Returns
    `target, level`, `n` (stock-days with a probability and an outcome), `covered` (no direction or
    the correct one), `decided`, `decided_correct`, sorted by target and level; no row where `n` is
    0.
    """
    rows = directions.merge(bands[["run_id", "level", "threshold"]], on="run_id")
    calibrated, rise, threshold = (
        numbers(rows[name]) for name in ("calibrated", "rise", "threshold")
    )
    direction = decide(calibrated, threshold)  # 1 rise, 0 fall, NaN none, as `rise` has them
    counted = np.isfinite(calibrated) & np.isfinite(rise)
    is_correct = direction == rise
    is_silent = np.isnan(direction)
    kinds = (counted, is_silent | is_correct, ~is_silent, is_correct)
    counts = pd.DataFrame({name: counted & kind for name, kind in zip(COUNTS, kinds, strict=True)})
    by_night = counts.groupby([rows["target"], rows["level"]]).sum().reset_index()
    return by_night[by_night["n"] > 0].reset_index(drop=True)


def coverage(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the coverage reached at each level, from rows of `count_band`.

    Columns: `level, days, n, coverage, decided` (shares of stock-days) and `decided_acc` (NaN
    without any), with the intervals of the shares.
    """
    rows = []
    # Several runs may have predicted a night: their rows are added up, as the sample is days.
    days = counts[counts["n"] > 0].groupby(["level", "target"])[COUNTS].sum()
    for level, nights in days.groupby("level"):
        n, covered, decided, correct = nights.to_numpy(dtype=np.int64).T
        kept, right = (
            estimate(np.stack([part, whole], axis=-1), ratio, resamples=RESAMPLES)
            for part, whole in ((covered, n), (correct, decided))
        )
        rows.append(
            {
                "level": level,
                "days": len(n),
                "n": n.sum(),
                **kept.named("coverage"),
                "decided": decided.sum() / n.sum(),
                **right.named("decided_acc"),
            }
        )
    return pd.DataFrame(rows)


def logit(probability: Floats) -> Floats:
    """Return the log odds of probabilities, which are clipped inside (0, 1) to keep them finite."""
    chance = np.clip(probability, SMALLEST, 1 - SMALLEST)
    return np.asarray(np.log(chance / (1 - chance)))


def _logistic(log_odds: Floats) -> Floats:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * log_odds))


def numbers(column: "pd.Series[Any]") -> Float[ndarray, " rows"]:
    """Return a column of numbers or booleans as floats, with NaN for missing values."""
    return column.to_numpy(dtype=float, na_value=np.nan)


def count_bins(directions: pd.DataFrame) -> pd.DataFrame:
    """Count stock-days with an outcome by whole percent of probability.

    Returns `target, bin, n, probability_sum, rises` from `target, probability, rise`. Bin 37 holds
    [.37, .38), the last, 99, also 1; empty bins have no row.
    """
    probability = numbers(directions["probability"])
    rise = numbers(directions["rise"])
    counted = np.isfinite(probability) & np.isfinite(rise)
    # In binary .29 is 28.999... hundredths.
    place = np.floor(BINS * probability[counted] + 1e-9).astype(int)
    rows = pd.DataFrame(
        {
            "target": directions["target"].to_numpy()[counted],
            "bin": np.minimum(place, BINS - 1),
            "probability_sum": probability[counted],
            "rises": rise[counted].astype(int),
            "n": 1,
        }
    )
    return rows.groupby(["target", "bin"], as_index=False)[OF_BINS].sum()


def curve_with_intervals(bins: pd.DataFrame) -> pd.DataFrame:
    """Return the share that rose by probability: a row a group of bins, in the order of the bins.

    Columns: `bin_low, bin_high, mean_probability, share_risen, n, share_risen_low,
    share_risen_high`. Groups have about equal numbers of stock-days, one for each
    `DIRECTIONS_A_GROUP`, within `GROUPS`; no bin is divided.
    """
    if bins.empty:
        return pd.DataFrame()
    points = int(np.clip(bins["n"].sum() // DIRECTIONS_A_GROUP, *GROUPS))
    used_bins = bins[bins["n"] > 0].groupby("bin", as_index=False)[OF_BINS].sum()
    middle = used_bins["n"].cumsum() - used_bins["n"] / 2  # stock-days up to the middle of each bin
    group = pd.factorize(np.floor(points * middle / used_bins["n"].sum()))[0]
    grouped = used_bins.groupby(group)
    curve = grouped[OF_BINS].sum()
    by_day = bins.assign(group=bins["bin"].map(dict(zip(used_bins["bin"], group, strict=True))))
    days = by_day.pivot_table(["rises", "n"], "target", "group", aggfunc="sum", fill_value=0)
    # [days points 2]: the rises of every point, and its stock-days.
    summands = np.stack([days["rises"], days["n"]], axis=-1).astype(float)
    low, high = day_interval(summands, ratio, resamples=RESAMPLES)
    return pd.DataFrame(
        {
            "bin_low": grouped["bin"].min() / BINS,
            "bin_high": (grouped["bin"].max() + 1) / BINS,
            "mean_probability": curve["probability_sum"] / curve["n"],
            "share_risen": curve["rises"] / curve["n"],
            "n": curve["n"],
            "share_risen_low": low,
            "share_risen_high": high,
        }
    )


def recalibrated(bins: pd.DataFrame, calibrations: Mapping[str, Calibration]) -> pd.DataFrame:
    """Return the rows with bins and sums of calibrated probabilities, of runs with a calibration.

    `bins`: `run_id, target, bin, n, probability_sum, rises`. The mean of each bin is calibrated.
    """
    frames = [bins.iloc[:0]]
    for run_id, rows in bins.groupby("run_id") if len(bins) else ():
        calibration = calibrations.get(str(run_id))
        if calibration is not None:
            mean = (rows["probability_sum"] / rows["n"]).to_numpy(dtype=float)
            calibrated = calibration.apply(mean)
            place = np.floor(BINS * calibrated).astype(int)
            frames.append(rows.assign(bin=place, probability_sum=calibrated * rows["n"]))
    return pd.concat(frames[1:] or frames, ignore_index=True)
