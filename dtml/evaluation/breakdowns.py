"""Scores of a model beside naive rules over a long history.

They are of the whole history, and by fold, year and stock.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.baselines.naive_rules import MODEL
from dtml.evaluation.bootstrap import Statistic
from dtml.evaluation.metrics import accuracy, confusion, gain_in_mcc, mcc, measured, ratio
from dtml.evaluation.ranking import both_known, mean_of_days, paired_rank_ic, rank_ics
from dtml.markets.definition import LABEL_PROTOCOLS, LabelProtocol
from dtml.prices.returns import labelled

ROLLING_SESSIONS = 63  # a quarter of a year
RESAMPLES = 2000
STATISTICS: Mapping[str, Statistic] = {"acc": accuracy, "mcc": mcc}

PerStock = Float[ndarray, "days stocks"]
Folds = Int[ndarray, " days"]  # the number of each day's fold
Directions = Mapping[str, PerStock]  # of each predictor: 1 for a rise, 0 for a fall, NaN for none


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
    there is no row. `model_gain` is the model's MCC less that of the row's predictor on the same
    days; NaN for the model itself and for stocks.
    """
    predictors = list(directions)
    model = predictors.index(MODEL)
    frames = []
    for protocol in LABEL_PROTOCOLS:
        counts = confusion_by_stock(directions, movement, protocol)
        of_all_stocks = counts.sum(axis=2)  # [days predictors 4]
        for part, value, days in _day_groups(target, fold):
            of_days = of_all_stocks[days]
            gain = pd.DataFrame(gain_in_mcc(of_days[:, model], of_days, RESAMPLES))
            gain.loc[model] = np.nan
            rows = _score(of_days).join(gain)
            named = {"slice": part, "value": value, "protocol": protocol, "predictor": predictors}
            frames.append(rows.assign(**named))
        for position, predictor in enumerate(predictors):
            # The stocks of one predictor, [days stocks 4], are scored as predictors would be.
            named = {"slice": "symbol", "value": list(symbols), "protocol": protocol}
            rows = _score(counts[:, position])
            frames.append(rows.assign(**named, predictor=predictor))
    scores = pd.concat(frames, ignore_index=True)
    return scores[scores["n"] > 0].reset_index(drop=True)


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
    less that of the rule's rank IC on the stock-days that have both; and the ends of their
    intervals.
    """
    rows = []
    for part, value, days in _day_groups(target, fold):
        rank_ic = mean_of_days(rank_ics(*both_known(probability[days], movement[days])))
        gain = paired_rank_ic(probability[days], losers[days], movement[days])
        named = {"slice": part, "value": value}
        rows.append({**named, **rank_ic.named("rank_ic"), **gain.named("rank_gain")})
    return pd.DataFrame(rows)


def rolling_mcc(
    directions: Directions, movement: PerStock, target: pd.DatetimeIndex
) -> pd.DataFrame:
    """Return `rolling_scores` of every predictor's MCC, on all known returns."""
    counts = confusion_by_stock(directions, movement, "all").sum(axis=2)
    frames = [
        rolling_scores(counts[:, position], target, {"mcc": mcc}).assign(predictor=predictor)
        for position, predictor in enumerate(directions)
    ]
    return pd.concat(frames, ignore_index=True)


def rolling_rank_ic(
    probability: PerStock, movement: PerStock, target: pd.DatetimeIndex
) -> pd.DataFrame:
    """Return `rolling_scores` of the model's rank IC, over the sessions that have one."""
    daily = rank_ics(*both_known(probability, movement))
    is_known = np.isfinite(daily)
    ic_and_day = np.stack([daily[is_known], np.ones(is_known.sum())], axis=-1)
    rows = rolling_scores(ic_and_day, target[is_known], {"rank_ic": ratio})
    return rows.assign(predictor=MODEL)


def rolling_scores(
    summands: Int[ndarray, "days totals"] | Float[ndarray, "days totals"],
    target: pd.DatetimeIndex,
    statistics: Mapping[str, Statistic] = STATISTICS,
) -> pd.DataFrame:
    """Return statistics of one predictor over the `ROLLING_SESSIONS` up to each session.

    `summands` are what each session of `target` adds to their totals; ACC and MCC are of the counts
    of `confusion`. Columns: session, and each of `statistics` with its 95 % interval, `acc,
    acc_low, acc_high, ...`. The first `ROLLING_SESSIONS` - 1 sessions have no row.
    """
    columns: dict[str, object] = {"session": target[ROLLING_SESSIONS - 1 :]}
    if len(summands) < ROLLING_SESSIONS:
        ends = [f"{name}{end}" for name in statistics for end in ("", "_low", "_high")]
        return pd.DataFrame(columns=["session", *ends])
    windows = np.lib.stride_tricks.sliding_window_view(summands, ROLLING_SESSIONS, axis=0)
    # [sessions of a window, windows, totals]: each window takes the place of a model.
    windows = np.ascontiguousarray(windows.transpose(2, 0, 1))
    with np.errstate(invalid="ignore"):  # of a window in which nothing counted
        for name, statistic in statistics.items():
            columns |= measured(name, windows, statistic, RESAMPLES)
    return pd.DataFrame(columns)


def confusion_by_stock(
    directions: Directions, movement: PerStock, protocol: LabelProtocol
) -> Int[ndarray, "days predictors stocks 4"]:
    """Return the confusion counts of each predictor and stock-day.

    For a stock-day that does not count under the protocol, or for which any predictor lacks a
    direction, all counts of all predictors are 0.
    """
    counted = labelled(movement, protocol)
    for predicted in directions.values():
        counted = counted & np.isfinite(predicted)
    by_predictor = [
        confusion(predicted > 0.5, movement > 0, counted) for predicted in directions.values()
    ]
    return np.stack(by_predictor, axis=1)


def _day_groups(
    target: pd.DatetimeIndex, fold: Folds
) -> Iterator[tuple[str, str, Bool[ndarray, " days"]]]:
    """Yield all days, each fold and each calendar year: slice, value, and the mask of its days."""
    yield "all", "", np.ones(len(target), dtype=bool)
    for name, of_day in (("fold", fold), ("year", target.year.to_numpy())):
        for value in np.unique(of_day):
            yield name, str(value), of_day == value


def _score(counts: Int[ndarray, "days predictors 4"]) -> pd.DataFrame:
    """Return a row for each predictor, with ACC and MCC and their intervals."""
    total = counts.sum(axis=0)
    columns: dict[str, object] = {
        "n": total.sum(axis=-1),
        "days": counts.any(axis=-1).sum(axis=0),
        "rises": total[:, 0] + total[:, 2],  # true rises and false falls
    }
    with np.errstate(invalid="ignore"):  # of a stock that never counted
        for name, statistic in STATISTICS.items():
            columns |= measured(name, counts, statistic, RESAMPLES)
    return pd.DataFrame(columns)
