"""Scores of a model beside naive rules over a long history.

They are of the whole history, and by fold, year and stock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

FIRST_COLUMNS = ["slice", "value", "protocol", "predictor"]

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
    """Score every predictor on all days, and by fold, calendar year and stock, on both protocols.

    `directions` include those of the model, `MODEL`. `movement` is the return to `target`, a ratio
    minus 1, NaN where it is not known; `fold` numbers the fold of each day. A stock-day is scored
    if its return counts under the protocol and every predictor has a direction. Columns are `slice,
    value, protocol, predictor, n, days, rises, acc, acc_low, acc_high, mcc, mcc_low, mcc_high,
    model_gain, model_gain_low, model_gain_high`.

    `slice` is "all", "fold", "year" or "symbol", and `value` says which of them ("" for all days).
    `n` counts the stock-days, `days` their days, `rises` those that rose; where nothing counts
    there is no row. Ends of intervals are NaN below `MINIMUM_DAYS`. `model_gain` is the model's MCC
    less that of the row's predictor on the same days; NaN for the model itself and for stocks.
    """
    predictors = list(directions)
    frames = []
    for protocol in LABEL_PROTOCOLS:
        counts = confusion_by_stock(directions, movement, protocol)
        of_all_stocks = counts.sum(axis=2)  # [days predictors 4]
        for group in _day_groups(target, fold):
            of_group = of_all_stocks[group.days]
            model = predictors.index(MODEL)
            # The model is also compared with itself here; those places become NaN below.
            gain, low, high = gain_in_mcc(of_group[:, model], of_group, resamples=RESAMPLES)
            is_model = np.arange(len(predictors)) == model
            rows = _score(of_group, predictors).assign(
                model_gain=np.where(is_model, np.nan, gain),
                model_gain_low=np.where(is_model, np.nan, low),
                model_gain_high=np.where(is_model, np.nan, high),
            )
            frames.append(rows.assign(slice=group.slice, value=group.value, protocol=protocol))
        for position, predictor in enumerate(predictors):
            # The stocks of one predictor, [days stocks 4], are scored as predictors would be.
            rows = _score(counts[:, position], list(symbols))
            rows = rows.rename(columns={"predictor": "value"})
            frames.append(rows.assign(slice="symbol", predictor=predictor, protocol=protocol))
    scores = pd.concat(frames, ignore_index=True)
    others = [name for name in scores if name not in FIRST_COLUMNS]
    return scores.loc[scores["n"] > 0, [*FIRST_COLUMNS, *others]].reset_index(drop=True)


def rank_ics_by_slice(
    probability: PerStock,
    losers: PerStock,
    movement: PerStock,
    target: pd.DatetimeIndex,
    fold: Folds,
) -> pd.DataFrame:
    """Score how probabilities rank the stocks of a day, beside the rule that losers rise.

    `losers` are the scores of that rule. Columns are `slice, value` (as in `slice_scores`, without
    stocks); `rank_ic`, the mean over days of the probabilities' rank IC; `rank_gain`, such a mean
    less that of the rule's rank IC; and the ends of their intervals, such as `rank_ic_low` and
    `rank_ic_high`. For the gain, both means are taken over the stock-days that have a probability
    and a score of the rule.
    """
    rows = []
    for group in _day_groups(target, fold):
        days = group.days
        rank_ic = mean_of_days(rank_ics(*both_known(probability[days], movement[days])))
        gain = paired_rank_ic(probability[days], losers[days], movement[days])
        rows.append(
            {
                "slice": group.slice,
                "value": group.value,
                **rank_ic.named("rank_ic"),
                **gain.named("rank_gain"),
            }
        )
    return pd.DataFrame(rows)


def rolling_mcc(
    directions: Directions, movement: PerStock, target: pd.DatetimeIndex
) -> pd.DataFrame:
    """Return the MCC of every predictor over the `ROLLING_SESSIONS` up to each session.

    Columns: `session, predictor, mcc, mcc_low, mcc_high`. A stock-day counts where its return is
    known and every predictor has a direction. The first `ROLLING_SESSIONS` - 1 sessions have no
    row.
    """
    counts = confusion_by_stock(directions, movement, "all").sum(axis=2)
    frames = []
    for position, predictor in enumerate(directions):
        rows = rolling_scores(counts[:, position], target, statistics=("mcc",))
        frames.append(rows.assign(predictor=predictor))
    columns = ["session", "predictor", "mcc", "mcc_low", "mcc_high"]
    return pd.concat(frames, ignore_index=True)[columns]


def rolling_scores(
    counts: Int[ndarray, "days 4"],
    target: pd.DatetimeIndex,
    statistics: Sequence[str] = ("acc", "mcc"),
) -> pd.DataFrame:
    """Return the `statistics` of one predictor over the `ROLLING_SESSIONS` up to each session.

    `counts` are true rises, false rises, false falls and true falls of each session of `target`.
    Columns: session, and each of `statistics` with its 95 % interval, `acc, acc_low, acc_high,
    ...`. Where nothing counts, ACC is NaN and MCC is 0. The first `ROLLING_SESSIONS` - 1 sessions
    have no row.
    """
    names = ["session"]
    for name in statistics:
        names += [name, f"{name}_low", f"{name}_high"]
    if len(counts) < ROLLING_SESSIONS:
        return pd.DataFrame(columns=names)
    windows = _rolling_windows(counts)  # each window takes the place of a model in `measured`
    columns: dict[str, Any] = {"session": target[ROLLING_SESSIONS - 1 :]}
    with np.errstate(invalid="ignore"):  # of a window in which nothing counted
        for name in statistics:
            columns.update(measured(name, windows, STATISTICS[name], RESAMPLES))
    return pd.DataFrame(columns, columns=names)


def rolling_rank_ic(
    probability: PerStock, movement: PerStock, target: pd.DatetimeIndex
) -> pd.DataFrame:
    """Return the mean daily rank IC of the last `ROLLING_SESSIONS` sessions up to each session.

    A session without a rank IC does not count among the `ROLLING_SESSIONS`, and has no row.
    Columns: session, predictor (the model), rank_ic, and the ends of its 95 % interval, rank_ic_low
    and rank_ic_high. The first `ROLLING_SESSIONS` - 1 sessions with a rank IC have no row.
    """
    daily = rank_ics(*both_known(probability, movement))
    is_known = np.isfinite(daily)
    if is_known.sum() < ROLLING_SESSIONS:
        return pd.DataFrame(
            columns=["session", "predictor", "rank_ic", "rank_ic_low", "rank_ic_high"]
        )
    ic_and_day = np.stack([daily[is_known], np.ones(is_known.sum())], axis=-1)
    windows = _rolling_windows(ic_and_day)  # each window takes the place of a model in `measured`
    return pd.DataFrame(
        {
            "session": target[is_known][ROLLING_SESSIONS - 1 :],
            "predictor": MODEL,
            **measured("rank_ic", windows, ratio, RESAMPLES),
        }
    )


def _rolling_windows(daily: ndarray) -> ndarray:
    """Return the rows of the last `ROLLING_SESSIONS` days up to each day.

    `daily` is [days columns], the result [sessions of a window, windows, columns].
    """
    windows = np.lib.stride_tricks.sliding_window_view(daily, ROLLING_SESSIONS, axis=0)
    return np.ascontiguousarray(windows.transpose(2, 0, 1))


def confusion_by_stock(
    directions: Directions, movement: PerStock, protocol: LabelProtocol
) -> Counts:
    """Count true rises, false rises, false falls and true falls of each predictor and stock-day.

    One of the four counts is 1. For a stock-day that does not count under the protocol, or for
    which any predictor lacks a direction, all counts of all predictors are 0.
    """
    counted = labelled(movement, protocol)
    for predicted in directions.values():
        counted = counted & np.isfinite(predicted)
    rose = movement > 0
    by_predictor = [confusion(predicted > 0.5, rose, counted) for predicted in directions.values()]
    return np.stack(by_predictor, axis=1)


@dataclass(frozen=True)
class _DayGroup:
    """Days that are scored together: all days, those of a fold, or those of a calendar year.

    `slice` and `value` name the group as in `slice_scores`; `days` marks its days.
    """

    slice: str
    value: str
    days: Bool[ndarray, " days"]


def _day_groups(target: pd.DatetimeIndex, fold: Folds) -> Iterator[_DayGroup]:
    """Yield all days, each fold and each calendar year."""
    yield _DayGroup("all", "", np.ones(len(target), dtype=bool))
    for number in np.unique(fold):
        yield _DayGroup("fold", str(number), fold == number)
    for year in np.unique(target.year):
        yield _DayGroup("year", str(year), np.asarray(target.year == year))


def _score(counts: Int[ndarray, "days predictors 4"], names: list[str]) -> pd.DataFrame:
    """Return a row for each of the predictors `names`, with ACC and MCC and their intervals.

    The stocks of one predictor may stand in the place of predictors. The days of a predictor are
    those on which one of its directions counts. With fewer than `MINIMUM_DAYS` of them, the ends of
    its intervals are NaN. `slice_scores` describes the columns.
    """
    total = counts.sum(axis=0)
    days = (counts.sum(axis=-1) > 0).sum(axis=0)
    enough = days >= MINIMUM_DAYS
    columns: dict[str, Any] = {
        "predictor": names,
        "n": total.sum(axis=-1),
        "days": days,
        "rises": total[:, 0] + total[:, 2],  # true rises and false falls
    }
    with np.errstate(invalid="ignore"):  # of a stock that never counted
        for name, statistic in STATISTICS.items():
            low = np.full(len(names), np.nan)
            high = np.full(len(names), np.nan)
            if enough.any():
                low[enough], high[enough] = day_interval(
                    counts[:, enough], statistic, resamples=RESAMPLES, seed=0
                )
            columns[name] = statistic(total)
            columns[f"{name}_low"] = low
            columns[f"{name}_high"] = high
    return pd.DataFrame(columns)
