"""Raise alerts of nights: kept once in the store, told to Prefect, sent to a webhook.

The environment names the webhook, or Prefect keeps it as a block.
"""

import asyncio
import json
import logging
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from http.client import HTTPException
from typing import Any, Literal
from urllib.parse import urlsplit

import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import reading, transaction
from db.rows import nights
from db.rows import scores as stored_scores
from dtml.baselines.naive_rules import beside_rules
from dtml.markets import Market
from dtml.pages.figures import with_interval
from flows.service.schedules import DELAY
from flows.service.status import MarketStatus, late_message, market_status, waiting_alerts

log = logging.getLogger(__name__)

Kind = Literal["refused", "late", "below_rule"]

VARIABLE = "DTML_ALERT_WEBHOOK"
BLOCK = "dtml-alerts"
ANSWER_S = 5  # for a webhook to answer; else it gets the alert again the next time
SENDING_S = 10  # after this, the rest of the alerts wait for the next time

Post = Callable[[Mapping[str, str]], None]


@dataclass(frozen=True)
class Alert:
    """Say what to know of one night of a market."""

    market: str
    as_of: date
    kind: Kind
    message: str


def after_night(engine: Engine, market: str, as_of: date) -> None:
    """Raise and send the alerts of a night that has ended; a failure here is a warning, never the night's."""
    try:
        with reading(engine) as conn:
            found = list(_of_night(conn, market, as_of))
        tell(engine, found)
    except Exception as error:  # noqa: BLE001 - news of a night is not worth the night
        log.warning("alerts of %s, night of %s, not raised: %s", market, as_of, error)


def watch_markets(
    engine: Engine, markets: Mapping[str, Market | None], now: datetime | None = None, delay: timedelta = DELAY
) -> list[MarketStatus]:
    """Return how each market stands, after raising what is late or refused and sending what waits.

    `markets` maps each name to its definition, or to None if unknown: then it cannot be known to be late.
    """
    now = now or datetime.now(UTC)
    found = [market_status(engine, name, market, now, delay) for name, market in markets.items()]
    tell(engine, [alert for each in found for alert in _of_status(each)])
    return found


def tell(engine: Engine, alerts: Iterable[Alert]) -> list[Alert]:
    """Keep each alert once (else StoreError), emit new ones as Prefect events, send all that wait; return the new."""
    now, new = datetime.now(UTC), []
    if given := list(alerts):
        with transaction(engine) as conn:
            new = [
                each
                for each in given
                if nights.raise_alert(conn, each.market, each.as_of, each.kind, message=each.message, raised_at=now)
            ]
    for each in new:
        # The command itself says what was refused or is late.
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
                nights.mark_sent(conn, market, as_of, kind, sent_at=datetime.now(UTC))
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


def _of_status(found: MarketStatus) -> Iterable[Alert]:
    if found.outcome == "refused" and found.as_of is not None:
        yield Alert(found.market, found.as_of, "refused", f"night of {found.as_of} refused: {found.reason}")
    is_told = found.due is not None and found.outcome == "refused" and found.as_of == found.due.as_of
    if found.is_late and found.due is not None and not is_told:
        yield Alert(found.market, found.due.as_of, "late", late_message(found))


def _fell_below(scores: pd.DataFrame, target: pd.Timestamp) -> str | None:
    """Say by which rule the model came to be beaten with a target's scores; None if not, or if so before.

    A model is beaten when its whole interval of the running MCC lies below a rule's whole interval. The rule's figure
    alone would not do: the best of three rules is lucky, and is checked every night. Of simulated markets without any
    signal, 9 in 10 would get an alert within a year because a rule's figure lies above their interval; 2 in 10 get one
    because the intervals lie apart. ACC is left out: where most days rise, it rewards a model for always predicting a
    rise.
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
        payload={"market": alert.market, "as_of": str(alert.as_of), "kind": alert.kind, "message": alert.message},
    )


class UndeliveredError(Exception):
    """Say that a webhook did not take an alert, without its URL, which may hold a token."""


def in_flow() -> bool:
    """Return whether a Prefect flow is running this, without importing Prefect."""
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def find_webhook() -> Post | None:
    """Return what sends an alert as JSON: to DTML_ALERT_WEBHOOK, else, in a flow, by Prefect's block; or None.

    What is returned raises UndeliveredError unless the webhook accepts the alert.
    """
    if url := os.environ.get(VARIABLE):
        return lambda said: _post(url, said)
    return _call_block if in_flow() and _load_block() is not None else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: a redirected POST would arrive as a GET without its body, and look delivered."""

    def redirect_request(self, *_of_the_answer: Any) -> None:
        """Follow none."""


def _post(url: str, said: Mapping[str, str]) -> None:
    try:
        if urlsplit(url).scheme not in ("http", "https"):  # such as file
            raise UndeliveredError(f"{VARIABLE} is no http or https URL")
        body, headers = json.dumps(said).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - the scheme is known
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWER_S):
            return
    except urllib.error.HTTPError as error:
        raise UndeliveredError(f"the webhook answered {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:  # their messages may quote the URL
        cause = type(getattr(error, "reason", error)).__name__
        raise UndeliveredError(f"the webhook cannot be reached or gave no answer in time ({cause})") from None


def _load_block() -> Any:
    """Load Prefect's block, or return None when there is none that can be read."""
    from prefect.blocks.webhook import Webhook

    try:
        return Webhook.load(BLOCK)
    except ValueError:  # there is none of that name
        return None
    except Exception as error:  # noqa: BLE001 - a server in trouble is not the night's
        log.warning("Prefect's block %s cannot be read (%s)", BLOCK, type(error).__name__)
        return None


def _call_block(said: Mapping[str, str]) -> None:
    """Send by the block, which is good for one call, in a loop of its own; its client waits 5 s."""
    block = _load_block()
    if block is None:
        raise UndeliveredError(f"Prefect's block {BLOCK} is gone")

    def call() -> int:
        return int(asyncio.run(block.call(dict(said))).status_code)

    try:
        with ThreadPoolExecutor(1) as thread:
            answered = thread.submit(call).result()
    except Exception as error:  # noqa: BLE001 - whatever its client raises may quote the URL
        raise UndeliveredError(f"the webhook of the block cannot be reached ({type(error).__name__})") from None
    if not 200 <= answered < 300:
        raise UndeliveredError(f"the webhook of the block answered {answered}")
