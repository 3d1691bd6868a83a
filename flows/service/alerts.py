"""Raise alerts of nights: kept once in the store, told to Prefect, sent to the
services that Apprise knows.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import reading, transaction
from db.rows import nights, rankings
from db.rows import scores as stored_scores
from dtml.baselines.naive_rules import beside_rules
from dtml.evaluation.drift import drift_words
from dtml.markets import Market
from dtml.pages.figures import records, with_interval
from dtml.pages.order import promotion_words
from flows.service.schedules import DELAY
from flows.service.status import MarketStatus, late_message, market_status, waiting_alerts

log = logging.getLogger(__name__)

Kind = Literal["refused", "late", "below_rule", "promoted", "drifted"]

VARIABLE = "DTML_ALERTS"
SENDING_S = 10  # after this, the rest of the alerts wait for the next time


@dataclass(frozen=True)
class Alert:
    """Say what to know of one night of a market."""

    market: str
    as_of: date
    kind: Kind
    message: str


def after_night(engine: Engine, market: str, as_of: date) -> None:
    """Raise and send the alerts of a night that has ended; a failure here is a
    warning, never the night's.
    """
    try:
        with reading(engine) as conn:
            found = list(_of_night(conn, market, as_of))
        tell(engine, found)
    except Exception as error:  # noqa: BLE001 - news of a night is not worth the night
        log.warning("alerts of %s, night of %s, not raised: %s", market, as_of, error)


def watch_markets(
    engine: Engine,
    markets: Mapping[str, Market | None],
    now: datetime | None = None,
    delay: timedelta = DELAY,
) -> list[MarketStatus]:
    """Return how each market stands, after raising what is late or refused and sending what waits.

    `markets` maps each name to its definition, or to None if unknown: then it cannot be known to be
    late.
    """
    now = now or datetime.now(UTC)
    found = [market_status(engine, name, market, now, delay) for name, market in markets.items()]
    tell(engine, [alert for each in found for alert in _of_status(each)])
    return found


def tell(engine: Engine, alerts: Iterable[Alert]) -> list[Alert]:
    """Keep each alert once (else StoreError), emit new ones as Prefect events,
    send all that wait; return the new.
    """
    now, new = datetime.now(UTC), []
    if given := list(alerts):
        with transaction(engine) as conn:
            new = [each for each in given if nights.raise_alert(conn, **vars(each), raised_at=now)]
    for each in new:
        # The command itself says what was refused or is late.
        log.log(
            logging.WARNING if each.kind == "below_rule" else logging.INFO,
            "%s: %s",
            each.market,
            each.message,
        )
        _emit(each)
    send_waiting(engine, now)
    return new


def send_waiting(engine: Engine, now: datetime) -> None:
    """Send every alert of the last days that was not taken yet, oldest first;
    without an address they stay.
    """
    with reading(engine) as conn:
        waiting = waiting_alerts(conn, now)
    receivers = None if waiting.empty else find_receivers()
    if receivers is None:
        return
    services = ", ".join(sorted({str(each.service_name) for each in receivers})) or "no service"
    until = time.monotonic() + SENDING_S
    for each in waiting.to_dict("records"):
        market, as_of, kind = str(each["market"]), each["as_of"].date(), str(each["kind"])
        if receivers.notify(title=f"{market} {as_of} {kind}", body=str(each["message"])):
            with transaction(engine) as conn:
                nights.mark_sent(conn, market, as_of, kind, sent_at=datetime.now(UTC))
        else:
            why = "`apprise --body test` with its address says why"
            log.warning(
                "an alert of %s was not taken by %s; it is tried again: %s", market, services, why
            )
        if time.monotonic() > until:
            break


def _of_night(conn: Connection, market: str, as_of: date) -> Iterable[Alert]:
    row = nights.night(conn, market, as_of)
    if row is not None and row["status"] == "refused":
        yield Alert(market, as_of, "refused", f"night of {as_of} refused: {row['reason']}")
    elif row is not None and row["status"] in nights.COMPLETE:
        scores = stored_scores.running_scores(conn, market, targets=2, last=as_of)
        said = _fell_below(scores, pd.Timestamp(as_of))
        if said is not None:
            yield Alert(market, as_of, "below_rule", said)
        champion = rankings.champion(conn, market)
        if champion is not None and champion["replaced"] and champion["since"] > row["target"]:
            yield Alert(market, as_of, "promoted", promotion_words(champion))
        before, _ = nights.neighbours(conn, market, as_of)
        drifted = nights.drift(conn, market, as_of).query("drifted == 1")
        known = nights.drift(conn, market, before).query("drifted == 1") if before else drifted[:0]
        if new := records(drifted[~drifted["measure"].isin(known["measure"])]):
            yield Alert(market, as_of, "drifted", drift_words(new))


def _of_status(found: MarketStatus) -> Iterable[Alert]:
    if found.outcome == "refused" and found.as_of is not None:
        yield Alert(
            found.market, found.as_of, "refused", f"night of {found.as_of} refused: {found.reason}"
        )
    is_told = (
        found.due is not None and found.outcome == "refused" and found.as_of == found.due.as_of
    )
    if found.is_late and found.due is not None and not is_told:
        yield Alert(found.market, found.due.as_of, "late", late_message(found))


def _fell_below(scores: pd.DataFrame, target: pd.Timestamp) -> str | None:
    """Say by which rule the model came to be beaten with a target's scores;
    None if not, or if so before.
    """
    # A model is beaten when its whole interval of the running MCC lies below a rule's whole
    # interval. The rule's figure alone would not do: the best of three rules is lucky, and is
    # checked every night. Of simulated markets without any signal, 9 in 10 would get an alert
    # within a year because a rule's figure lies above their interval; 2 in 10 get one because the
    # intervals lie apart. ACC is left out: where most days rise, it rewards a model for always
    # predicting a rise.
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
    return (
        f"running MCC {mine} over {model['nights']} nights lies below that of the rule "
        f"{best['predictor']}, {rule}"
    )


def _emit(alert: Alert) -> None:
    """Tell Prefect, inside a flow: an automation can act on it."""
    if "prefect" not in sys.modules:  # no flow runs this, and the import would take seconds
        return
    from prefect.context import FlowRunContext
    from prefect.events import emit_event

    if FlowRunContext.get() is not None:
        emit_event(
            event=f"dtml.night.{alert.kind}",
            resource={
                "prefect.resource.id": f"dtml.market.{alert.market}",
                "prefect.resource.name": alert.market,
            },
            payload={
                "market": alert.market,
                "as_of": str(alert.as_of),
                "kind": alert.kind,
                "message": alert.message,
            },
        )


def find_receivers() -> Any:
    """Return the services of DTML_ALERTS as an `apprise.Apprise`, None without any; unknown
    addresses are a warning.

    Redirects are refused: a redirected POST would arrive as a GET without its body, and look
    delivered.
    """
    addresses = os.environ.get(VARIABLE, "").split()
    if not addresses:
        return None
    import apprise

    for library in ("apprise", "urllib3"):  # their lines quote addresses, which may hold a token
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    found = apprise.Apprise(asset=apprise.AppriseAsset(http_redirects=False))
    unknown = sum(not found.add(re.sub("^http", "json", each)) for each in addresses)
    if unknown:
        log.warning(
            "Apprise knows no service of %d addresses in %s: see `apprise --details`",
            unknown,
            VARIABLE,
        )
    return found
