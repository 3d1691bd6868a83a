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
from db.read import query, read
from db.save import save
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES, directions_on, rules_read_from
from dtml.evaluation.calibration import count_band, count_bins
from dtml.evaluation.metrics import RESAMPLES, accuracy, estimate, gain_in_mcc, mcc
from dtml.markets.definition import LABEL_PROTOCOLS
from dtml.prices.returns import published_labels, returns_of
from dtml.prices.sessions import next_session, sessions_up_to
from flows.night_facts import CELLS, KEY, stored_counts
from flows.nightly.context import Tonight
from flows.nightly.fetch import OVERLAP
from flows.nightly.ranking import AWAITED, score_rankings


@dataclass(frozen=True)
class Scored:
    """What scoring changed.

    `outcomes` counts the new or restated outcomes, and `nights` are their sessions. `unresolved`
    counts the stocks of closed sessions without an outcome that is still awaited (`AWAITED`).
    """

    outcomes: int
    nights: list[date]
    unresolved: int


def score(tonight: Tonight) -> Scored:
    """Record what became of the predictions, and score nights with new or restated outcomes.

    In one transaction, with the running scores of later nights and perhaps another champion.
    """
    now = datetime.now(UTC)
    context = tonight.context
    as_of = tonight.as_of
    calendar = context.market.calendar
    # A night fetches the last `OVERLAP` sessions again, so their outcomes may still change.
    first_restatable = sessions_up_to(calendar, as_of, OVERLAP)[0].date()
    first_awaited = sessions_up_to(calendar, as_of, AWAITED)[0].date()
    with transaction(context.engine) as conn:
        predicted = query(
            conn,
            "unsettled",
            market=context.name,
            first=first_awaited,
            last=as_of,
            since=first_restatable,
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

    A backtest or benchmark may have stored a night's outcomes before it ran, so a night with
    outcomes but no score is scored too. The running scores of later nights are updated.
    """
    context = tonight.context
    save(conn, "outcome", outcomes, market=context.name, known_at=known_at, recorded_at=recorded_at)
    sessions = [day.date() for day in pd.DatetimeIndex(outcomes["session"]).unique()]
    unfinished = query(conn, "unfinished", market=context.name)
    unscored = unfinished.loc[unfinished["scored"] == 0, "target"].dt.date
    days_to_count = sorted({*sessions, *unscored})
    changed: set[pd.Timestamp] = set()
    if days_to_count:
        counted = day_counts(conn, tonight, last=days_to_count[-1], first=days_to_count[0])
        stored = stored_counts(read(conn, "score", market=context.name, span="night"))
        # The rules are counted on the same stock-days: that a restated index turns the direction of
        # a rule is not noticed.
        of_model = counted[counted.index.get_level_values("predictor") == MODEL]
        is_changed = (of_model != stored.reindex(of_model.index)).any(axis=1)
        changed = set(of_model.index[is_changed].get_level_values("target"))
        if changed:
            other_days = stored[~stored.index.isin(counted.index)]
            scores = _scores(pd.concat([counted, other_days]).sort_index(), changed)
            save(conn, "score", scores, market=context.name, scored_at=recorded_at)
    never_counted = unfinished.loc[unfinished["counted"] == 0, "target"].dt.date
    days = sorted({day.date() for day in changed}.union(never_counted))
    if not days:
        return
    settled = query(conn, "settled_directions", market=context.name, first=days[0], last=days[-1])
    settled = settled[settled["target"].isin(pd.DatetimeIndex(days))]
    save_counts(conn, settled)


def _scores(counts: pd.DataFrame, changed: set[pd.Timestamp]) -> pd.DataFrame:
    """Return scores of the nights in `changed`, and running ones from the first of them on.

    They are rows of `score`. A rule's say how far the model is ahead on the days of the rule.
    """
    rows = []
    for (protocol, predictor), of_predictor in counts.groupby(["protocol", "predictor"]):
        targets = of_predictor.index.get_level_values("target")
        cells = of_predictor.to_numpy()
        of_model = counts.xs((protocol, MODEL)).loc[targets].to_numpy()
        for position in range(int(targets.searchsorted(min(changed))), len(targets)):
            target = targets[position]
            key = {"target": target, "protocol": protocol, "predictor": predictor}
            so_far = cells[: position + 1]
            running = key | {"span": "running"} | _score_columns(so_far)
            if predictor != MODEL and so_far.any():
                gains = gain_in_mcc(of_model[: position + 1], so_far[:, None], RESAMPLES)
                running |= {name: values[0] for name, values in gains.items()}
            rows.append(running)
            if target in changed:
                rows.append(key | {"span": "night"} | _score_columns(cells[[position]]))
    return pd.DataFrame(rows)


def day_counts(
    conn: Connection, tonight: Tonight, last: date, first: date = date.min
) -> pd.DataFrame:
    """Return the confusion matrix of the model and each rule for targets first..last: KEY, CELLS.

    Directions with an outcome count, rules on the same stock-days.
    """
    stored = query(conn, "direction_counts", market=tonight.context.name, first=first, last=last)
    directions = stored.astype({"predicted": bool, "rise": bool, "labelled": bool})
    # 0 true rises, 1 false rises, 2 false falls, 3 true falls.
    directions["cell"] = 2 * (~directions["predicted"]) + (~directions["rise"])
    days = directions[["as_of", "target"]].drop_duplicates(ignore_index=True)
    if days.empty:
        return pd.DataFrame(columns=[*KEY, *CELLS]).set_index(KEY)
    market = tonight.context.market
    index = market.index.symbol
    begin = rules_read_from(market.calendar, days["as_of"].min().date())
    bars = tonight.newest(begin, days["as_of"].max().date(), symbols=[index])
    rules = directions_on(pd.DatetimeIndex(days["as_of"]), bars, index)
    parts = []
    for protocol in LABEL_PROTOCOLS:
        of_protocol = directions if protocol == "all" else directions[directions["labelled"]]
        counts = of_protocol.pivot_table("n", "target", "cell", "sum", fill_value=0)
        counts = counts.reindex(index=days["target"], columns=range(4), fill_value=0)
        counts = counts.set_axis(CELLS, axis=1).astype(int)
        parts.append(counts.assign(protocol=protocol, predictor=MODEL))
        rises = counts["true_rises"] + counts["false_falls"]
        falls = counts["false_rises"] + counts["true_falls"]
        for rule in NAIVE_RULES:
            predicted = rules[rule].to_numpy()  # 1 for a rise of all stocks, 0 for a fall, or NaN
            is_rise = (predicted == 1).astype(int)
            cells = (rises * is_rise, falls * is_rise, rises * (1 - is_rise), falls * (1 - is_rise))
            of_rule = pd.DataFrame(dict(zip(CELLS, cells, strict=True)))[np.isfinite(predicted)]
            parts.append(of_rule.assign(protocol=protocol, predictor=rule))
    return pd.concat(parts).rename_axis("target").reset_index().set_index(KEY)


def _score_columns(counts: Int[ndarray, "days 4"]) -> dict[str, float | int]:
    true_rises, false_rises, false_falls, _ = counts.sum(axis=0)
    counts = counts[counts.any(axis=1)]
    return {
        "n": int(counts.sum()),
        "nights": len(counts),
        "rises": int(true_rises + false_falls),
        "predicted_rises": int(true_rises + false_rises),
        **estimate(counts, accuracy).named("acc"),
        **estimate(counts, mcc).named("mcc"),
    }


def rule_directions(tonight: Tonight) -> pd.DataFrame:
    """Return rows of `rule_direction` for the session after the night's, from what it knew."""
    market = tonight.context.market
    as_of = tonight.as_of
    bars, _ = tonight.known(rules_read_from(market.calendar, as_of))
    predicted = directions_on(pd.DatetimeIndex([as_of]), bars, market.index.symbol)
    target = pd.DatetimeIndex([next_session(market.calendar, as_of)])
    return dated_directions(predicted, target)


def dated_directions(predicted: pd.DataFrame, target: pd.DatetimeIndex) -> pd.DataFrame:
    """Return rules' directions as rows of `rule_direction`.

    `predicted`: a row for each `as_of`, in the order of `target`; 1 a rise, 0 a fall, NaN none.
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
    """Return rows of `outcome`: `change` is the return, `label` that of the published experiment.

    A NaN gives a row too, whose `rise` is False: the caller leaves it out.
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


def save_counts(conn: Connection, settled: pd.DataFrame) -> None:
    """Count and store, by target, what came of predictions in each bin and each abstention band.

    `settled`: `run_id, target, probability, calibrated, rise`; without a calibrated one, no band.
    """
    bands = read(conn, "abstention_band", run_id=settled["run_id"].unique().tolist())
    for run_id, predictions in settled.groupby("run_id"):
        save(conn, "calibration_bin", count_bins(predictions).assign(run_id=run_id))
        save(conn, "abstention_count", count_band(predictions, bands).assign(run_id=run_id))
