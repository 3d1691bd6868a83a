"""Hold every past prediction against what happened, beside the naive rules."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd

from db import queries, repositories
from db.engine import reading, transaction
from dtml.baselines import NAIVE_RULES, RULE_HISTORY, naive_calls
from dtml.metrics import Score, score
from dtml.sessions import sessions_up_to
from dtml.windows import FALL, RISE, adjusted_price
from flows.desk import Desk

PROTOCOLS = ("paper", "all")


@dataclass(frozen=True)
class Scored:
    """What scoring added."""

    outcomes: int
    nights: list[date]


def score_market(desk: Desk, as_of: date) -> Scored:
    """Record the outcome of every prediction whose session has closed, and score its night and all nights up to it."""
    now = datetime.now(UTC)
    outcomes, known_at = _new_outcomes(desk, as_of)
    if outcomes.empty:
        return Scored(0, [])
    with transaction(desk.engine) as conn:
        added = repositories.save_outcomes(conn, desk.name, outcomes, known_at=known_at, recorded_at=now)
    nights = sorted(day.date() for day in outcomes["session"].unique())
    scores = _scores(desk, nights)
    with transaction(desk.engine) as conn:
        repositories.save_scores(conn, desk.name, scores, scored_at=now)
    return Scored(added, nights)


def _new_outcomes(desk: Desk, as_of: date) -> tuple[pd.DataFrame, datetime]:
    """Moves of predicted stock-days that have none yet, and the watermark of the prices they come from.

    Rows are `symbol, session, move, rise, label`; a stock without a bar on either session has none.
    """
    with reading(desk.engine) as conn:
        waiting = queries.predictions_without_outcome(conn, desk.name)
        waiting = waiting.loc[waiting["target"] <= pd.Timestamp(as_of), ["symbol", "as_of", "target"]].drop_duplicates()
        if waiting.empty:
            return waiting, datetime.now(UTC)
        bars = queries.prices(conn, desk.name, waiting["as_of"].min().date(), as_of)
    bars["price"] = adjusted_price(bars, desk.market.returns)
    closes = bars.set_index(["symbol", "session"])["price"]
    before, after = (
        closes.reindex(pd.MultiIndex.from_frame(waiting[["symbol", day]])).to_numpy() for day in ("as_of", "target")
    )
    moves = waiting.rename(columns={"target": "session"}).assign(move=after / before - 1)
    moves = moves[moves["move"].abs() <= desk.market.checks.max_move]
    label = np.select([moves["move"] >= RISE, moves["move"] <= FALL], [1, -1], default=0)
    return moves.assign(rise=moves["move"] > 0, label=label).drop(columns="as_of"), bars[
        "known_at"
    ].max().to_pydatetime()


def _scores(desk: Desk, nights: list[date]) -> pd.DataFrame:
    """One row a night, span, protocol and predictor."""
    calls = scored_calls(desk, max(nights))
    rows = []
    for (predictor, night), protocol in [
        ((predictor, night), protocol)
        for predictor in calls["predictor"].unique()
        for night in nights
        for protocol in PROTOCOLS
    ]:
        mine = calls[calls["predictor"] == predictor]
        mine = mine if protocol == "all" else mine[mine["label"] != 0]
        for span, chosen in (
            ("night", mine[mine["session"] == pd.Timestamp(night)]),
            ("running", mine[mine["session"] <= pd.Timestamp(night)]),
        ):
            key = {"target": night, "span": span, "protocol": protocol, "predictor": predictor}
            rows.append(key | _columns(chosen))
    return pd.DataFrame(rows)


def scored_calls(desk: Desk, last: date) -> pd.DataFrame:
    """Every scored call up to a session: `session, symbol, predictor, called, rose, label`, naive rules included.

    A night counts with the model it was closed with.
    """
    with reading(desk.engine) as conn:
        made = queries.prediction_history(conn, market=desk.name, last=last)
        nights = queries.nights(conn, desk.name)[["as_of", "run_id"]]
        known = made[made["move"].notna()].merge(nights, on=["as_of", "run_id"])
        if known.empty:
            return pd.DataFrame(columns=["session", "symbol", "predictor", "called", "rose", "label"])
        first = sessions_up_to(desk.market.calendar, known["as_of"].min().date(), 2 * RULE_HISTORY)[0]
        index = queries.prices(conn, desk.name, first.date(), last, symbols=[desk.market.index.symbol])
    rules = naive_calls(index.set_index("session")["close"])
    known = known.rename(columns={"target": "session"}).assign(rose=known["move"] > 0)
    parts = [known.assign(predictor="dtml", called=known["probability"] > 0.5)]
    for rule in NAIVE_RULES:
        call = known["as_of"].map(rules[rule])
        parts.append(known.assign(predictor=rule, called=call == 1)[call.notna()])
    calls = pd.concat(parts, ignore_index=True)
    return calls[["session", "symbol", "predictor", "called", "rose", "label"]]


def _columns(calls: pd.DataFrame) -> dict[str, float | int | None]:
    """The score as the table has it; nothing counted gives missing scores."""
    if calls.empty:
        return {
            "n": 0,
            "nights": 0,
            "rises": 0,
            **dict.fromkeys(("acc", "acc_low", "acc_high", "mcc", "mcc_low", "mcc_high")),
        }
    found: Score = score(calls)
    return {
        "n": found.calls,
        "nights": found.days,
        "rises": int(calls["rose"].sum()),
        "acc": found.acc,
        "acc_low": found.acc_interval[0],
        "acc_high": found.acc_interval[1],
        "mcc": found.mcc,
        "mcc_low": found.mcc_interval[0],
        "mcc_high": found.mcc_interval[1],
    }
