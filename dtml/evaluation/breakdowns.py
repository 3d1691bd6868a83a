"""Scores of a model beside naive rules over a whole history, and by fold, year and stock."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray

from dtml.baselines.naive_rules import MODEL
from dtml.evaluation.bootstrap import Statistic
from dtml.evaluation.metrics import STATISTICS, confusion, gain_in_mcc, mcc, measured, ratio
from dtml.evaluation.ranking import Days, both_known, mean_of_days, paired_rank_ic, rank_ics
from dtml.markets.definition import LABEL_PROTOCOLS, LabelProtocol
from dtml.prices.returns import labelled

ROLLING_SESSIONS = 63  # a quarter of a year
RESAMPLES = 2000

Directions = Mapping[str, Days]  # of each predictor: 1 for a rise, 0 for a fall, NaN for none


@dataclass(frozen=True)
class TrackRecord:
    """The predictions of a long history, each made at `as_of` for `target`, and their outcomes.

    `probability` is that of a rise, NaN without one; `movement` the return to `target`, a ratio
    minus 1, NaN unknown; `losers` minus the return to `as_of`.
    """

    probability: Days
    movement: Days
    as_of: pd.DatetimeIndex
    target: pd.DatetimeIndex
    fold: Int[ndarray, " days"]  # the number of each day's fold
    symbols: tuple[str, ...]
    rules: pd.DataFrame  # a row a day, a column a rule: 1 for a rise, 0 for a fall, or NaN
    losers: Days

    @property
    def directions(self) -> Directions:
        """Return the directions that `MODEL` and each rule predicted, the model first."""
        model = np.where(np.isfinite(self.probability), self.probability > 0.5, np.nan)
        all_stocks = np.ones_like(model)
        # A rule says the same of all stocks.
        rules = {
            str(rule): all_stocks * of_day.to_numpy()[:, None]
            for rule, of_day in self.rules.items()
        }
        return {MODEL: model, **rules}


def slice_scores(record: TrackRecord) -> pd.DataFrame:
    """Score every predictor on all days, and by fold, calendar year and stock, on both protocols.

    A stock-day is scored if its return counts under the protocol and every predictor has a
    direction. Columns: `slice` ("all", "fold", "year", "symbol"), `value` ("" for all), `protocol,
    predictor`, `n` (stock-days), `days`, `rises`, and with intervals `acc, mcc`, `model_gain` (the
    model's MCC less the predictor's on the same days; NaN for the model and for stocks), and of the
    model alone, on all known returns, `rank_ic` and `rank_gain` (less that of `losers`). No row
    where nothing counts.
    """
    directions = record.directions
    predictors = list(directions)
    groups = [("all", "", np.ones(len(record.target), dtype=bool))]
    for part, of_day in (("fold", record.fold), ("year", record.target.year.to_numpy())):
        groups += [(part, str(value), of_day == value) for value in np.unique(of_day)]
    frames = []
    for protocol in LABEL_PROTOCOLS:
        counts = confusion_by_stock(directions, record.movement, protocol)
        of_all_stocks = counts.sum(axis=2)  # [days predictors 4]
        for part, value, days in groups:
            of_days = of_all_stocks[days]
            # The model comes first.
            gains = pd.DataFrame(gain_in_mcc(of_days[:, 0], of_days, RESAMPLES))
            gains.loc[0] = np.nan
            rows = _score(of_days).join(gains)
            if protocol == "all":
                probability, movement = record.probability[days], record.movement[days]
                rank_ic = mean_of_days(rank_ics(*both_known(probability, movement)))
                gain = paired_rank_ic(probability, record.losers[days], movement)
                ranks = rank_ic.named("rank_ic") | gain.named("rank_gain")
                rows = rows.join(pd.DataFrame([ranks]))
            named = {"slice": part, "value": value, "protocol": protocol, "predictor": predictors}
            frames.append(rows.assign(**named))
        for position, predictor in enumerate(predictors):
            # The stocks of one predictor, [days stocks 4], are scored as predictors would be.
            named = {"slice": "symbol", "value": list(record.symbols), "protocol": protocol}
            rows = _score(counts[:, position])
            frames.append(rows.assign(**named, predictor=predictor))
    scores = pd.concat(frames, ignore_index=True)
    return scores[scores["n"] > 0].reset_index(drop=True)


def rolling_figures(record: TrackRecord) -> pd.DataFrame:
    """Return `rolling_scores` of each MCC, on all known returns, and of the model's rank IC."""
    counts = confusion_by_stock(record.directions, record.movement, "all").sum(axis=2)
    frames = [
        rolling_scores(counts[:, position], record.target, {"mcc": mcc}).assign(predictor=predictor)
        for position, predictor in enumerate(record.directions)
    ]
    daily = rank_ics(*both_known(record.probability, record.movement))
    is_known = np.isfinite(daily)
    ic_and_day = np.stack([daily[is_known], np.ones(is_known.sum())], axis=-1)
    ranks = rolling_scores(ic_and_day, record.target[is_known], {"rank_ic": ratio})
    mccs = pd.concat(frames, ignore_index=True)
    return mccs.merge(ranks.assign(predictor=MODEL), how="left", on=["session", "predictor"])


def rolling_scores(
    summands: Int[ndarray, "days totals"] | Float[ndarray, "days totals"],
    target: pd.DatetimeIndex,
    statistics: Mapping[str, Statistic] = STATISTICS,
) -> pd.DataFrame:
    """Return statistics of one predictor over the `ROLLING_SESSIONS` up to each session.

    `summands` are what each session of `target` adds to their totals, by default counts of
    `confusion`. Columns: session, and each with its 95 % interval, `acc, acc_low, acc_high, ...`.
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
    directions: Directions, movement: Days, protocol: LabelProtocol
) -> Int[ndarray, "days predictors stocks 4"]:
    """Return the confusion counts of each predictor and stock-day.

    All are 0 where the protocol does not count it, or any predictor lacks a direction.
    """
    counted = labelled(movement, protocol)
    for predicted in directions.values():
        counted = counted & np.isfinite(predicted)
    by_predictor = [
        confusion(predicted > 0.5, movement > 0, counted) for predicted in directions.values()
    ]
    return np.stack(by_predictor, axis=1)


def _score(counts: Int[ndarray, "days predictors 4"]) -> pd.DataFrame:
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
