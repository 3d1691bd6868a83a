"""Every predictor beside every other on the same stock-days, with intervals that resample days.

ACC and MCC mix timing the market, which one-line rules do too, with ranking the stocks of a day,
which `auc` measures alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.baselines.naive_rules import RULE_HISTORY
from dtml.errors import DtmlError
from dtml.evaluation.bootstrap import RESAMPLES, Statistic, difference, pseudo_values
from dtml.evaluation.calibration import Flat, logistic_line, logit
from dtml.evaluation.family import family_p
from dtml.evaluation.metrics import STATISTICS, confusion, measured, ratio
from dtml.evaluation.ranking import Days, Flags, both_known, mean_of_days, pairs_won, rank_ics
from dtml.markets.definition import LABEL_PROTOCOLS
from dtml.prices.returns import labelled

# The 0.0 and 1.0 of a rule are directions, not probabilities: it has none of these figures.
OF_SEEDS = ("seeds", "configurations", "acc_mean", "acc_sd", "mcc_mean", "mcc_sd")
OF_MODELS = (*OF_SEEDS, "brier", "calibration", "auc", "rank_ic")
PerSeed = Float[ndarray, "seeds days stocks"]
Counts = Int[ndarray, "days predictors 4"]
Columns = dict[str, Float[ndarray, " predictors"]]


@dataclass(frozen=True)
class Predictor:
    """The probabilities of one predictor.

    `probability` of a rise, in [0, 1], is NaN without one; a naive rule has one seed of 0.0 and
    1.0. `configurations` counts those tried on validation days.
    """

    name: str
    probability: PerSeed
    is_rule: bool = False
    configurations: int = 1


def scoreboard(
    predictors: Sequence[Predictor],
    *,
    movement: Days,
    target: pd.DatetimeIndex,
) -> pd.DataFrame:
    """Return a row a predictor and protocol: the columns of the table `benchmark_score`.

    A row is of the stock-days for which every model has a probability. `movement` is the return to
    `target`, a ratio minus 1, NaN unknown; 'all' counts every return, 'published' those with a
    label. Columns in `_mean` or `_sd` (ddof 1, NaN for one seed) are over seeds; others are of the
    ensemble, the mean probability over seeds:

    - gains are paired differences to the rule with the highest ACC, or MCC, NaN for that rule;
      `acc_gain_p` and `mcc_gain_p` are adjusted for all pairs of a predictor and a rule
      (`family_p`);
    - `brier` is a mean squared error; a calibrated predictor has slope 1 and intercept 0, NaN where
      `calibration_line` finds none;
    - `auc` (.5 is no skill) is the share of pairs of a riser and a faller of one day ranked
      correctly, NaN without such a pair;
    - `rank_ic` is the mean over days of the rank correlation of probability and return;
    - `same_direction`, in [.5, 1], is the larger share of a day's stocks given one direction, mean
      over days.

    Figures `OF_MODELS` are NaN for rules. Raises DtmlError where a rule lacks a direction, or no
    stock-day counts.
    """
    is_common = common_stock_days(predictors, movement, target)
    frames = []
    for protocol in LABEL_PROTOCOLS:
        counted = is_common & labelled(movement, protocol)
        if not counted.any():
            raise DtmlError(
                f"none of {is_common.sum()} stock-days from {target[0]:%Y-%m-%d} to "
                f"{target[-1]:%Y-%m-%d} with a known return and a probability of every model "
                f"counts under the label protocol {protocol!r}: check the prices of these days"
            )
        days = counted.any(axis=1)
        rows = _rows(predictors, days, counted[days], movement[days])
        frames.append(rows.assign(protocol=protocol))
    scores = pd.concat(frames, ignore_index=True)
    of_models = [name for name in scores if str(name).startswith(OF_MODELS)]
    scores.loc[scores["is_rule"], of_models] = np.nan
    return scores


def common_stock_days(
    predictors: Sequence[Predictor], movement: Days, target: pd.DatetimeIndex
) -> Flags:
    """Return where the return is known and every seed of every model has a probability."""
    is_common = np.isfinite(movement)
    for predictor in sorted(predictors, key=lambda each: each.is_rule):  # the models come first
        has_probability = np.isfinite(predictor.probability).all(axis=0)
        silent = is_common & ~has_probability
        if not predictor.is_rule:
            is_common = is_common & has_probability
        elif silent.any():
            first = target[silent.any(axis=1)][0]
            raise DtmlError(
                f"{predictor.name} has no direction on {silent.sum()} stock-days that count, "
                f"first {first:%Y-%m-%d}: fetch the prices of the index on the "
                f"{RULE_HISTORY} sessions before each of these days"
            )
    return np.asarray(is_common)


def member_scores(probability: PerSeed, movement: Days) -> dict[str, Float[ndarray, " seeds"]]:
    """Return ACC and MCC of each seed on the paper's labels, where every seed has a probability."""
    counted = labelled(movement, "published") & np.isfinite(probability).all(axis=0)
    return _of_seeds(probability, movement > 0, counted)


def _of_seeds(probability: PerSeed, rose: Flags, counted: Flags) -> Columns:
    totals = np.stack(
        [confusion(seed > 0.5, rose, counted).sum(axis=(0, 1)) for seed in probability]
    )
    return {name: statistic(totals) for name, statistic in STATISTICS.items()}


def calibration_line(probability: Flat, rose: Bool[ndarray, " stock_days"]) -> tuple[float, float]:
    """Return slope and intercept of the calibration line (Cox, 1958), of the outcome on the logit.

    NaN without a finite solution: one outcome, one probability, or a threshold that separates.
    """
    log_odds = logit(probability)
    centre = float(log_odds.mean())
    deviation = float(log_odds.std())
    risers = log_odds[rose]
    fallers = log_odds[~rose]
    if deviation < 1e-9 or not len(risers) or not len(fallers):
        return np.nan, np.nan
    if risers.min() >= fallers.max() or fallers.min() >= risers.max():
        return np.nan, np.nan
    height, slope_in_deviations = logistic_line((log_odds - centre) / deviation, rose)
    slope = float(slope_in_deviations) / deviation
    return slope, float(height) - slope * centre


def _rows(
    predictors: Sequence[Predictor],
    days: Bool[ndarray, " all_days"],
    counted: Flags,
    movement: Days,
) -> pd.DataFrame:
    rose = movement > 0
    of_seeds = [predictor.probability[:, days] for predictor in predictors]
    of_ensembles = [seeds.mean(axis=0) for seeds in of_seeds]
    # [days predictors 4]: true rises, false rises, false falls, true falls. Every day of a sample
    # has a stock-day that counts.
    counts = np.stack(
        [confusion(each > 0.5, rose, counted).sum(axis=1) for each in of_ensembles], axis=1
    )
    # The first two of the four are the stocks predicted to rise.
    share_of_rises = counts[..., :2].sum(axis=-1) / counts.sum(axis=-1)  # [days predictors]
    is_rule = np.array([predictor.is_rule for predictor in predictors])
    columns: dict[str, object] = {
        "predictor": [predictor.name for predictor in predictors],
        "is_rule": is_rule,
        "days": len(counts),
        "n": int(counted.sum()),
        "rises": int((counted & rose).sum()),
        "seeds": [float(len(seeds)) for seeds in of_seeds],
        "configurations": [float(predictor.configurations) for predictor in predictors],
        "same_direction": np.maximum(share_of_rises, 1 - share_of_rises).mean(axis=0),
    }
    scores = [pd.DataFrame(_of_seeds(seeds, rose, counted)) for seeds in of_seeds]
    for name, statistic in STATISTICS.items():
        columns[f"{name}_mean"] = [of_predictor[name].mean() for of_predictor in scores]
        columns[f"{name}_sd"] = [of_predictor[name].std() for of_predictor in scores]
        columns |= measured(name, counts, statistic, RESAMPLES)
        columns |= _gains(f"{name}_gain", counts, is_rule, statistic)
    return pd.DataFrame(columns).join(_probability_figures(of_ensembles, counted, movement))


def _gains(
    name: str,
    counts: Counts,
    is_rule: Bool[ndarray, " predictors"],
    statistic: Statistic,
) -> Columns:
    """Return each predictor's gain over the rule of highest `statistic`, with interval and p-value.

    P-values are adjusted for all pairs of a predictor and a rule; NaN for that rule.
    """
    rules = np.flatnonzero(is_rule)
    strongest = rules[statistic(counts[:, rules].sum(axis=0)).argmax()]
    pairs = [(each, rule) for rule in rules for each in range(len(is_rule)) if each != rule]
    predictors, others = np.array(pairs).T
    # As `difference` takes them: [days pairs 8].
    paired = np.concatenate([counts[:, predictors], counts[:, others]], axis=-1)
    gain = difference(statistic)
    is_over_strongest = others == strongest
    values = measured(name, paired[:, is_over_strongest], gain, RESAMPLES)
    adjusted = family_p(pseudo_values(paired, gain), resamples=RESAMPLES)
    values[f"{name}_p"] = adjusted[is_over_strongest]
    columns = {column: np.full(len(is_rule), np.nan) for column in values}
    for column, known in values.items():
        columns[column][predictors[is_over_strongest]] = known
    return columns


def _probability_figures(
    of_ensembles: Sequence[Days], counted: Flags, movement: Days
) -> pd.DataFrame:
    """Return the columns of each predictor that need probabilities, not only directions."""
    rose = movement > 0
    brier = []
    pairs = []
    others = []
    for probability in of_ensembles:
        squared_error = np.where(counted, (probability - rose) ** 2, 0.0).sum(axis=1)
        brier.append(np.stack([squared_error, counted.sum(axis=1)], axis=-1))
        of_counted = np.where(counted, probability, np.nan)
        pairs.append(pairs_won(of_counted, counted & rose))
        slope, intercept = calibration_line(probability[counted], rose[counted])
        line = {"calibration_slope": slope, "calibration_intercept": intercept}
        rank_ic = mean_of_days(rank_ics(*both_known(of_counted, movement)))
        others.append(line | rank_ic.named("rank_ic"))
    all_pairs = np.stack(pairs, axis=1)  # [days predictors 2]
    auc = measured("auc", all_pairs, ratio, RESAMPLES)
    if not all_pairs[..., 1].any():  # no pair on any day: `ratio` has answered one half
        auc["auc"] = np.full_like(auc["auc"], np.nan)
    squared_errors = measured("brier", np.stack(brier, axis=1), ratio, RESAMPLES)
    return pd.DataFrame(squared_errors | auc).join(pd.DataFrame(others))
