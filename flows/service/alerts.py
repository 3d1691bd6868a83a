"""What somebody should know of a night: kept once in the store, told to Prefect, sent to a webhook."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import reading, transaction
from db.rows import alerts as stored_alerts
from db.rows import nights
from db.rows import scores as stored_scores
from dtml.baselines.naive_rules import beside_rules
from dtml.markets import Market
from dtml.pages.figures import with_interval
from flows.service.schedules import DELAY
from flows.service.status import Standing, late_message, standing_of, waiting_alerts
from flows.service.webhook import UndeliveredError, find_webhook, in_flow

log = logging.getLogger(__name__)

Kind = Literal["refused", "late", "below_rule"]

SENDING_S = 10  # after this, no further alert is sent: the rest waits for the next time


@dataclass(frozen=True)
class Alert:
    """Something to know of one night of a market."""

    market: str
    as_of: date
    kind: Kind
    message: str


def after_night(engine: Engine, market: str, as_of: date) -> None:
    """Raise and send what a night that has ended calls for; whatever fails here is a warning, never the night's end."""
    try:
        with reading(engine) as conn:
            found = list(_of_night(conn, market, as_of))
        tell(engine, found)
    except Exception as error:  # noqa: BLE001 - news of a night is not worth the night
        log.warning("alerts of %s, night of %s, not raised: %s", market, as_of, error)


def watch_markets(
    engine: Engine, markets: Mapping[str, Market | None], now: datetime | None = None, delay: timedelta = DELAY
) -> list[Standing]:
    """Look at how each market stands, raise what is late or was refused, and send what waits; gives how they stand.

    `markets` maps each name to its definition, None for one that is not known: it cannot be told to be late.
    """
    now = now or datetime.now(UTC)
    found = [standing_of(engine, name, market, now, delay) for name, market in markets.items()]
    tell(engine, [alert for each in found for alert in _of_standing(each)])
    return found


def tell(engine: Engine, alerts: Iterable[Alert]) -> list[Alert]:
    """Keep each alert once, emit those that are new as events of Prefect, and send all that wait; gives the new ones.

    Raises StoreError when they cannot be kept.
    """
    now = datetime.now(UTC)
    new = _keep(engine, list(alerts), now)
    for each in new:
        # What was refused or is late, the command says itself.
        log.log(logging.WARNING if each.kind == "below_rule" else logging.INFO, "%s: %s", each.market, each.message)
        _emit(each)
    send_waiting(engine, now)
    return new


def send_waiting(engine: Engine, now: datetime) -> None:
    """Send every alert of the last days that no webhook has taken yet, oldest first; without a webhook they stay."""
    with reading(engine) as conn:
        waiting = waiting_alerts(conn, now)
    post = None if waiting.empty else find_webhook()
    if post is None:
        return
    until = time.monotonic() + SENDING_S
    for each in waiting.to_dict("records"):
        market, as_of, kind = str(each["market"]), each["as_of"].date(), str(each["kind"])
        try:
            post({"market": market, "as_of": str(as_of), "kind": kind, "message": str(each["message"])})
        except UndeliveredError as error:
            log.warning("an alert of %s was not delivered: %s; it is kept and tried again", market, error)
        else:
            with transaction(engine) as conn:
                stored_alerts.mark_sent(conn, market, as_of, kind, sent_at=datetime.now(UTC))
        if time.monotonic() > until:
            break


def _keep(engine: Engine, alerts: Sequence[Alert], now: datetime) -> list[Alert]:
    """Store these alerts; gives those that were not there."""
    if not alerts:
        return []
    with transaction(engine) as conn:
        return [
            each
            for each in alerts
            if stored_alerts.raise_alert(conn, each.market, each.as_of, each.kind, message=each.message, raised_at=now)
        ]


def _of_night(conn: Connection, market: str, as_of: date) -> Iterable[Alert]:
    row = nights.night(conn, market, as_of)
    if row is not None and row["status"] == "refused":
        yield Alert(market, as_of, "refused", f"night of {as_of} refused: {row['reason']}")
    elif row is not None and row["status"] in nights.COMPLETE:
        scores = stored_scores.running_scores(conn, market, targets=2, last=as_of)
        said = _fell_below(scores, pd.Timestamp(as_of))
        if said is not None:
            yield Alert(market, as_of, "below_rule", said)


def _of_standing(found: Standing) -> Iterable[Alert]:
    if found.outcome == "refused" and found.as_of is not None:
        yield Alert(found.market, found.as_of, "refused", f"night of {found.as_of} refused: {found.reason}")
    is_told = found.due is not None and found.outcome == "refused" and found.as_of == found.due.as_of
    if found.is_late and found.due is not None and not is_told:
        yield Alert(found.market, found.due.as_of, "late", late_message(found))


def _fell_below(scores: pd.DataFrame, target: pd.Timestamp) -> str | None:
    """Say by which rule the model came to be beaten with the scores of a target; None when it was so before, or is not.

    Beaten is a model whose whole interval of the running MCC lies below a rule's whole interval. The rule's figure
    alone would not do: the best of three is lucky, and it is looked at every night. Of made markets in which nothing
    can be known, 9 in 10 would be told within a year that a rule's figure lies above their interval; 2 in 10 are told
    that the intervals lie apart. ACC is left out: where most days rise, it rewards a model for not looking.
    """
    earlier = scores[scores["target"] < target]
    if _beaten(earlier) is not None:
        return None
    return _beaten(scores[scores["target"] == target])


def _beaten(scores: pd.DataFrame) -> str | None:
    pair = beside_rules(scores)
    if pair is None:
        return None
    model, rules = pair
    better = rules[rules["mcc_low"] > model["mcc_high"]].sort_values("mcc_low")
    if better.empty:
        return None
    best = better.iloc[-1]
    mine, rule = (with_interval(dict(each), "mcc") for each in (model, best))
    return f"running MCC {mine} over {model['nights']} nights lies below that of the rule {best['predictor']}, {rule}"


def _emit(alert: Alert) -> None:
    """Tell Prefect, inside a flow: an automation can act on it."""
    if not in_flow():
        return
    from prefect.events import emit_event

    emit_event(
        event=f"dtml.night.{alert.kind}",
        resource={"prefect.resource.id": f"dtml.market.{alert.market}", "prefect.resource.name": alert.market},
        payload={
            "market": alert.market,
            "as_of": str(alert.as_of),
            "kind": alert.kind,
            "message": alert.message,
        },
    )
