"""Score past predictions against what happened, beside the naive rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray
from sqlalchemy import Connection

from db.engine import transaction
from db.rows import calibration, prices
from db.rows import outcomes as stored_outcomes
from db.rows import scores as stored_scores
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES, directions_on, rules_read_from
from dtml.evaluation.calibration import count_band, count_bins
from dtml.evaluation.metrics import gain_in_mcc, score_days
from dtml.markets.definition import LABEL_PROTOCOLS, LabelProtocol
from dtml.prices.returns import paper_labels, returns_of
from dtml.prices.sessions import next_session, sessions_up_to
from flows.nightly.context import MarketContext
from flows.nightly.fetch import OVERLAP
from flows.nightly.order import score_orders

FIGURES = ("acc", "acc_low", "acc_high", "mcc", "mcc_low", "mcc_high")
LATEST_OUTCOME = 250  # sessions for which a missing bar is waited for


@dataclass(frozen=True)
class Scored:
    """Hold what scoring changed, and how many predictions of closed sessions
    lack an outcome for want of a bar.
    """

    outcomes: int
    nights: list[date]
    unresolved: int


@dataclass(frozen=True)
class DayCounts:
    """Hold a predictor's counts of each target: true rises, false rises, false
    falls, true falls.
    """

    predictor: str
    protocol: LabelProtocol
    target: pd.DatetimeIndex
    counts: Int[ndarray, "days 4"]


def score_market(context: MarketContext, as_of: date) -> Scored:
    """Record what became of the predictions, and score each night whose outcomes are new or were
    restated.

    Outcomes and scores are stored in one transaction, with new running scores of every later night.
    """
    now = datetime.now(UTC)
    restatable, awaited = (
        sessions_up_to(context.market.calendar, as_of, n)[0] for n in (OVERLAP, LATEST_OUTCOME)
    )
    with transaction(context.engine) as conn:
        span = awaited.date(), as_of
        made = stored_outcomes.unsettled_directions(
            conn, context.name, *span, since=restatable.date()
        )
        outcomes, known_at = _changed_outcomes(conn, context, made, as_of)
        record_outcomes(conn, context, outcomes, known_at=known_at, recorded_at=now)
        nights = sorted(day.date() for day in outcomes["session"].unique())
        score_orders(conn, context, as_of, nights)
    unresolved = int(made["realised_return"].isna().sum()) - int(outcomes["is_new"].sum())
    return Scored(len(outcomes), nights, unresolved)


def record_outcomes(
    conn: Connection,
    context: MarketContext,
    outcomes: pd.DataFrame,
    *,
    known_at: datetime,
    recorded_at: datetime,
) -> None:
    """Store outcomes (`outcome_rows`), and score again each night whose score is not of its
    outcomes.

    Whoever stores outcomes does it this way: nights, backtests and benchmarks share them. A night
    may be run after
    later ones: their running scores then count it too.
    """
    stored_outcomes.save_outcomes(
        conn, context.name, outcomes, known_at=known_at, recorded_at=recorded_at
    )
    sessions = [day.date() for day in pd.DatetimeIndex(outcomes["session"]).unique()]
    days = stored_outcomes.unscored(conn, context.name, sessions)
    counted = day_counts(conn, context, days[-1], days[0]) if days else []
    stored = stored_scores.scores(conn, context.name, span="night")
    if changed := _out_of_step(counted, stored):
        every = list(_whole(counted, stored))
        stored_scores.save_scores(
            conn, context.name, _scores(every, changed), scored_at=recorded_at
        )
    _count_directions(conn, context, date.max, {day.date() for day in changed})


def _whole(counted: Sequence[DayCounts], stored: pd.DataFrame) -> Iterator[DayCounts]:
    """Yield counts of every day: those counted now, and for the others those
    that their scores were made of.
    """
    for each in counted:
        mine = stored[
            (stored["predictor"] == each.predictor) & (stored["protocol"] == each.protocol)
        ]
        mine = mine[~mine["target"].isin(each.target)]
        n, rises, called = (
            mine[name].to_numpy(np.int64) for name in ("n", "rises", "predicted_rises")
        )
        correct = (mine["acc"].fillna(0) * n).round().to_numpy(np.int64)
        true_rises = (correct + rises + called - n) // 2
        cells = [true_rises, called - true_rises, rises - true_rises, correct - true_rises]
        target = pd.DatetimeIndex([*mine["target"], *each.target])
        order = target.argsort()
        counts = np.concatenate([np.stack(cells, axis=1), each.counts])
        yield DayCounts(each.predictor, each.protocol, target[order], counts[order])


def _out_of_step(counted: list[DayCounts], scores: pd.DataFrame) -> set[pd.Timestamp]:
    """Return the targets whose counts of the model are not those of its stored score."""
    stored = scores[scores["predictor"] == MODEL].set_index(["protocol", "target"])
    found = set()
    for each in counted:
        if each.predictor == MODEL:
            score = stored.reindex(pd.MultiIndex.from_product([[each.protocol], each.target]))
            correct = (score["acc"].fillna(0) * score["n"]).round()
            kept = np.stack([score["n"], score["rises"], score["predicted_rises"], correct], axis=1)
            of = each.counts
            own = np.stack(
                [of.sum(axis=1), of[:, 0] + of[:, 2], of[:, 0] + of[:, 1], of[:, 0] + of[:, 3]],
                axis=1,
            )
            found |= set(each.target[(kept.astype(float) != own).any(axis=1)])
    return found


def _count_directions(
    conn: Connection, context: MarketContext, as_of: date, changed: set[date]
) -> None:
    """Count what came of the directions of nights that changed, and of those
    whose outcomes a benchmark had stored.
    """
    days = sorted(changed.union(stored_outcomes.uncounted(conn, context.name, as_of)))
    if days:
        settled = stored_outcomes.settled_directions(conn, context.name, days[0], days[-1])
        settled = settled[settled["target"].isin(pd.DatetimeIndex(days))]
        save_counts(conn, settled, calibration.bands_of(conn, settled["run_id"].unique().tolist()))


def _changed_outcomes(
    conn: Connection, context: MarketContext, made: pd.DataFrame, as_of: date
) -> tuple[pd.DataFrame, datetime]:
    """Return returns that are new, or changed by restated bars of the last
    sessions, and their watermark.
    """
    # Rows are `symbol, session, realised_return, rise, label, is_new`; a stock has none without a
    # good bar on both sessions.
    first = as_of if made.empty else made["as_of"].min().date()
    stocks = made["symbol"].unique().tolist()
    bars = prices.prices(conn, context.name, first, as_of, symbols=stocks)
    change = returns_of(made, bars, context.market.returns)
    change[np.abs(change) > context.market.checks.max_return] = (
        np.nan
    )  # a recorded split, and no return
    changed = np.isfinite(change) & ~np.isclose(
        change, made["realised_return"], rtol=1e-9, atol=1e-12
    )
    found = outcome_rows(made["symbol"], made["target"], change).assign(
        is_new=made["realised_return"].isna()
    )
    return found[changed], bars["known_at"].max().to_pydatetime() if len(bars) else datetime.now(
        UTC
    )


def _scores(counted: list[DayCounts], changed: set[pd.Timestamp]) -> pd.DataFrame:
    """Return one row a night, span, protocol and predictor: changed nights, and
    the running scores from then on.
    """
    rows = []
    models = {each.protocol: each for each in counted if each.predictor == MODEL}
    for each in counted:
        model = models[each.protocol]
        own = model.counts[model.target.get_indexer(each.target)]
        for position in range(int(each.target.searchsorted(min(changed))), len(each.target)):
            key = {
                "target": each.target[position],
                "protocol": each.protocol,
                "predictor": each.predictor,
            }
            running = slice(position + 1)
            gain = {} if each is model else _gain(own[running], each.counts[running])
            rows.append(key | {"span": "running"} | _columns(each.counts[running]) | gain)
            if each.target[position] in changed:
                rows.append(
                    key | {"span": "night"} | _columns(each.counts[position : position + 1])
                )
    return pd.DataFrame(rows)


def _gain(model: Int[ndarray, "days 4"], rule: Int[ndarray, "days 4"]) -> dict[str, float | None]:
    """Return how far the model is ahead of a rule, missing where nothing was counted."""
    if not rule.any():
        return {}
    gain, low, high = gain_in_mcc(model, rule[:, None])
    return {"model_gain": gain[0], "model_gain_low": low[0], "model_gain_high": high[0]}


def day_counts(
    conn: Connection, context: MarketContext, last: date, first: date | None = None
) -> list[DayCounts]:
    """Count directions with an outcome, targets first..last (None: from the first): the model's and
    each rule's.

    Each is counted on both label protocols. A rule gives no direction until it has enough history
    of the index.
    """
    counts_of_directions = stored_outcomes.direction_counts(conn, context.name, last, first=first)
    if counts_of_directions.empty:
        return []
    counted = counts_of_directions.astype(dict.fromkeys(("predicted", "rise", "labelled"), bool))
    days = counted[["as_of", "target"]].drop_duplicates(ignore_index=True)
    rules = rules_on(conn, context, pd.DatetimeIndex(days["as_of"]))
    found = []
    for protocol in LABEL_PROTOCOLS:
        mine = counted if protocol == "all" else counted[counted["labelled"]]
        cell = 2 * (~mine["predicted"]) + (~mine["rise"])
        cells = mine.assign(cell=cell).pivot_table("n", "target", "cell", "sum", fill_value=0)
        counts = cells.reindex(index=days["target"], columns=range(4), fill_value=0).to_numpy(
            np.int64
        )
        target = pd.DatetimeIndex(days["target"])
        found.append(DayCounts(MODEL, protocol, target, counts))
        for rule in NAIVE_RULES:
            predicted = rules[rule].to_numpy()
            there = np.isfinite(predicted)
            found.append(
                DayCounts(
                    rule,
                    protocol,
                    target[there],
                    _all_predicted(counts[there], predicted[there] == 1),
                )
            )
    return found


def _all_predicted(counts: Int[ndarray, "days 4"], up: ndarray) -> Int[ndarray, "days 4"]:
    """Return the counts of one direction for all of a day's stocks: a rise
    where it is `up`, else a fall.
    """
    both = counts.reshape(-1, 2, 2).sum(axis=1)  # rises and falls
    return np.concatenate([both * up[:, None], both * ~up[:, None]], axis=1)


def _columns(counts: Int[ndarray, "days 4"]) -> dict[str, float | int | None]:
    """Return the score as the table has it, missing where nothing was counted."""
    counted = {
        "n": int(counts.sum()),
        "nights": int(counts.any(axis=1).sum()),
        "rises": int(counts[:, [0, 2]].sum()),
    }
    counted |= {"predicted_rises": int(counts[:, [0, 1]].sum())}
    if not counts.any():
        return counted | dict.fromkeys(FIGURES)
    found = score_days(counts)
    values = (found.acc, *found.acc_interval, found.mcc, *found.mcc_interval)
    return counted | dict(zip(FIGURES, values, strict=True))


def rules_on(
    conn: Connection,
    context: MarketContext,
    days: pd.DatetimeIndex,
    known_at: datetime | None = None,
) -> pd.DataFrame:
    """Return what each naive rule predicts after each of `days`, from the index as known at a
    moment (None: now).

    A row a day, in their order; a column a rule.
    """
    first, index = (
        rules_read_from(context.market.calendar, days.min().date()),
        context.market.index.symbol,
    )
    bars = prices.prices(
        conn, context.name, first, days.max().date(), known_at=known_at, symbols=[index]
    )
    return directions_on(days, bars, index)


def rule_directions(
    conn: Connection, context: MarketContext, as_of: date, known_at: datetime | None = None
) -> pd.DataFrame:
    """Return each naive rule's direction for the session after `as_of`, as rows of
    `rule_direction`; see `rules_on`.
    """
    said = rules_on(conn, context, pd.DatetimeIndex([as_of]), known_at)
    return dated_directions(said, pd.DatetimeIndex([next_session(context.market.calendar, as_of)]))


def dated_directions(predicted: pd.DataFrame, target: pd.DatetimeIndex) -> pd.DataFrame:
    """Return rules' directions as rows of `rule_direction`: as_of, target, a
    column a rule (True, False or missing).
    """
    said = {
        rule: [None if np.isnan(each) else bool(each) for each in predicted[rule]]
        for rule in predicted
    }
    return pd.DataFrame({"as_of": predicted.index, "target": target} | said).astype(
        dict.fromkeys(said, object)
    )


def outcome_rows(
    symbol: "pd.Index[str] | pd.Series[str]",
    session: "pd.DatetimeIndex | pd.Series[Any]",
    change: Float[ndarray, " rows"],
) -> pd.DataFrame:
    """Return what became of stock-days as rows of `outcome`, from their returns: ratios minus 1."""
    labels = paper_labels(change)
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
    """Store, night by night, what came of predictions: `run_id, target, probability, calibrated,
    rise`.

    `bands` has `run_id, level, threshold`; a prediction without a calibrated probability is in no
    band.
    """
    for run_id, mine in settled.groupby("run_id"):
        calibration.save_bins(conn, count_bins(mine).assign(run_id=run_id))
        calibration.save_band_counts(conn, count_band(mine, bands).assign(run_id=run_id))
