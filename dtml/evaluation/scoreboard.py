"""Every predictor beside every other on the same stock-days, with intervals that resample days.

ACC and MCC mix two skills: timing the market, which one-line rules do too, and ranking the stocks
of a day. `auc` measures the second alone; `same_direction` shows how nearly a predictor gives all
stocks one direction, as the rules do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.baselines.naive_rules import RULE_HISTORY
from dtml.evaluation.bootstrap import RESAMPLES, Statistic, difference
from dtml.evaluation.calibration import Flat, logit
from dtml.evaluation.family import daily_gains, family_p
from dtml.evaluation.metrics import accuracy, confusion, mcc, measured, ratio
from dtml.evaluation.ranking import both_known, mean_of_days, rank_ics
from dtml.markets.definition import LABEL_PROTOCOLS
from dtml.prices.returns import labelled

COLUMNS = [
    "predictor",
    "is_rule",
    "protocol",
    "days",
    "n",
    "rises",
    "seeds",
    "configurations",
    "acc_mean",
    "acc_sd",
    "mcc_mean",
    "mcc_sd",
    "acc",
    "acc_low",
    "acc_high",
    "mcc",
    "mcc_low",
    "mcc_high",
    "acc_gain",
    "acc_gain_low",
    "acc_gain_high",
    "mcc_gain",
    "mcc_gain_low",
    "mcc_gain_high",
    "acc_gain_p",
    "mcc_gain_p",
    "brier",
    "brier_low",
    "brier_high",
    "calibration_slope",
    "calibration_intercept",
    "auc",
    "auc_low",
    "auc_high",
    "rank_ic",
    "rank_ic_low",
    "rank_ic_high",
    "same_direction",
]
OF_GAINS = [column for column in COLUMNS if "gain" in column and not column.endswith("_p")]
OF_MEMBERS = ["seeds", "configurations", "acc_mean", "acc_sd", "mcc_mean", "mcc_sd"]
OF_PROBABILITIES = [
    column for column in COLUMNS if column.startswith(("brier", "calibration", "auc", "rank_ic"))
]
PerStock = Float[ndarray, "days stocks"]
PerSeed = Float[ndarray, " seeds"]
StockDays = Bool[ndarray, "days stocks"]
Counts = Int[ndarray, "days predictors 4"]
Columns = dict[str, Float[ndarray, " predictors"]]


@dataclass(frozen=True)
class Predictor:
    """The probabilities of one predictor.

    `probability` of a rise, in [0, 1], is NaN where there is none; a naive rule has one seed of 0.0
    and 1.0. `configurations` counts those tried on validation days before this one was kept.
    """

    name: str
    probability: Float[ndarray, "seeds days stocks"]
    is_rule: bool = False
    configurations: int = 1


@dataclass(frozen=True)
class _Sample:
    """The stock-days that count, of the days that have any, and the number of resamples."""

    days: Bool[ndarray, " all_days"]
    counted: StockDays
    movement: PerStock
    resamples: int

    @property
    def rose(self) -> StockDays:
        return np.asarray(self.movement > 0)

    def counts(self, probability: PerStock) -> Int[ndarray, "days 4"]:
        """Return the confusion counts of each day; above one half a rise is predicted."""
        kinds = confusion(probability > 0.5, self.rose, self.counted)
        return np.asarray(kinds.sum(axis=1))


def scoreboard(
    predictors: Sequence[Predictor],
    *,
    movement: PerStock,
    target: pd.DatetimeIndex,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Return a row a predictor and protocol, in `COLUMNS`.

    A row is of the stock-days for which every model has a probability. `movement` is the return to
    `target`, a ratio minus 1, NaN where it is not known; protocol 'all' counts every known return,
    'published' those large enough for a label. Columns that end in `_mean` or `_sd` (ddof 1, NaN
    for one seed) are over the seeds of a predictor. All other figures are of its ensemble, the mean
    probability over the seeds:

    - `n` counts the stock-days, `days` their days, `rises` those that rose; all rows of a protocol
      have the same ones;
    - gains are paired differences to the rule with the highest ACC, or MCC, on these days, NaN for
      that rule itself; `acc_gain_p` and `mcc_gain_p` are their p-values, adjusted for all pairs of
      a predictor and a rule (`family_p`);
    - `brier` is a mean squared error; a calibrated predictor has slope 1 and intercept 0, which are
      NaN where `calibration_line` finds none;
    - `auc` (.5 is no skill) is the share of pairs of a riser and a faller of the same day in which
      the riser was the more probable, NaN without such a pair;
    - `rank_ic` is the mean over days of the rank correlation of probability and return within the
      day; days of fewer than `dtml.evaluation.ranking.MINIMUM_STOCKS` stock-days are left out;
    - `same_direction`, in [.5, 1], is the larger share of a day's stocks given one direction, mean
      over days.

    The 0.0 and 1.0 of a rule are directions, not probabilities. Rules therefore have ACC, MCC, the
    gains and `same_direction`, but NaN for the figures of probabilities (`brier`, slope, intercept,
    `auc`, `rank_ic`) and of seeds (`seeds`, `configurations`, means and sd). Ends of intervals and
    p-values are NaN below `dtml.evaluation.metrics.MINIMUM_DAYS`. Raises ValueError when shapes or
    names do not fit, when a rule has no direction where the models have a probability, or when no
    stock-day counts under a protocol.
    """
    names = [predictor.name for predictor in predictors]
    if len(set(names)) < len(names):
        raise ValueError(f"every predictor needs a unique name, got {', '.join(names)}")
    if len(target) != len(movement):
        raise ValueError(
            f"there are {len(target)} targets for the movements of {len(movement)} days: "
            "pass one for each day"
        )
    for predictor in predictors:
        shape = predictor.probability.shape
        if shape[1:] != movement.shape:
            expected_days, stocks = movement.shape
            raise ValueError(
                f"the probabilities of {predictor.name} have the shape {shape}: expected (seeds, "
                f"{expected_days}, {stocks}), for {expected_days} days and {stocks} stocks as in "
                "movement"
            )
    is_common = common_stock_days(predictors, movement, target)
    frames = []
    for protocol in LABEL_PROTOCOLS:
        counted = is_common & labelled(movement, protocol)
        if not counted.any():
            raise _nothing_counts(is_common, target, protocol)
        days = np.asarray(counted.any(axis=1))
        sample = _Sample(
            days=days,
            counted=counted[days],
            movement=movement[days],
            resamples=resamples,
        )
        frames.append(_rows(predictors, sample).assign(protocol=protocol))
    return pd.concat(frames, ignore_index=True)[COLUMNS]


def _nothing_counts(
    is_common: Bool[ndarray, "days stocks"], target: pd.DatetimeIndex, protocol: str
) -> ValueError:
    """Return the error that no stock-day counts under a protocol, with the likely cause."""
    span = f"from {target[0]:%Y-%m-%d} to {target[-1]:%Y-%m-%d}"
    if not is_common.any():
        return ValueError(
            f"no stock-day {span} has both a known return and a probability of every model: check "
            "that the stocks have prices on these days"
        )
    return ValueError(
        f"none of {is_common.sum()} stock-days {span} has a return that is large enough for the "
        f"label protocol {protocol!r}: check that the prices change"
    )


def member_scores(
    probability: Float[ndarray, "seeds days stocks"], movement: PerStock
) -> tuple[PerSeed, PerSeed]:
    """Return ACC and MCC of each seed on the paper's labels, where every seed has a probability.

    `movement` is as in `scoreboard`. Raises ValueError when no stock-day counts.
    """
    has_probability = np.isfinite(probability).all(axis=0)
    counted = labelled(movement, "published") & has_probability
    if not counted.any():
        raise ValueError(
            f"none of {movement.size} stock-days has a label and a probability of every seed: "
            "check that the stocks have prices on these days, and that the prices change enough "
            "for a label"
        )
    every_day = np.ones(len(movement), dtype=bool)
    # Only the counts of the sample are used, which need no resamples.
    sample = _Sample(days=every_day, counted=counted, movement=movement, resamples=0)
    totals = np.stack([sample.counts(of_seed).sum(axis=0) for of_seed in probability])
    return accuracy(totals), mcc(totals)


def calibration_line(probability: Flat, rose: Bool[ndarray, " stock_days"]) -> tuple[float, float]:
    """Return slope and intercept of the calibration line (Cox, 1958).

    The line is the logistic regression of the outcome on the logit of its probability. Both are NaN
    where it has no finite solution: one outcome only, one probability only, or a threshold of the
    probability that separates the two outcomes.
    """
    from sklearn.linear_model import LogisticRegression

    log_odds = logit(probability)
    centre = float(log_odds.mean())
    deviation = float(log_odds.std())
    risers = log_odds[rose]
    fallers = log_odds[~rose]
    if deviation < 1e-9 or not len(risers) or not len(fallers):
        return np.nan, np.nan
    is_separated = risers.min() >= fallers.max() or fallers.min() >= risers.max()
    if is_separated:
        return np.nan, np.nan
    # The deviation of a model's logits may be a hundredth: unscaled, the solver would stop too
    # early.
    scaled = (log_odds - centre) / deviation
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    model.fit(scaled[:, None], rose)
    slope = float(model.coef_[0, 0]) / deviation
    intercept = float(model.intercept_[0]) - slope * centre
    return slope, intercept


def pairs_by_day(
    probability: PerStock, rose: StockDays, counted: StockDays
) -> Float[ndarray, "days 2"]:
    """Count the pairs of a riser and a faller of each day.

    The first column counts the pairs whose riser was the more probable, the second all pairs. A tie
    is half a pair. Only stock-days that are counted form pairs.
    """
    from scipy.stats import rankdata

    # Stock-days that are not counted rank above all others, and so change no rank that is used.
    rank = rankdata(np.where(counted, probability, np.inf), axis=1)
    is_riser = counted & rose
    risers = is_riser.sum(axis=1)
    fallers = (counted & ~rose).sum(axis=1)
    # Mann and Whitney's U: among themselves, the risers would have the ranks 1, 2, ...
    rank_sum = np.where(is_riser, rank, 0.0).sum(axis=1)
    won = rank_sum - risers * (risers + 1) / 2
    return np.stack([won, risers * fallers], axis=-1).astype(float)


def common_stock_days(
    predictors: Sequence[Predictor], movement: PerStock, target: pd.DatetimeIndex
) -> StockDays:
    """Return where the return is known and every seed of every model has a probability.

    These are the stock-days of `scoreboard`. Raises ValueError when a rule has no direction on one
    of them.
    """
    is_common = np.isfinite(movement)
    for predictor in predictors:
        if not predictor.is_rule:
            is_common = is_common & np.isfinite(predictor.probability).all(axis=0)
    for rule in predictors:  # models are never silent here, after the loop above
        silent = is_common & ~np.isfinite(rule.probability).all(axis=0)
        if silent.any():
            silent_days = np.flatnonzero(silent.any(axis=1))
            raise ValueError(
                f"{rule.name} has no direction on {silent.sum()} stock-days that count, "
                f"first {target[silent_days[0]]:%Y-%m-%d}: fetch the prices of the index on the "
                f"{RULE_HISTORY} sessions before each of these days"
            )
    return np.asarray(is_common)


def _rows(predictors: Sequence[Predictor], sample: _Sample) -> pd.DataFrame:
    """Return a row a predictor for one sample, with all columns of `COLUMNS` but `protocol`."""
    # The probabilities of each predictor, [seeds days stocks], and of its ensemble, [days stocks].
    of_seeds = [predictor.probability[:, sample.days] for predictor in predictors]
    of_ensembles = [seeds.mean(axis=0) for seeds in of_seeds]
    # [days predictors 4]: true rises, false rises, false falls, true falls. Every day of a sample
    # has a stock-day that counts.
    counts = np.stack([sample.counts(probability) for probability in of_ensembles], axis=1)
    # The first two of the four are the stocks predicted to rise.
    share_of_rises = counts[..., :2].sum(axis=-1) / counts.sum(axis=-1)  # [days predictors]
    is_rule = np.array([predictor.is_rule for predictor in predictors])
    # Over the seeds of each predictor; the standard deviation (sd) is NaN for a single seed.
    accs = []
    mccs = []
    for seeds in of_seeds:
        totals = [sample.counts(probability).sum(axis=0) for probability in seeds]
        accs.append(pd.Series([float(accuracy(total)) for total in totals]))
        mccs.append(pd.Series([float(mcc(total)) for total in totals]))
    frame = pd.DataFrame(
        {
            "predictor": [predictor.name for predictor in predictors],
            "is_rule": is_rule,
            "days": len(counts),
            "n": int(sample.counted.sum()),
            "rises": int((sample.counted & sample.rose).sum()),
            "seeds": [float(len(seeds)) for seeds in of_seeds],
            "configurations": [float(predictor.configurations) for predictor in predictors],
            "acc_mean": np.array([scores.mean() for scores in accs]),
            "acc_sd": np.array([scores.std() for scores in accs]),
            "mcc_mean": np.array([scores.mean() for scores in mccs]),
            "mcc_sd": np.array([scores.std() for scores in mccs]),
            **measured("acc", counts, accuracy, sample.resamples),
            **measured("mcc", counts, mcc, sample.resamples),
            **_gains("acc_gain", counts, is_rule, accuracy, sample.resamples),
            **_gains("mcc_gain", counts, is_rule, mcc, sample.resamples),
            **_probability_figures(of_ensembles, sample),
            "same_direction": np.maximum(share_of_rises, 1 - share_of_rises).mean(axis=0),
        }
    )
    # The 0.0 and 1.0 of rules are no probabilities.
    frame.loc[frame["is_rule"], OF_MEMBERS + OF_PROBABILITIES] = np.nan
    return frame


def _gains(
    name: str,
    counts: Counts,
    is_rule: Bool[ndarray, " predictors"],
    statistic: Statistic,
    resamples: int,
) -> Columns:
    """Return the gain of each predictor over the strongest rule, with its interval and p-value.

    The strongest rule is the one with the highest `statistic` on these days. The p-values are
    adjusted for all pairs of a predictor and a rule. All are NaN for the strongest rule itself.
    """
    rules = np.flatnonzero(is_rule)
    strongest = rules[statistic(counts[:, rules].sum(axis=0)).argmax()]
    pairs = [(each, rule) for rule in rules for each in range(len(is_rule)) if each != rule]
    predictors, others = np.array(pairs).T
    # As `difference` takes them: [days pairs 8].
    paired = np.concatenate([counts[:, predictors], counts[:, others]], axis=-1)
    gain = difference(statistic)
    adjusted = family_p(daily_gains(paired, gain), resamples=resamples)
    is_over_strongest = others == strongest
    values = measured(name, paired[:, is_over_strongest], gain, resamples)
    values[f"{name}_p"] = adjusted[is_over_strongest]
    columns = {column: np.full(len(is_rule), np.nan) for column in values}
    for column, known in values.items():
        columns[column][predictors[is_over_strongest]] = known
    return columns


def _probability_figures(of_ensembles: Sequence[PerStock], sample: _Sample) -> Columns:
    """Return the columns of each predictor that need probabilities, not only directions.

    They are `OF_PROBABILITIES`. Those of rules are computed here too; `scoreboard`
    replaces them by NaN.
    """
    counted = sample.counted
    rose = sample.rose
    stocks_by_day = counted.sum(axis=1)
    brier = []
    pairs = []
    lines = []
    rank_ic = []
    for probability in of_ensembles:
        squared_error = np.where(counted, (probability - rose) ** 2, 0.0).sum(axis=1)
        brier.append(np.stack([squared_error, stocks_by_day], axis=-1))
        pairs.append(pairs_by_day(probability, rose, counted))
        lines.append(calibration_line(probability[counted], rose[counted]))
        scores, outcome = both_known(np.where(counted, probability, np.nan), sample.movement)
        rank_ic.append(mean_of_days(rank_ics(scores, outcome)))
    all_pairs = np.stack(pairs, axis=1)  # [days predictors 2]
    auc = measured("auc", all_pairs, ratio, sample.resamples)
    if not all_pairs[..., 1].any():  # no pair on any day: `ratio` has answered one half
        auc = {column: np.full_like(values, np.nan) for column, values in auc.items()}
    slopes, intercepts = np.array(lines).T
    return {
        **measured("brier", np.stack(brier, axis=1), ratio, sample.resamples),
        "calibration_slope": slopes,
        "calibration_intercept": intercepts,
        **auc,
        "rank_ic": np.array([estimate.value for estimate in rank_ic]),
        "rank_ic_low": np.array([estimate.low for estimate in rank_ic]),
        "rank_ic_high": np.array([estimate.high for estimate in rank_ic]),
    }
