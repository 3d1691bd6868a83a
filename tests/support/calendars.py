"""Calendars that end, as those do whose next year is published in the last days of this one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest

from dtml.prices import sessions


def end_calendar(monkeypatch: pytest.MonkeyPatch, calendar: str, last: date) -> None:
    """Let the calendar of an exchange be known up to a session, and all others as they are."""
    known: Callable[[str], sessions._Exchange] = sessions._exchange

    def shortened(code: str) -> sessions._Exchange:
        exchange = known(code)
        if code != calendar:
            return exchange
        kept = exchange.sessions <= pd.Timestamp(last)
        return replace(
            exchange,
            sessions=exchange.sessions[kept],
            opens=exchange.opens[kept],
            closes=exchange.closes[kept],
        )

    monkeypatch.setattr(sessions, "_exchange", shortened)
