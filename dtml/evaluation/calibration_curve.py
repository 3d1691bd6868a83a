"""Calibration curves: what share of the stock-days rose, by the probability that was predicted for them."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Bool
from numpy import ndarray

from dtml.evaluation.calibration import Calibration, Floats, numbers, require_probabilities
from dtml.evaluation.metrics import day_interval, ratio

BINS = 100
RESAMPLES = 2000
DIRECTIONS_A_GROUP, GROUPS = 100, (3, 10)  # stock-days that a point of a binned curve should have; how many points
OF_BINS = ["n", "probability_sum", "rises"]


def count_bins(directions: pd.DataFrame) -> pd.DataFrame:
    """Count stock-days with an outcome by whole percent of probability: `target, bin, n, probability_sum, rises`.

    `directions` has a row a stock-day, `target, probability, rise`. Bin 37 holds [.37, .38), the last one, 99, also
    1; bins that hold none have no row. Raises ValueError for what is no probability.
    """
    probability, rise = numbers(directions["probability"]), numbers(directions["rise"])
    require_probabilities(probability)
    counted = np.isfinite(probability) & np.isfinite(rise)
    place = np.floor(BINS * probability[counted] + 1e-9).astype(int)  # .29 is 28.999... hundredths in binary
    columns = {"probability_sum": probability[counted], "rises": rise[counted].astype(int), "n": 1}
    keys = {"target": directions["target"].to_numpy()[counted], "bin": np.minimum(place, BINS - 1)}
    rows = pd.DataFrame(keys | columns)
    return rows.groupby(["target", "bin"], as_index=False)[OF_BINS].sum()


def calibration_curve(probability: Floats, rose: Bool[ndarray, "*shape"], bins: int = 10) -> pd.DataFrame:
    """Return the share that rose by probability: `bin_low, bin_high, mean_probability, share_risen, n`, a row a bin.

    Bins hold equal shares of the stock-days, as a model's probabilities may all lie near .5; ties may leave fewer bins.
    NaN is left out. Raises ValueError when no probability is left.
    """
    said = np.isfinite(probability)
    if not said.any():
        raise ValueError("there is no probability to draw a calibration curve of")
    chance, risen = probability[said], rose[said]
    edges = np.unique(np.quantile(chance, np.linspace(0, 1, bins + 1)))
    edges = np.repeat(edges, 2) if len(edges) == 1 else edges
    place = np.clip(np.searchsorted(edges, chance, side="right") - 1, 0, len(edges) - 2)
    rows = pd.DataFrame({"bin": place, "probability": chance, "rose": risen}).groupby("bin")
    curve = rows.agg(mean_probability=("probability", "mean"), share_risen=("rose", "mean"), n=("rose", "size"))
    held = curve.index.to_numpy()
    curve.insert(0, "bin_low", edges[held])
    curve.insert(1, "bin_high", edges[held + 1])
    return curve.reset_index(drop=True)


def binned_curve(bins: pd.DataFrame, groups: int = 10) -> pd.DataFrame:
    """Return the columns of `calibration_curve` from rows of `count_bins`.

    Neighbouring bins are joined into groups of about equal numbers of stock-days; no bin is divided, so a model whose
    probabilities all lie near one half has few groups. Without a stock-day there is no row.
    """
    held = bins[bins["n"] > 0].groupby("bin", as_index=False)[OF_BINS].sum()
    middle = held["n"].cumsum() - held["n"] / 2  # stock-days up to the middle of each bin
    found = held.groupby(np.floor(groups * middle / held["n"].sum()).to_numpy())
    n, said, rises = (found[name].sum() for name in OF_BINS)
    ends = {"bin_low": found["bin"].min() / BINS, "bin_high": (found["bin"].max() + 1) / BINS}
    means = {"mean_probability": said / n, "share_risen": rises / n, "n": n}
    return pd.DataFrame(ends | means).reset_index(drop=True)


def curve_with_intervals(bins: pd.DataFrame) -> pd.DataFrame:
    """Return the curve of `binned_curve`, of fewer points where there are few stock-days, with intervals.

    Adds `share_risen_low, share_risen_high`, the 95 % interval of each share from resampled days, NaN with too few.
    `bins` as in `recalibrated`, of one calibration or none; there must be some.
    """
    found = binned_curve(bins, int(np.clip(bins["n"].sum() // DIRECTIONS_A_GROUP, *GROUPS)))
    place = np.searchsorted(found["bin_high"].to_numpy(), bins["bin"].to_numpy() / BINS + 0.5 / BINS)
    group = np.clip(place, 0, len(found) - 1)
    counts = ["rises", "n"]
    days = bins.assign(group=group).pivot_table(counts, "target", "group", aggfunc="sum", fill_value=0)
    days = days.reindex(columns=pd.MultiIndex.from_product([counts, range(len(found))]), fill_value=0)
    sums = np.stack(np.split(days.to_numpy(dtype=float), 2, axis=1), axis=-1)
    low, high = day_interval(sums, ratio, resamples=RESAMPLES, seed=0)
    return found.assign(share_risen_low=low, share_risen_high=high)


def recalibrated(bins: pd.DataFrame, calibrations: Mapping[str, Calibration]) -> pd.DataFrame:
    """Return the bins of calibrated runs, each at its mean probability after its run's calibration.

    `bins` has `run_id, target, bin, n, probability_sum, rises`; `calibrations` are by run id. A bin is a hundredth
    wide, so that all its probabilities change by nearly as much.
    """
    frames = []
    for run_id, rows in bins.groupby("run_id") if len(bins) else ():
        found = calibrations.get(str(run_id))
        if found is not None:
            calibrated = found.apply((rows["probability_sum"] / rows["n"]).to_numpy(dtype=float))
            place = np.floor(BINS * calibrated).astype(int)
            frames.append(rows.assign(bin=place, probability_sum=calibrated * rows["n"]))
    return pd.concat(frames, ignore_index=True) if frames else bins.iloc[:0]
