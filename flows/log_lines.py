"""Write what operators read on standard error: a line for each run, warnings, and progress.

A line is text such as `market=simulated night=2026-11-25 stage=report seconds=3.2`, with
DTML_LOG=json an object with the keys of `Lines`. In systemd's journal it begins with its priority,
such as <4>.
"""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, TextIO

from rich.logging import RichHandler

from dtml.errors import UsageError
from flows.settings import OWN_LOGGERS, err, shown

VARIABLE = "DTML_LOG"
JOURNAL = "DTML_JOURNAL"  # a variable: "1" in a run whose service passes its lines on to a journal
FORMED = re.compile(r'<\d>|\{"timestamp"')  # how a line begins that has its form already
PLAIN = re.compile(r'[^ "=\\]+')  # a value that needs no quotation marks
NAME = "dtml's lines"  # of the handler of this process
BAR = "flows.progress"  # the logger of progress that a terminal shows as a bar
MOVING = (BAR, "flows.studies.ranking")  # the loggers of progress
MINUTE_S = 60  # between two lines of progress outside a terminal
PRIORITIES = {  # those of syslog
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}
MARKS = {"error:": logging.ERROR, "warning:": logging.WARNING}  # how a printed line begins

log = logging.getLogger(__name__)


@dataclass
class Run:
    """Hold the fields that the line of a run in progress will have."""

    stage: str  # the current or the last one
    market: str | None = None
    night: date | None = None
    outcome: str = "done"  # the message of the line
    level: int = logging.INFO
    is_reported: bool = False  # an inner run, such as one of its nights, has logged its line


_run_in_progress: ContextVar[Run | None] = ContextVar("run_in_progress", default=None)


@contextmanager
def logged_run(
    stage: str, *, market: str | None = None, night: date | None = None
) -> Iterator[Run]:
    """Log one line when a run ends: market, night, last stage, seconds, and how it ended.

    Yields the run, whose `outcome` and `level` may be set. A failure is a warning with its error.
    Where a run inside has logged its line, this one logs none.
    """
    outer = _run_in_progress.get()  # the run around this one, None outside of any
    run = Run(stage=stage, market=market, night=night)
    token = _run_in_progress.set(run)
    begun = time.monotonic()
    try:
        yield run
    except BaseException as error:
        run.level = logging.WARNING
        run.outcome = str(error) or type(error).__name__
        raise
    finally:
        _run_in_progress.reset(token)
        if not run.is_reported:
            log_ended_run(run, seconds=time.monotonic() - begun)
        if outer is not None:
            outer.is_reported = True


def log_ended_run(run: Run, *, seconds: float, run_id: str | None = None) -> None:
    """Log the line of a run that has ended; `run_id` is Prefect's, by default the flow's."""
    fields = _fields(run, seconds, run_id)
    log.log(run.level, "%s", run.outcome, extra={"line_kind": "run", "line_fields": fields})


@contextmanager
def logged_stage(name: str) -> Iterator[None]:
    """Time a stage of the run in progress, and log a line, which JSON and `--debug` show."""
    run = _run_in_progress.get() or Run(stage=name)
    run.stage = name
    begun = time.monotonic()
    ending = "failed"
    try:
        yield
        ending = "done"
    finally:
        fields = _fields(run, time.monotonic() - begun)
        extra = {"line_kind": "stage", "line_fields": fields}
        log.info("stage %s %s", name, ending, extra=extra)


def _fields(run: Run | None, seconds: float | None, run_id: str | None = None) -> dict[str, Any]:
    """Return the fields of a line by name, in their order in the line; None where unknown."""
    return {
        "market": run and run.market,
        "night": run and run.night and run.night.isoformat(),
        "stage": run and run.stage,
        "seconds": seconds and round(seconds, 3),
        "run": run_id or flow_run_id(),
    }


def flow_run_id() -> str | None:
    """Return the ID of Prefect's flow run around this call; None outside of any."""
    if "prefect" not in sys.modules:  # no flow runs this, and the import would take seconds
        return None
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    return str(context.flow_run.id) if context and context.flow_run else None


class Lines(logging.Formatter):
    """Write a record as one line: `key=value` pairs for a run, else its message.

    JSON: timestamp (UTC), level, message, market, night, stage, seconds, run (Prefect's id); null
    where unknown.
    """

    def __init__(self, *, as_json: bool = False, for_journal: bool = False) -> None:
        super().__init__()
        self.as_json = as_json
        self.for_journal = for_journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        message = shown(" ".join(record.getMessage().split()))
        fields: Mapping[str, Any] | None = getattr(record, "line_fields", None)
        text = message
        if self.as_json:
            moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
            values = {
                "timestamp": moment.replace("+00:00", "Z"),
                "level": record.levelname.lower(),
                "message": message,
                **(fields or _fields(_run_in_progress.get(), None)),
            }
            text = json.dumps(values, ensure_ascii=False)
        elif fields is not None:
            pairs = []
            for name, value in {**fields, "message": message}.items():
                word = str(value)
                if value is not None:
                    is_plain = PLAIN.fullmatch(word)
                    word = word if is_plain else json.dumps(word, ensure_ascii=False)
                    pairs.append(f"{name}={word}")
            text = shown(" ".join(pairs))
        return f"<{PRIORITIES[record.levelno]}>{text}" if self.for_journal else text


class StandardError(logging.StreamHandler[Any]):
    """Write each record to what `sys.stderr` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record."""
        self.stream = sys.stderr
        super().emit(record)


class LineStream:
    """Stand in for standard error: "error:" and "warning:" set a line's level."""

    def __init__(self, raw: TextIO, form: Lines) -> None:
        self.raw = raw
        self.form = form
        self._unfinished = ""

    def write(self, text: str) -> int:
        """Write the lines that the text completes."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            if FORMED.match(line):  # it was logged, by this process or by one whose lines it reads
                self.raw.write(f"{line}\n")
            elif line.strip():
                level = MARKS.get(line.split(maxsplit=1)[0], logging.INFO)
                printed = logging.LogRecord("stderr", level, "", 0, line, None, None)
                self.raw.write(f"{self.form.format(printed)}\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Return what else a stream has, such as its descriptor for processes that inherit it."""
        return getattr(self.raw, name)


def lines_shown(
    *, terminal: bool, as_json: bool = False, attended: bool = False
) -> Callable[[logging.LogRecord], bool]:
    """Return the filter that chooses which of our own log lines are shown; no others are.

    A terminal gets all but stages and progress that a bar shows. A pipe gets runs, warnings, and
    progress once a minute; JSON all, but progress as a pipe. With `attended` the line of a failed
    run is left out, except in JSON: its command prints the error.
    """
    last_progress = time.monotonic()

    def is_shown(record: logging.LogRecord) -> bool:
        nonlocal last_progress
        kind = getattr(record, "line_kind", None)
        is_warning = record.levelno >= logging.WARNING
        if record.name.partition(".")[0] not in OWN_LOGGERS:
            return False
        if kind == "stage":
            return as_json
        if kind == "run":  # one that failed is a warning; the command prints its error anyway
            return as_json or not (attended and is_warning)
        if terminal:
            return record.name != BAR
        if is_warning or record.name not in MOVING:
            return as_json or is_warning
        is_due = time.monotonic() - last_progress >= MINUTE_S
        if is_due:
            last_progress = time.monotonic()
        return is_due

    return is_shown


def set_up_logging(*, debug: bool, attended: bool = True) -> None:
    """Send our own lines to standard error, in the form that DTML_LOG names; the last call counts.

    `attended`: a command runs. Prefect's lines go to its server, with `debug` also to standard
    error. For JSON and the journal, `sys.stderr` becomes a `LineStream`. Raises UsageError for an
    unknown DTML_LOG.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "text", "json"):
        raise UsageError(
            f"{VARIABLE} is {value!r}: set it to json for a JSON object on each line, or to text, "
            "or unset it"
        )
    as_json = value == "json"
    terminal = attended and err.is_terminal and not as_json
    form = Lines(as_json=as_json, for_journal=is_journal())
    handler: logging.Handler = StandardError()
    if terminal:
        # On the console of the progress bars, so that lines are printed above a bar.
        handler = RichHandler(console=err, show_time=False, show_level=False, show_path=False)
    # Prefect takes the handlers of the root logger away unless one of them has a formatter.
    handler.setFormatter(form)
    handler.set_name(NAME)
    handler.setLevel(logging.DEBUG if debug else logging.INFO)
    if not debug:
        handler.addFilter(lines_shown(terminal=terminal, as_json=as_json, attended=attended))
    root = logging.getLogger()
    # The handler of an earlier call is removed: two handlers would write each line twice.
    for earlier in [each for each in root.handlers if each.get_name() == NAME]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
    # Lines that are printed, not logged, must have the same form for the program that reads them.
    if (as_json or is_journal()) and not isinstance(sys.stderr, LineStream):
        sys.stderr = LineStream(sys.stderr, form)


def is_journal() -> bool:
    """Return whether standard error is, or goes to, systemd's journal (JOURNAL_STREAM)."""
    if os.environ.get(JOURNAL):
        return True
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
