"""Yahoo's answers, read before yfinance makes a table of prices of them.

yfinance cannot tell a refused request from a stock without data, takes the close where the adjusted
close is missing, and leaves prices in pence and dividends in another currency as they are. So the
session that it is given reads each answer first (`AnswerOfYahoo`).
"""

import json
from typing import Any
from urllib.parse import urlsplit

from curl_cffi.requests import Response

from dtml.sources import Status

REFUSED = (401, 403)  # statuses of HTTP: an invalid crumb or cookie, or an address that is blocked
# Yahoo's names of units that are a hundredth of a currency, with that currency.
HUNDREDTHS = {
    "GBp": "GBP",
    "GBX": "GBP",
    "ZAc": "ZAR",
    "ILA": "ILS",
}
IN_CURRENCY = {"open", "high", "low", "close", "adjclose"}  # Yahoo's columns of prices
DISTRIBUTIONS = ("dividends", "capitalGains")  # Yahoo's names of events with an amount per share

Json = dict[str, Any]


class AnswerError(Exception):
    """An answer of Yahoo that holds no chart; `status` says what that means for the symbol."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class AnswerOfYahoo(Response):
    """A response of the session that yfinance uses."""

    def json(self) -> Json:  # type: ignore[override] # no caller here gives options of the parser
        """Return the chart that yfinance reads, in currency units; raise AnswerError without one.

        yfinance calls this for charts alone.
        """
        host = urlsplit(self.url).hostname or "an unknown host"
        return read_chart(self.status_code, host, self.content)


def read_chart(http_status: int, host: str, content: bytes) -> Json:
    """Return Yahoo's answer to a request for a chart, in currency units.

    Prices in pence and the like are divided by 100. Adjusted closes that Yahoo left out are null;
    an index pays no dividends, so its closes are taken. A dividend in another currency than the
    prices is left out; the adjusted closes still deduct it. A chart that says that there is no data
    is returned as it is: yfinance recognises it.

    Raises AnswerError for a refused request, a web page, and whatever else is no chart.
    """
    answer = _parsed(content)
    reason = _reason(answer) or _kind(host, content)
    if http_status in REFUSED:
        raise AnswerError("unreachable", f"Yahoo refused the request: HTTP {http_status}, {reason}")
    if answer is None or "chart" not in answer:
        raise AnswerError("malformed", f"Yahoo sent no prices: HTTP {http_status}, {reason}")
    chart = answer["chart"] or {}
    for result in chart.get("result") or []:
        _fill_adjusted_closes(result)
        _convert(result)
    return answer


def _parsed(content: bytes) -> Json | None:
    """Return the JSON object of an answer; None if it is something else, such as a web page."""
    try:
        answer = json.loads(content)
    except ValueError:  # no JSON, or bytes that are no text
        return None
    return answer if isinstance(answer, dict) else None


def _reason(answer: Json | None) -> str:
    """Return Yahoo's own words for why it gives no data, empty if it gives none.

    They are in the only member of the object, `chart` or `finance`.
    """
    for part in (answer or {}).values():
        error = part.get("error") if isinstance(part, dict) else None
        if isinstance(error, dict):
            return str(error.get("description") or error.get("code") or "")
    return ""


def _kind(host: str, content: bytes) -> str:
    """Return in words what an answer without a reason is."""
    is_page = content.lstrip().startswith(b"<")
    if is_page:
        return f"a web page from {host} instead of prices"
    return f"an unreadable answer from {host}"


def _fill_adjusted_closes(result: Json) -> None:
    """Put nulls where the adjusted closes of a stock are missing; yfinance would take its closes.

    Those of an index are its closes. A result without closes is left as it is.
    """
    indicators = result.get("indicators") or {}
    closes = _first(indicators.get("quote")).get("close")
    adjusted = _first(indicators.get("adjclose")).get("adjclose")
    is_index = (result.get("meta") or {}).get("instrumentType") == "INDEX"
    if closes is not None and adjusted is None:
        filled = list(closes) if is_index else [None] * len(closes)
        indicators["adjclose"] = [{"adjclose": filled}]


def _convert(result: Json) -> None:
    """Convert the prices and the distributions of a result, in place, to units of their currency.

    A distribution in another currency than the prices is removed.
    """
    meta = result.get("meta") or {}
    quoted_in = meta.get("currency") or ""
    currency, unit = _unit(quoted_in)
    if unit != 1:
        meta["currency"] = currency
        indicators = result.get("indicators") or {}
        quote = _first(indicators.get("quote"))
        adjusted = _first(indicators.get("adjclose"))
        for columns in (quote, adjusted):
            for name in columns.keys() & IN_CURRENCY:
                columns[name] = [_divided(price, unit) for price in columns[name] or []]
    events = result.get("events") or {}
    for kind in DISTRIBUTIONS:
        paid = (events.get(kind) or {}).items()
        converted = {moment: _in_currency(event, quoted_in) for moment, event in paid}
        events[kind] = {moment: event for moment, event in converted.items() if event is not None}


def _in_currency(event: Json, quoted_in: str) -> Json | None:
    """Return a dividend in whole units of the currency of the prices; None if it is in another.

    Without a currency of its own it is in the unit of the prices, which `quoted_in` names.
    """
    currency, _ = _unit(quoted_in)
    own_currency, unit = _unit(event.get("currency") or quoted_in)
    if own_currency != currency:
        return None
    without_currency = {name: value for name, value in event.items() if name != "currency"}
    return without_currency | {"amount": _divided(event.get("amount"), unit)}


def _unit(name: str) -> tuple[str, int]:
    """Return the currency that a name of Yahoo's stands for, and how many of its units are one."""
    if name in HUNDREDTHS:
        return HUNDREDTHS[name], 100
    return name, 1


def _divided(value: Any, unit: int) -> Any:
    """Return a number divided by `unit`; null and whatever else is no number as it is."""
    return value / unit if isinstance(value, int | float) else value


def _first(columns: Any) -> Json:
    """Return the object in a list of one, as Yahoo wraps columns; an empty one without it."""
    return columns[0] if isinstance(columns, list) and columns and columns[0] else {}
