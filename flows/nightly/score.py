"""Score past predictions against what happened, beside the naive rules."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray
from sqlalchemy import Connection

from db.engine import transaction
from db.rows import calibration
from db.rows import outcomes as stored_outcomes
from db.rows import scores as stored_scores
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES, directions_on, rules_read_from
from dtml.evaluation.calibration import count_band, count_bins
from dtml.evaluation.metrics import gain_in_mcc, score_days
from dtml.markets.definition import LABEL_PROTOCOLS, LabelProtocol
from dtml.prices.returns import published_labels, returns_of
from dtml.prices.sessions import next_session, sessions_up_to
from flows.nightly.context import Tonight
from flows.nightly.fetch import OVERLAP
from flows.nightly.ranking import score_rankings

# The figures of a score in the store, in the order of `_score_columns`.
FIGURES = ("acc", "acc_low", "acc_high", "mcc", "mcc_low", "mcc_high")
AWAITED = 250  # sessions after which a prediction whose bar is still missing is given up


@dataclass(frozen=True)
class Scored:
    """Hold what scoring changed.

    `outcomes` counts the outcomes that are new or changed, and `nights` are their sessions.
    `unresolved` counts the stocks predicted or ranked for closed sessions whose outcome is not
    known, and that are not given up yet (`AWAITED`).
    """

    outcomes: int
    nights: list[date]
    unresolved: int


@dataclass(frozen=True)
class DayCounts:
    """Hold a predictor's confusion matrix of each target.

    The columns of `counts` are true rises, false rises, false falls, true falls.
    """

    predictor: str
    protocol: LabelProtocol
    target: pd.DatetimeIndex
    counts: Int[ndarray, "days 4"]

    @property
    def correct(self) -> Int[ndarray, " days"]:
        """Return how many directions of each day were right."""
        return np.asarray(self.counts[:, 0] + self.counts[:, 3])

    @property
    def rises(self) -> Int[ndarray, " days"]:
        """Return how many stocks rose on each day."""
        return np.asarray(self.counts[:, 0] + self.counts[:, 2])

    @property
    def predicted_rises(self) -> Int[ndarray, " days"]:
        """Return how many stocks were predicted to rise on each day."""
        return np.asarray(self.counts[:, 0] + self.counts[:, 1])


def score(tonight: Tonight) -> Scored:
    """Record what became of the predictions, and score nights with new or restated outcomes.

    Outcomes and scores of directions and of rankings are stored in one transaction, with new
    running scores of every later night. Another ranker may become champion (`score_rankings`).
    """
    now = datetime.now(UTC)
    context = tonight.context
    as_of = tonight.as_of
    calendar = context.market.calendar
    # A night fetches the last `OVERLAP` sessions again, so their outcomes may still change.
    first_restatable = sessions_up_to(calendar, as_of, OVERLAP)[0].date()
    first_awaited = sessions_up_to(calendar, as_of, AWAITED)[0].date()
    with transaction(context.engine) as conn:
        predicted = stored_outcomes.unsettled(
            conn, context.name, first_awaited, as_of, since=first_restatable
        )
        first = as_of if predicted.empty else predicted["as_of"].min().date()
        stocks = predicted["symbol"].unique().tolist()
        bars = tonight.newest(first, symbols=stocks)
        market = context.market
        returns = returns_of(predicted, bars, market.returns, market.checks.max_return)
        # Differences of rounding are no change.
        is_unchanged = np.isclose(returns, predicted["realised_return"], rtol=1e-9, atol=1e-12)
        is_changed = np.isfinite(returns) & ~is_unchanged
        outcomes = outcome_rows(predicted["symbol"], predicted["target"], returns)
        outcomes = outcomes.assign(is_new=predicted["realised_return"].isna())
        known_at = bars["known_at"].max().to_pydatetime() if len(bars) else datetime.now(UTC)
        outcomes = outcomes[is_changed]
        record_outcomes(conn, tonight, outcomes, known_at=known_at, recorded_at=now)
        nights = sorted(day.date() for day in outcomes["session"].unique())
        score_rankings(conn, tonight, nights)
    without_outcome = int(predicted["realised_return"].isna().sum())
    new_outcomes = int(outcomes["is_new"].sum())
    tonight.scored = Scored(
        outcomes=len(outcomes), nights=nights, unresolved=without_outcome - new_outcomes
    )
    return tonight.scored


def record_outcomes(
    conn: Connection,
    tonight: Tonight,
    outcomes: pd.DataFrame,
    *,
    known_at: datetime,
    recorded_at: datetime,
) -> None:
    """Store outcomes (`outcome_rows`), and score each night whose confusion matrix they change.

    The directions of these nights are counted for their calibration, too. A restated return with
    the same sign and label changes no score.

    Nights, backtests and benchmarks share outcomes, and all of them store outcomes by this
    function. A backtest or benchmark may store an outcome before its night is run, so nights that
    have an outcome but no score are scored too. A night may be run after later ones: the running
    scores of those then count it too.
    """
    context = tonight.context
    stored_outcomes.save_outcomes(
        conn, context.name, outcomes, known_at=known_at, recorded_at=recorded_at
    )
    sessions = [day.date() for day in pd.DatetimeIndex(outcomes["session"]).unique()]
    # These are the `sessions` that a night predicted, and others with an outcome but without a
    # score, in the order of the days.
    days_to_count = stored_outcomes.unscored(conn, context.name, sessions)
    counted = []
    if days_to_count:
        counted = day_counts(conn, tonight, last=days_to_count[-1], first=days_to_count[0])
    stored = stored_scores.scores(conn, context.name, span="night")
    changed = _targets_to_score(counted, stored)
    if changed:
        counts_of_all_days = [_with_stored_days(predictor, stored) for predictor in counted]
        scores = _scores(counts_of_all_days, changed)
        stored_scores.save_scores(conn, context.name, scores, scored_at=recorded_at)
    # A benchmark may have stored an outcome before its night was run.
    never_counted = stored_outcomes.uncounted(conn, context.name, date.max)  # whatever their day
    days = sorted({day.date() for day in changed}.union(never_counted))
    if not days:
        return
    settled = stored_outcomes.settled_directions(conn, context.name, days[0], days[-1])
    settled = settled[settled["target"].isin(pd.DatetimeIndex(days))]
    run_ids = settled["run_id"].unique().tolist()
    save_counts(conn, settled, calibration.bands_of(conn, run_ids))


def _with_stored_days(counted: DayCounts, stored: pd.DataFrame) -> DayCounts:
    """Return a predictor's counts of every day, in the order of the days.

    Those of the days in `counted` are taken from it, and those of all other days are computed back
    from the stored scores of nights.
    """
    is_predictor = stored["predictor"] == counted.predictor
    is_protocol = stored["protocol"] == counted.protocol
    scores = stored[is_predictor & is_protocol]
    other_days = scores[~scores["target"].isin(counted.target)]
    target = pd.DatetimeIndex([*other_days["target"], *counted.target])
    counts = np.concatenate([_counts_of_scores(other_days), counted.counts])
    by_day = target.argsort()
    return DayCounts(
        predictor=counted.predictor,
        protocol=counted.protocol,
        target=target[by_day],
        counts=counts[by_day],
    )


def _correct_counts(scores: pd.DataFrame) -> "pd.Series[float]":
    """Return how many directions of each score were right, from its accuracy and number."""
    return (scores["acc"].fillna(0) * scores["n"]).round()


def _counts_of_scores(scores: pd.DataFrame) -> Int[ndarray, "days 4"]:
    """Return the confusion matrix from which each score of a night was computed.

    A confusion matrix has true rises (TR), false rises (FR), false falls (FF) and true falls (TF).
    As n = TR + FR + FF + TF, rises = TR + FF, predicted rises = TR + FR and correct = TR + TF, the
    sum correct + rises + predicted rises - n is 2 TR.
    """
    n = scores["n"].to_numpy(np.int64)
    rises = scores["rises"].to_numpy(np.int64)
    predicted_rises = scores["predicted_rises"].to_numpy(np.int64)
    correct = _correct_counts(scores.assign(n=n)).to_numpy(np.int64)
    true_rises = (correct + rises + predicted_rises - n) // 2
    false_rises = predicted_rises - true_rises
    false_falls = rises - true_rises
    true_falls = correct - true_rises
    return np.stack([true_rises, false_rises, false_falls, true_falls], axis=1)


def _targets_to_score(counted: list[DayCounts], scores: pd.DataFrame) -> set[pd.Timestamp]:
    """Return the targets whose stored score of the model is missing or has other counts.

    `scores` are the stored ones. The rules are scored on the same stock-days as the model, so their
    scores are not compared: that a restated index turns the direction of a rule is not noticed.
    """
    stored = scores[scores["predictor"] == MODEL].set_index(["protocol", "target"])
    to_score: set[pd.Timestamp] = set()
    for model in counted:
        if model.predictor != MODEL:
            continue
        score = stored.reindex(pd.MultiIndex.from_product([[model.protocol], model.target]))
        stored_counts = np.stack(
            [score["n"], score["rises"], score["predicted_rises"], _correct_counts(score)], axis=1
        )
        counts = np.stack(
            [model.counts.sum(axis=1), model.rises, model.predicted_rises, model.correct], axis=1
        )
        # A target without a stored score has NaN, which differs from every count.
        differs = (stored_counts.astype(float) != counts).any(axis=1)
        to_score |= set(model.target[differs])
    return to_score


def _scores(counted: list[DayCounts], changed: set[pd.Timestamp]) -> pd.DataFrame:
    """Return a row of scores for each target, span, protocol and predictor.

    Each target in `changed` has a score of its night, and each target from the first of them on has
    running scores.
    """
    rows = []
    models = {counts.protocol: counts for counts in counted if counts.predictor == MODEL}
    for predictor in counted:
        rows += _scores_of_predictor(predictor, models[predictor.protocol], changed)
    return pd.DataFrame(rows)


def _scores_of_predictor(
    predictor: DayCounts, model: DayCounts, changed: set[pd.Timestamp]
) -> list[dict[str, Any]]:
    """Return a predictor's rows of scores; running ones of a rule say how far the model is ahead.

    There are running scores of each target from the first in `changed` on, over all targets up to
    it, and scores of single nights of those in `changed`. `model` has the model's counts under the
    same protocol, on all days of the predictor or more.
    """
    model_counts = model.counts[model.target.get_indexer(predictor.target)]
    rows = []
    first = int(predictor.target.searchsorted(min(changed)))
    for position in range(first, len(predictor.target)):
        target = predictor.target[position]
        key = {
            "target": target,
            "protocol": predictor.protocol,
            "predictor": predictor.predictor,
        }
        days_so_far = slice(position + 1)
        running = key | {"span": "running"} | _score_columns(predictor.counts[days_so_far])
        if predictor is not model:
            running |= _gain_over_rule(model_counts[days_so_far], predictor.counts[days_so_far])
        rows.append(running)
        if target in changed:
            night = _score_columns(predictor.counts[position : position + 1])
            rows.append(key | {"span": "night"} | night)
    return rows


def _gain_over_rule(
    model: Int[ndarray, "days 4"], rule: Int[ndarray, "days 4"]
) -> dict[str, float | None]:
    """Return by how much the model's MCC exceeds a rule's on these days, with its interval.

    The result has no keys if nothing of the rule was counted.
    """
    if not rule.any():
        return {}
    only_rule = rule[:, None]  # [days, 1 predictor, 4]
    gain, low, high = gain_in_mcc(model, only_rule)
    return {"model_gain": gain[0], "model_gain_low": low[0], "model_gain_high": high[0]}


def day_counts(
    conn: Connection, tonight: Tonight, last: date, first: date | None = None
) -> list[DayCounts]:
    """Return the counts of the model and of each rule, by target, under each label protocol.

    Only directions of the model that have an outcome count, and a rule is counted on the same
    stock-days; it has no days on which the index has no bar or too short a history. The targets are
    first..last; `first` is by default that of the first night. Without any count, return [].
    """
    stored = stored_outcomes.direction_counts(conn, tonight.context.name, last, first=first)
    if stored.empty:
        return []
    directions = stored.astype({"predicted": bool, "rise": bool, "labelled": bool})
    days = directions[["as_of", "target"]].drop_duplicates(ignore_index=True)
    target = pd.DatetimeIndex(days["target"])
    rules = _newest_rules(tonight, pd.DatetimeIndex(days["as_of"]))
    counted = []
    for protocol in LABEL_PROTOCOLS:
        of_protocol = directions if protocol == "all" else directions[directions["labelled"]]
        counts = _confusion(of_protocol, days["target"])
        counted.append(DayCounts(predictor=MODEL, protocol=protocol, target=target, counts=counts))
        for rule in NAIVE_RULES:
            predicted = rules[rule].to_numpy()  # 1 for a rise of all stocks, 0 for a fall, or NaN
            is_given = np.isfinite(predicted)
            rule_counts = _counts_of_rule(counts[is_given], predicted[is_given] == 1)
            counted.append(
                DayCounts(
                    predictor=rule,
                    protocol=protocol,
                    target=target[is_given],
                    counts=rule_counts,
                )
            )
    return counted


def _newest_rules(tonight: Tonight, days: pd.DatetimeIndex) -> pd.DataFrame:
    market = tonight.context.market
    first = rules_read_from(market.calendar, days.min().date())
    index = market.index.symbol
    bars = tonight.newest(first, days.max().date(), symbols=[index])
    return directions_on(days, bars, index)


def _confusion(
    directions: pd.DataFrame, target: "pd.Series[pd.Timestamp]"
) -> Int[ndarray, "days 4"]:
    """Return the confusion matrix of each target, its cells in the order of `DayCounts`.

    `directions` has the number `n` of stock-days by `target`, and by whether they were `predicted`
    to rise and did `rise`. A target of which nothing was counted has zeros.
    """
    # 0 true rises, 1 false rises, 2 false falls, 3 true falls.
    cell = 2 * (~directions["predicted"]) + (~directions["rise"])
    cells = directions.assign(cell=cell).pivot_table("n", "target", "cell", "sum", fill_value=0)
    every_cell = cells.reindex(index=target, columns=range(4), fill_value=0)
    return every_cell.to_numpy(np.int64)


def _counts_of_rule(counts: Int[ndarray, "days 4"], is_rise: ndarray) -> Int[ndarray, "days 4"]:
    """Return what the model's `counts` would be if a rule had predicted the same stock-days.

    A rule gives all stocks of a day one direction: a rise where `is_rise`, [days], else a fall.
    """
    # [days, predicted (rise, fall), outcome (rise, fall)], summed over what was predicted.
    rises_and_falls = counts.reshape(-1, 2, 2).sum(axis=1)
    is_rise_of_all = is_rise[:, None]  # [days 1]
    return np.concatenate(
        [rises_and_falls * is_rise_of_all, rises_and_falls * ~is_rise_of_all], axis=1
    )


def _score_columns(counts: Int[ndarray, "days 4"]) -> dict[str, float | int | None]:
    true_rises, false_rises, false_falls, _ = counts.sum(axis=0)
    sizes = {
        "n": int(counts.sum()),
        "nights": int(counts.any(axis=1).sum()),
        "rises": int(true_rises + false_falls),
        "predicted_rises": int(true_rises + false_rises),
    }
    if not counts.any():
        return sizes | dict.fromkeys(FIGURES)
    score = score_days(counts)
    values = (score.acc, *score.acc_interval, score.mcc, *score.mcc_interval)
    return sizes | dict(zip(FIGURES, values, strict=True))


def rule_directions(tonight: Tonight) -> pd.DataFrame:
    """Return each naive rule's direction for the session after the night's, from what it knew.

    Rows are those of `rule_direction`.
    """
    market = tonight.context.market
    as_of = tonight.as_of
    bars, _ = tonight.known(rules_read_from(market.calendar, as_of))
    predicted = directions_on(pd.DatetimeIndex([as_of]), bars, market.index.symbol)
    target = pd.DatetimeIndex([next_session(market.calendar, as_of)])
    return dated_directions(predicted, target)


def dated_directions(predicted: pd.DataFrame, target: pd.DatetimeIndex) -> pd.DataFrame:
    """Return the directions that rules `predicted` as rows of the table `rule_direction`.

    `predicted` has a row for each `as_of`, in the order of `target`, and a column for each rule: 1
    for a rise, 0 for a fall, or NaN. Columns of the result: as_of, target, and one for each rule
    (True, False or None).
    """
    directions = {}
    for rule in predicted:
        directions[rule] = [None if np.isnan(rise) else bool(rise) for rise in predicted[rule]]
    rows = pd.DataFrame({"as_of": predicted.index, "target": target} | directions)
    # With the type `object`, None stays None, whatever type pandas chose for a column.
    return rows.astype(dict.fromkeys(directions, object))


def outcome_rows(
    symbol: "pd.Index[str] | pd.Series[str]",
    session: "pd.DatetimeIndex | pd.Series[Any]",
    change: Float[ndarray, " rows"],
) -> pd.DataFrame:
    """Return the outcomes of stock-days as rows of the table `outcome`.

    `change` is the return of each, a ratio minus 1. `rise` says whether it is above 0, and `label`
    is that of the published experiment. A return that is not known (NaN) gives a row too, whose
    `rise` says nothing (False): the caller leaves out such stock-days before or after.
    """
    labels = published_labels(change)
    return pd.DataFrame(
        {
            "symbol": symbol,
            "session": session,
            "realised_return": change,
            "rise": change > 0,
            "label": labels,
        }
    )


def save_counts(conn: Connection, settled: pd.DataFrame, bands: pd.DataFrame) -> None:
    """Count and store, by target, what came of predictions in each bin and each band.

    Bins are those of the probability, bands those of abstention. `settled` has `run_id, target,
    probability, calibrated, rise`, and `bands` has `run_id, level, threshold`; a prediction without
    a calibrated probability is in no band.
    """
    for run_id, predictions in settled.groupby("run_id"):
        calibration.save_bins(conn, count_bins(predictions).assign(run_id=run_id))
        calibration.save_band_counts(conn, count_band(predictions, bands).assign(run_id=run_id))
