"""Hold every past prediction against what happened, beside the naive rules."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import product

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import queries, repositories
from db.engine import transaction
from dtml.metrics import Score, score
from dtml.rules import NAIVE_RULES, RULE_HISTORY, naive_calls
from dtml.sessions import sessions_up_to
from dtml.windows import adjusted_price, paper_labels
from flows.desk import Desk
from flows.fetch import OVERLAP

PROTOCOLS = ("paper", "all")
LATEST_OUTCOME = 250  # sessions after which a bar that is still missing is no longer waited for


@dataclass(frozen=True)
class Scored:
    """What scoring changed, and how many predictions of closed sessions have no outcome for want of a good bar."""

    outcomes: int
    nights: list[date]
    unresolved: int


def score_market(desk: Desk, as_of: date) -> Scored:
    """Record what became of the predictions, and score each night whose outcomes are new or were restated.

    Outcomes and scores are one transaction. The running scores of every later night are renewed with them.
    """
    now = datetime.now(UTC)
    with transaction(desk.engine) as conn:
        made = _made(conn, desk, as_of)
        outcomes, known_at = _changed_outcomes(conn, desk, made, as_of)
        if not outcomes.empty:
            repositories.save_outcomes(conn, desk.name, outcomes, known_at=known_at, recorded_at=now)
            calls = scored_calls(conn, desk, as_of)
            scores = _scores(calls, set(outcomes["session"]))
            repositories.save_scores(conn, desk.name, scores, scored_at=now)
    nights = sorted(day.date() for day in outcomes["session"].unique())
    unresolved = int(made["move"].isna().sum()) - int(outcomes["is_new"].sum())
    return Scored(len(outcomes), nights, unresolved)


def _made(conn: Connection, desk: Desk, last: date) -> pd.DataFrame:
    """The predictions of closed nights for sessions up to `last`, each night with the model it was closed with."""
    history = queries.prediction_history(conn, market=desk.name, last=last)
    nights = queries.nights(conn, desk.name)[["as_of", "run_id"]]
    return history.merge(nights, on=["as_of", "run_id"])


def _changed_outcomes(conn: Connection, desk: Desk, made: pd.DataFrame, as_of: date) -> tuple[pd.DataFrame, datetime]:
    """Moves that are new, or that restated bars of the last sessions changed, and the watermark of their prices.

    Rows are `symbol, session, move, rise, label, is_new`; a stock without a good bar on either session has none.
    """
    restatable = sessions_up_to(desk.market.calendar, as_of, OVERLAP)[0]
    awaited = sessions_up_to(desk.market.calendar, as_of, LATEST_OUTCOME)[0]
    due = (made["target"] >= restatable) | (made["move"].isna() & (made["target"] >= awaited))
    made = made.loc[due, ["symbol", "as_of", "target", "move"]]
    first = as_of if made.empty else made["as_of"].min().date()
    stocks = made["symbol"].unique().tolist()
    bars = queries.prices(conn, desk.name, first, as_of, symbols=stocks)
    closes = bars.assign(price=adjusted_price(bars, desk.market.returns)).set_index(["symbol", "session"])["price"]
    before, after = (
        closes.reindex(pd.MultiIndex.from_frame(made[["symbol", day]])).to_numpy() for day in ("as_of", "target")
    )
    move = after / before - 1
    changed = np.isfinite(move) & ~np.isclose(move, made["move"], rtol=1e-9, atol=1e-12)
    found = pd.DataFrame(
        {
            "symbol": made["symbol"],
            "session": made["target"],
            "move": move,
            "rise": move > 0,
            "label": paper_labels(move),
            "is_new": made["move"].isna(),
        }
    )[changed]
    return found, bars["known_at"].max().to_pydatetime() if len(bars) else datetime.now(UTC)


def _scores(calls: pd.DataFrame, changed: set[pd.Timestamp]) -> pd.DataFrame:
    """One row a night, span, protocol and predictor: the nights that changed, and the running scores from then on."""
    targets = sorted(target for target in calls["session"].unique() if target >= min(changed))
    rows = []
    for predictor, protocol in product(calls["predictor"].unique(), PROTOCOLS):
        mine = calls[calls["predictor"] == predictor]
        mine = mine if protocol == "all" else mine[mine["label"] != 0]
        for target in targets:
            key = {"target": target, "protocol": protocol, "predictor": predictor}
            rows.append(key | {"span": "running"} | _columns(mine[mine["session"] <= target]))
            if target in changed:
                rows.append(key | {"span": "night"} | _columns(mine[mine["session"] == target]))
    return pd.DataFrame(rows)


def scored_calls(conn: Connection, desk: Desk, last: date) -> pd.DataFrame:
    """Every call with an outcome up to a session: `session, symbol, predictor, called, rose, label`, rules included."""
    made = _made(conn, desk, last)
    known = made[made["move"].notna()]
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
