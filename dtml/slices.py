"""Scores of a long history, whole and by fold, year and stock: the calls of a model beside those of naive rules."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.metrics import MINIMUM_DAYS, accuracy, day_interval, mcc
from dtml.windows import paper_labels

PROTOCOLS = ("paper", "all")
ROLLING_SESSIONS = 63  # a quarter of a year
RESAMPLES = 2000

Calls = Mapping[str, Float[ndarray, "days stocks"]]  # of each predictor: 1 for a rise, 0 for a fall, NaN for none
Counts = Int[ndarray, "days predictors stocks 4"]


def slice_scores(
    calls: Calls,
    movement: Float[ndarray, "days stocks"],
    target: pd.DatetimeIndex,
    fold: Int[ndarray, " days"],
    symbols: tuple[str, ...],
) -> pd.DataFrame:
    """Score every predictor on all days, and by fold, by calendar year and by stock, on both protocols.

    `movement` is a ratio minus 1, NaN where it is not known; `fold` numbers the fold of each day. Stock-days count
    where every predictor has a call. Rows are `slice, value, protocol, predictor, n, days, rises, acc, acc_low,
    acc_high, mcc, mcc_low, mcc_high`; ends of intervals are NaN below `MINIMUM_DAYS`.
    """
    frames = []
    for protocol in PROTOCOLS:
        counts = count(calls, movement, protocol)
        whole = counts.sum(axis=2)
        for name, value, days in _spans(target, fold):
            frames.append(_score(whole[days], list(calls)).assign(slice=name, value=value, protocol=protocol))
        for position, predictor in enumerate(calls):
            rows = _score(counts[:, position], list(symbols)).rename(columns={"predictor": "value"})
            frames.append(rows.assign(slice="symbol", predictor=predictor, protocol=protocol))
    scores = pd.concat(frames, ignore_index=True)
    first = ["slice", "value", "protocol", "predictor"]
    return scores.loc[scores["n"] > 0, [*first, *(name for name in scores if name not in first)]].reset_index(drop=True)


def rolling_mcc(
    calls: Calls, movement: Float[ndarray, "days stocks"], target: pd.DatetimeIndex, protocol: str = "all"
) -> pd.DataFrame:
    """MCC of the last `ROLLING_SESSIONS` sessions up to each: `session, predictor, mcc, mcc_low, mcc_high`."""
    counts = count(calls, movement, protocol).sum(axis=2)
    if len(counts) < ROLLING_SESSIONS:
        return pd.DataFrame(columns=["session", "predictor", "mcc", "mcc_low", "mcc_high"])
    windows = np.lib.stride_tricks.sliding_window_view(counts, ROLLING_SESSIONS, axis=0)
    frames = []
    for position, predictor in enumerate(calls):
        sums = np.ascontiguousarray(windows[:, position].transpose(2, 0, 1))  # [sessions of a window, windows, 4]
        low, high = day_interval(sums, mcc, resamples=RESAMPLES, seed=0)
        values = {"mcc": mcc(sums.sum(axis=0)), "mcc_low": low, "mcc_high": high}
        frames.append(pd.DataFrame({"session": target[ROLLING_SESSIONS - 1 :], "predictor": predictor} | values))
    return pd.concat(frames, ignore_index=True)


def count(calls: Calls, movement: Float[ndarray, "days stocks"], protocol: str) -> Counts:
    """True rises, false rises, false falls and true falls, of the stock-days on which every predictor has a call."""
    counted = np.isfinite(movement) if protocol == "all" else paper_labels(movement) != 0
    for called in calls.values():
        counted = counted & np.isfinite(called)
    rose = movement > 0
    each = [_kinds(called > 0.5, rose, counted) for called in calls.values()]
    return np.stack(each, axis=1)


def _kinds(
    called: Bool[ndarray, "days stocks"], rose: Bool[ndarray, "days stocks"], counted: Bool[ndarray, "days stocks"]
) -> Int[ndarray, "days stocks 4"]:
    kinds = (called & rose, called & ~rose, ~called & rose, ~called & ~rose)
    return np.stack([kind & counted for kind in kinds], axis=-1).astype(np.int32)


def _spans(target: pd.DatetimeIndex, fold: Int[ndarray, " days"]) -> Iterator[tuple[str, str, Bool[ndarray, " days"]]]:
    yield "all", "", np.ones(len(target), dtype=bool)
    for number in np.unique(fold):
        yield "fold", str(number), fold == number
    for year in np.unique(target.year):
        yield "year", str(year), np.asarray(target.year == year)


def _score(counts: Int[ndarray, "days predictors 4"], names: list[str]) -> pd.DataFrame:
    """A row for each predictor; days on which none of its calls counts are no days of its own."""
    total = counts.sum(axis=0)
    days = (counts.sum(axis=-1) > 0).sum(axis=0)
    scores = {"n": total.sum(axis=-1), "days": days, "rises": total[:, 0] + total[:, 2]}
    with np.errstate(invalid="ignore"):  # of a stock that never counted
        for name, statistic in (("acc", accuracy), ("mcc", mcc)):
            low, high = np.full((2, len(names)), np.nan)
            enough = days >= MINIMUM_DAYS
            if enough.any():
                low[enough], high[enough] = day_interval(counts[:, enough], statistic, resamples=RESAMPLES, seed=0)
            scores |= {name: statistic(total), f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame({"predictor": names} | scores)
