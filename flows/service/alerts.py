"""Raise alerts about nights: each is stored once, emitted by Prefect, and sent to DTML_ALERTS."""

import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

import pandas as pd
from sqlalchemy import Connection, Engine

from db import where
from db.engine import reading, transaction
from db.read import read, read_row
from db.rows import nights, rankings
from db.save import save
from dtml.baselines.naive_rules import beside_rules
from dtml.evaluation.drift import drift_words
from dtml.markets import Market
from dtml.pages.figures import ci, quoted
from dtml.pages.night import promotion_words
from dtml.pages.second_source import comparison_words, difference_words, differences
from flows.night_facts import night_facts
from flows.service.status import MarketStatus, market_status, waiting_alerts

log = logging.getLogger(__name__)

Kind = Literal[
    "refused",
    "late",
    "below_rule",
    "promoted",
    "drifted",
    "calendar",
    "second_source",
]

VARIABLE = "DTML_ALERTS"
SENDING_S = 10  # after this time, the alerts left wait for the next night or check


@dataclass(frozen=True)
class Alert:
    """Hold an alert about a night of a market; the store has one of each kind for each night."""

    market: str
    as_of: date
    kind: Kind
    message: str


def after_night(engine: Engine, market: str, as_of: date) -> None:
    """Raise and send the alerts of a night that has ended; a failure is only a warning."""
    try:
        with reading(engine) as conn:
            alerts = list(_alerts_of_night(conn, market, as_of))
        tell(engine, alerts)
    except Exception as error:  # noqa: BLE001 - a night must not fail for want of an alert
        log.warning(
            "alerts of %s, night of %s, were not raised, but `dtml status` shows how it ended: %s",
            market,
            as_of,
            error,
        )


def watch_markets(
    engine: Engine,
    markets: Mapping[str, Market | None],
    now: datetime | None = None,
) -> list[MarketStatus]:
    """Raise the alerts of each market, send all that wait, and return the statuses.

    A market with nightly runs has an alert if its last night is refused, if the last one due is
    late, and if its calendar ends soon. A market whose definition is None is never late.
    """
    now = now or datetime.now(UTC)
    statuses = [market_status(engine, name, market, now) for name, market in markets.items()]
    tell_of(engine, statuses)
    return statuses


def tell_of(engine: Engine, statuses: Iterable[MarketStatus]) -> None:
    """Raise the alerts of some statuses, as `tell` does."""
    tell(engine, [alert for each in statuses for alert in _alerts_of_status(each)])


def tell(engine: Engine, alerts: Iterable[Alert]) -> list[Alert]:
    """Store each alert once, log and emit new ones, send all that wait; return the new ones."""
    now = datetime.now(UTC)
    all_alerts = list(alerts)
    new_alerts: list[Alert] = []
    if all_alerts:
        with transaction(engine) as conn:
            new_alerts = [
                alert for alert in all_alerts if save(conn, "alert", vars(alert), raised_at=now)
            ]
    for alert in new_alerts:
        # A warning is shown without a terminal too. A rule that beats the model gets one, because
        # nothing else says so; commands print by themselves which night is refused or late.
        level = logging.WARNING if alert.kind == "below_rule" else logging.INFO
        log.log(level, "%s: %s", alert.market, alert.message)
        if "prefect" in sys.modules:
            from prefect.context import FlowRunContext
            from prefect.events import emit_event

            if FlowRunContext.get() is not None:
                emit_event(
                    event=f"dtml.night.{alert.kind}",
                    resource={
                        "prefect.resource.id": f"dtml.market.{alert.market}",
                        "prefect.resource.name": alert.market,
                    },
                    payload=vars(alert) | {"as_of": str(alert.as_of)},
                )
    send_waiting(engine, now)
    return new_alerts


def send_waiting(engine: Engine, now: datetime) -> None:
    """Send the unsent alerts of the last WAITING_DAYS days, oldest first.

    Sent is what all services accept. Those left after SENDING_S seconds wait for the next call.
    """
    with reading(engine) as conn:
        waiting = waiting_alerts(conn, now)
    receivers = None if waiting.empty else find_receivers()
    if receivers is None:
        return
    services = ", ".join(sorted({str(each.service_name) for each in receivers})) or "any service"
    until = time.monotonic() + SENDING_S
    for alert in waiting.to_dict("records"):
        market = str(alert["market"])
        as_of = alert["as_of"].date()
        kind = str(alert["kind"])
        if receivers.notify(title=f"{market} {as_of} {kind}", body=str(alert["message"])):
            with transaction(engine) as conn:
                nights.mark_sent(conn, market, as_of, kind, sent_at=datetime.now(UTC))
        else:
            log.warning(
                "an alert of %s, night of %s, was not accepted by %s and will be sent again; "
                "`apprise --body test ADDRESS` shows why, with json:// for http:// and jsons:// "
                "for https:// in the address",
                market,
                as_of,
                services,
            )
        if time.monotonic() > until:  # after an alert, so that each call tries at least one
            break


def _alerts_of_night(conn: Connection, market: str, as_of: date) -> Iterable[Alert]:
    """Yield the alerts of a night that has ended.

    What is grave in its comparison with a second source; that it was refused, or that a rule has
    begun to beat the model, that another champion was chosen, that measures have begun to drift.
    """
    night = night_facts(conn, market, as_of=as_of)
    if night is None:
        return
    row = night.row
    comparison = _grave_comparison(conn, market, as_of)
    if comparison:
        yield Alert(market, as_of, "second_source", f"second source: {'; '.join(comparison)}")
    if row["status"] == "refused":
        yield Alert(market, as_of, "refused", f"night of {as_of} refused: {row['reason']}")
    elif row["status"] in nights.COMPLETE:
        # The night's own session has the newest outcomes; the others are of the one before.
        scores = night.scores[night.scores["protocol"] == "all"]
        is_own = scores["target"] == pd.Timestamp(as_of)
        message = _message_if_beaten(scores[is_own])
        if _message_if_beaten(scores[~is_own]) is not None:
            message = None
        if message is not None:
            yield Alert(market, as_of, "below_rule", message)
        champion = rankings.champion(conn, market)
        # A night chooses for later sessions than its own target. One that is run after later nights
        # finds a champion that these have chosen.
        if (
            champion is not None
            and champion["replaced"]
            and champion["since"] > row["target"]
            and champion["decided_at"] >= row["started_at"]
        ):
            yield Alert(market, as_of, "promoted", promotion_words(champion))
        if night.new_drift:
            yield Alert(market, as_of, "drifted", drift_words(night.new_drift))


def _grave_comparison(conn: Connection, market: str, as_of: date) -> list[str]:
    """Return what is grave in a night's comparison with a second source; a failure only once."""
    comparison = read_row(conn, "comparison_log", market=market, as_of=as_of)
    if comparison is None:
        return []
    before = read_row(
        conn, "comparison_log", market=market, as_of=where.before(as_of), order="-as_of"
    )
    rows = read(conn, "price_disagreement", market=market, as_of=as_of)
    if before is not None:  # what it found has been said
        key = ["symbol", "session", "field"]
        said = read(conn, "price_disagreement", market=market, as_of=before["as_of"])
        rows = rows[~rows.set_index(key).index.isin(said.set_index(key).index)]
    found = differences(rows, comparison["symbols"])
    sentences = difference_words([row for row in found if row["grave"]])
    if comparison["failure"] and not (before and before["failure"]):
        sentences.insert(0, comparison_words(comparison))
    return sentences


def _alerts_of_status(status: MarketStatus) -> Iterable[Alert]:
    if not status.is_nightly:
        return
    is_refused = status.outcome == "refused"
    if is_refused and status.as_of is not None:
        message = f"night of {status.as_of} refused: {status.reason}"
        yield Alert(status.market, status.as_of, "refused", message)
    is_reported = is_refused and status.due is not None and status.as_of == status.due.as_of
    if status.late_message and status.due and not is_reported:
        yield Alert(status.market, status.due.as_of, "late", status.late_message)
    if status.calendar_ends and status.note:
        yield Alert(status.market, status.calendar_ends, "calendar", status.note)


def _message_if_beaten(scores: pd.DataFrame) -> str | None:
    """Return the message that a rule beats the model at one session's scores; None if none does.

    The whole interval of the running MCC must lie below that of a rule: the best of three rules,
    looked for every night, is often best by luck. Without any signal, 2 in 10 models get an alert
    within a year; if the rule's figure decided, 9 in 10. ACC rewards always predicting a rise.
    """
    pair = beside_rules(scores)
    if pair is None:
        return None
    model, rules = pair
    better = rules[rules["mcc_low"] > model["mcc_high"]].sort_values("mcc_low")
    if better.empty:
        return None
    best_rule = better.iloc[-1]
    return (
        f"running MCC {ci(dict(model), 'mcc')} over {model['nights']} nights "
        f"is below that of the rule {quoted(best_rule['predictor'])}, "
        f"{ci(dict(best_rule), 'mcc')}"
    )


def find_receivers() -> Any:
    """Return the services of DTML_ALERTS as an `apprise.Apprise`; None if it has no address.

    Unknown addresses are left out, with a warning. Redirects are refused: a redirected POST becomes
    a GET without its body. Apprise and urllib3 log nothing from then on.
    """
    addresses = os.environ.get(VARIABLE, "").split()
    if not addresses:
        return None
    import apprise

    for library in ("apprise", "urllib3"):  # their lines quote addresses, which may hold a token
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    receivers = apprise.Apprise(asset=apprise.AppriseAsset(http_redirects=False))
    unknown = [
        str(number)  # not the address, which may hold a token
        for number, address in enumerate(addresses, start=1)
        if not receivers.add(re.sub("^http", "json", address))  # a POST of JSON, for Apprise
    ]
    if unknown:
        log.warning(
            "%d of the %d addresses in %s are of no service that Apprise knows (number %s, "
            "counted from the first): correct them; `apprise --details` lists the services",
            len(unknown),
            len(addresses),
            VARIABLE,
            ", ".join(unknown),
        )
    return receivers
