"""Where alerts are sent: the webhook of the environment, or the one that Prefect keeps as a block."""

import asyncio
import json
import logging
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

VARIABLE = "DTML_ALERT_WEBHOOK"
BLOCK = "dtml-alerts"
ANSWER_S = 5  # a webhook answers within this, or gets the alert again the next time

Post = Callable[[Mapping[str, str]], None]


class UndeliveredError(Exception):
    """A webhook did not take an alert; the message never holds its URL, which may hold a token."""


def in_flow() -> bool:
    """Whether this is code of a Prefect flow; what runs none does not wait for Prefect's import."""
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def find_webhook() -> Post | None:
    """What sends one alert as JSON: to DTML_ALERT_WEBHOOK, else, inside a flow, by Prefect's block; None without both.

    It raises UndeliveredError unless the webhook answers that it took the alert.
    """
    if url := os.environ.get(VARIABLE):
        return lambda said: _post(url, said)
    return _call_block if in_flow() and _load_block() is not None else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its body, and look delivered."""

    def redirect_request(self, *_of_the_answer: Any) -> None:
        """Follow none."""


def _post(url: str, said: Mapping[str, str]) -> None:
    try:
        if urlsplit(url).scheme not in ("http", "https"):  # a file is no webhook
            raise UndeliveredError(f"{VARIABLE} is no http or https URL")
        body, headers = json.dumps(said).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - the scheme is known
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWER_S):
            return
    except urllib.error.HTTPError as error:
        raise UndeliveredError(f"the webhook answered {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:  # their words may quote the URL
        cause = type(getattr(error, "reason", error)).__name__
        raise UndeliveredError(f"the webhook cannot be reached or gave no answer in time ({cause})") from None


def _load_block() -> Any:
    """Prefect's block, or None when there is none that can be read."""
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
