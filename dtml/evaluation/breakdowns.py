"""Scores of a long history, as a whole and by fold, year and stock, of a model
beside naive rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.baselines.naive_rules import MODEL
from dtml.evaluation.metrics import (
    MINIMUM_DAYS,
    accuracy,
    confusion,
    day_interval,
    gain_in_mcc,
    mcc,
    measured,
    ratio,
)
from dtml.evaluation.ranking import both_known, mean_of_days, paired_rank_ic, rank_ics
from dtml.markets.definition import LABEL_PROTOCOLS, LabelProtocol
from dtml.prices.returns import labelled

ROLLING_SESSIONS = 63  # a quarter of a year
RESAMPLES = 2000
STATISTICS = {"acc": accuracy, "mcc": mcc}

PerStock = Float[ndarray, "days stocks"]
Folds = Int[ndarray, " days"]  # the number of each day's fold
Directions = Mapping[str, PerStock]  # of each predictor: 1 for a rise, 0 for a fall, NaN for none
Counts = Int[ndarray, "days predictors stocks 4"]


def slice_scores(
    directions: Directions,
    movement: PerStock,
    target: pd.DatetimeIndex,
    fold: Folds,
    symbols: tuple[str, ...],
) -> pd.DataFrame:
    """Score every predictor on all days, and by fold, by calendar year and by stock, on both
    protocols.

    `movement` is a ratio minus 1, NaN where it is not known; `fold` numbers the fold of each day.
    Stock-days count where every predictor has a direction. Rows are `slice, value, protocol,
    predictor, n, days, rises, acc, acc_low, acc_high, mcc, mcc_low, mcc_high, model_gain,
    model_gain_low, model_gain_high`; ends of intervals are NaN below `MINIMUM_DAYS`. `model_gain`
    is the model's MCC less the rule's on the same days; NaN for the model and for stocks.
    """
    frames = []
    for protocol in LABEL_PROTOCOLS:
        counts = confusion_by_stock(directions, movement, protocol)
        whole = counts.sum(axis=2)
        for name, value, days in _spans(target, fold):
            rows = _score(whole[days], list(directions)).assign(
                **_gains(whole[days], list(directions))
            )
            frames.append(rows.assign(slice=name, value=value, protocol=protocol))
        for position, predictor in enumerate(directions):
            rows = _score(counts[:, position], list(symbols)).rename(columns={"predictor": "value"})
            frames.append(rows.assign(slice="symbol", predictor=predictor, protocol=protocol))
    scores = pd.concat(frames, ignore_index=True)
    first = ["slice", "value", "protocol", "predictor"]
    return scores.loc[
        scores["n"] > 0, [*first, *(name for name in scores if name not in first)]
    ].reset_index(drop=True)


def order_scores(
    probability: PerStock,
    losers: PerStock,
    movement: PerStock,
    target: pd.DatetimeIndex,
    fold: Folds,
) -> pd.DataFrame:
    """Score how probabilities order the stocks of a day, beside the `losers`' scores: in all, by
    fold and by year.

    Rows `slice, value, rank_ic, rank_ic_low, rank_ic_high, rank_gain, rank_gain_low,
    rank_gain_high`: the mean rank IC of a day, and by how much it is above the losers' on the
    stock-days that have both.
    """
    rows = []
    for name, value, days in _spans(target, fold):
        own = mean_of_days(rank_ics(*both_known(probability[days], movement[days])))
        gain = paired_rank_ic(probability[days], losers[days], movement[days])
        rows.append(
            {"slice": name, "value": value, **own.named("rank_ic"), **gain.named("rank_gain")}
        )
    return pd.DataFrame(rows)


def rolling_mcc(
    directions: Directions, movement: PerStock, target: pd.DatetimeIndex
) -> pd.DataFrame:
    """Return the MCC of the last `ROLLING_SESSIONS` up to each session: `session, predictor, mcc,
    mcc_low, mcc_high`.

    All stock-days count on which every predictor has a direction.
    """
    counts = confusion_by_stock(directions, movement, "all").sum(axis=2)
    frames = [
        rolling_scores(counts[:, position], target, statistics=("mcc",)).assign(predictor=predictor)
        for position, predictor in enumerate(directions)
    ]
    return pd.concat(frames, ignore_index=True)[
        ["session", "predictor", "mcc", "mcc_low", "mcc_high"]
    ]


def rolling_scores(
    counts: Int[ndarray, "days 4"],
    target: pd.DatetimeIndex,
    statistics: Sequence[str] = ("acc", "mcc"),
) -> pd.DataFrame:
    """Return ACC and MCC of one predictor over the last `ROLLING_SESSIONS` of its sessions up to
    each.

    `counts` are true rises, false rises, false falls and true falls of each session of `target`.
    Columns: session, and each of `statistics` with its 95 % interval, `acc, acc_low, acc_high,
    ...`; no row with fewer sessions.
    """
    names = ["session", *(name + end for name in statistics for end in ("", "_low", "_high"))]
    if len(counts) < ROLLING_SESSIONS:
        return pd.DataFrame(columns=names)
    sums = _windows(counts)
    columns: dict[str, Any] = {"session": target[ROLLING_SESSIONS - 1 :]}
    with np.errstate(invalid="ignore"):  # of a window in which nothing counted
        for name in statistics:
            columns |= measured(name, sums, STATISTICS[name], RESAMPLES)
    return pd.DataFrame(columns, columns=names)


def rolling_rank_ic(
    probability: PerStock, movement: PerStock, target: pd.DatetimeIndex
) -> pd.DataFrame:
    """Return the mean daily rank IC of the last `ROLLING_SESSIONS` up to each session, with its 95
    % interval.

    Columns: session, predictor (the model), rank_ic, rank_ic_low, rank_ic_high; no row with fewer
    sessions.
    """
    daily = rank_ics(*both_known(probability, movement))
    known = np.isfinite(daily)
    if known.sum() < ROLLING_SESSIONS:
        return pd.DataFrame(
            columns=["session", "predictor", "rank_ic", "rank_ic_low", "rank_ic_high"]
        )
    sums = _windows(np.stack([daily[known], np.ones(known.sum())], axis=-1))
    found = {"session": target[known][ROLLING_SESSIONS - 1 :], "predictor": MODEL}
    return pd.DataFrame(found | measured("rank_ic", sums, ratio, RESAMPLES))


def _windows(daily: ndarray) -> ndarray:
    """Return the rows of the last `ROLLING_SESSIONS` days up to each,
    `[sessions of a window, windows, columns]`.
    """
    windows = np.lib.stride_tricks.sliding_window_view(daily, ROLLING_SESSIONS, axis=0)
    return np.ascontiguousarray(windows.transpose(2, 0, 1))


def confusion_by_stock(
    directions: Directions, movement: PerStock, protocol: LabelProtocol
) -> Counts:
    """Count true rises, false rises, false falls and true falls where every
    predictor has a direction.
    """
    counted = labelled(movement, protocol)
    for predicted in directions.values():
        counted = counted & np.isfinite(predicted)
    rose = movement > 0
    return np.stack(
        [confusion(predicted > 0.5, rose, counted) for predicted in directions.values()], axis=1
    )


def _spans(
    target: pd.DatetimeIndex, fold: Folds
) -> Iterator[tuple[str, str, Bool[ndarray, " days"]]]:
    yield "all", "", np.ones(len(target), dtype=bool)
    for number in np.unique(fold):
        yield "fold", str(number), fold == number
    for year in np.unique(target.year):
        yield "year", str(year), np.asarray(target.year == year)


def _gains(
    counts: Int[ndarray, "days predictors 4"], names: list[str]
) -> dict[str, Float[ndarray, " predictors"]]:
    """Return how far the model is ahead of each rule; NaN for the model itself."""
    model, columns = names.index(MODEL), ("model_gain", "model_gain_low", "model_gain_high")
    found = gain_in_mcc(counts[:, model], counts, resamples=RESAMPLES)
    own = np.arange(len(names)) == model
    return {
        name: np.where(own, np.nan, values) for name, values in zip(columns, found, strict=True)
    }


def _score(counts: Int[ndarray, "days predictors 4"], names: list[str]) -> pd.DataFrame:
    """Return a row for each predictor; days on which none of its directions
    counts are not among its days.
    """
    total = counts.sum(axis=0)
    days = (counts.sum(axis=-1) > 0).sum(axis=0)
    scores = {"n": total.sum(axis=-1), "days": days, "rises": total[:, 0] + total[:, 2]}
    with np.errstate(invalid="ignore"):  # of a stock that never counted
        for name, statistic in STATISTICS.items():
            low, high = np.full((2, len(names)), np.nan)
            enough = days >= MINIMUM_DAYS
            if enough.any():
                low[enough], high[enough] = day_interval(
                    counts[:, enough], statistic, resamples=RESAMPLES, seed=0
                )
            scores |= {name: statistic(total), f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame({"predictor": names} | scores)
