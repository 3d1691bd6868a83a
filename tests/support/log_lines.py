"""What a process writes on standard error, as text or as JSON."""

import io
import json
import logging
import sys
from typing import Any

import pytest

from flows.log_lines import set_up_logging


def standard_error(monkeypatch: pytest.MonkeyPatch, *, form: str = "text") -> io.StringIO:
    """Return what is written on standard error from now to the end of a test.

    It is neither a terminal nor the journal. Call it in the test itself: pytest puts its own
    stream in place after the fixtures.
    """
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("DTML_LOG", form)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    set_up_logging(debug=False)
    return stream


def objects(said: io.StringIO) -> list[dict[str, Any]]:
    """Every line, as a reader of JSON takes it."""
    return [json.loads(line) for line in said.getvalue().splitlines()]


def record(level: int, message: str, name: str = "flows") -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, message, None, None)
