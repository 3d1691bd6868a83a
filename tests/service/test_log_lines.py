"""What operators read on standard error: a line a run, as text, as JSON, and as the journal takes
it.
"""

import logging
import os
import sys
from datetime import date

import pytest

from dtml.errors import DtmlError
from flows.log_lines import logged_run, logged_stage
from tests.support.log_lines import objects, standard_error

NIGHT = date(2026, 11, 25)
KEYS = ["timestamp", "level", "message", "market", "night", "stage", "seconds", "run"]
OWN = logging.getLogger("flows.of_a_test")


def without_seconds(line):
    return [pair for pair in line.split() if not pair.startswith("seconds=")]


def test_a_run_is_one_line_of_pairs_with_its_last_stage(monkeypatch):
    said = standard_error(monkeypatch)
    with logged_run("night", market="toy", night=NIGHT) as run:
        with logged_stage("fetch"), logged_stage("model"):
            OWN.info("for terminals alone")
        run.outcome = "complete"
    (line,) = said.getvalue().splitlines()
    told = ["market=toy", "night=2026-11-25", "stage=model", "message=complete"]
    assert without_seconds(line) == told
    assert " seconds=0." in line


def fail_in_the_second_stage():
    with logged_run("night", market="toy", night=NIGHT):
        with logged_stage("fetch"):
            pass
        with logged_stage("model"):
            raise DtmlError("too few sessions")


def test_a_run_that_fails_is_a_warning_with_its_error_and_the_stage_it_was_in(monkeypatch):
    said = standard_error(monkeypatch, form="json")
    with pytest.raises(DtmlError):
        fail_in_the_second_stage()
    *stages, ended = objects(said)
    assert [(line["stage"], line["message"]) for line in stages] == [
        ("fetch", "stage fetch done"),
        ("model", "stage model failed"),
    ]
    told = (ended["level"], ended["stage"], ended["message"])
    assert told == ("warning", "model", "too few sessions")


def test_every_line_is_an_object_with_the_same_keys(monkeypatch):
    said = standard_error(monkeypatch, form="json")
    with logged_run("night", market="toy", night=NIGHT), logged_stage("fetch"):
        OWN.info("five bars")
        OWN.warning("no %s\nfor two days", "index")
        print("error: of a print", file=sys.stderr)  # noqa: T201
    print("night of", NIGHT, file=sys.stderr)  # noqa: T201
    lines = objects(said)
    assert [list(line) for line in lines] == [KEYS] * 6
    assert [(line["level"], line["message"]) for line in lines] == [
        ("info", "five bars"),
        ("warning", "no index for two days"),
        ("error", "error: of a print"),
        ("info", "stage fetch done"),
        ("info", "done"),
        ("info", "night of 2026-11-25"),
    ]
    assert [line["stage"] for line in lines] == [*["fetch"] * 5, None]
    assert {line["night"] for line in lines[:5]} == {"2026-11-25"}
    assert all(line["timestamp"].endswith("Z") for line in lines)


def test_lines_of_libraries_are_shown_with_debug_alone(monkeypatch):
    said = standard_error(monkeypatch, form="json")
    logging.getLogger("urllib3").warning("GET https://quotes.example/?token=SECRET")
    assert objects(said) == []


def test_in_the_journal_every_line_begins_with_its_priority(monkeypatch):
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    said = standard_error(monkeypatch)
    with logged_run("watch"):
        OWN.warning("a night is late")
        print("error: a broken disk", file=sys.stderr)  # noqa: T201
    warned, failed, ended = said.getvalue().splitlines()
    assert (warned, failed) == ("<4>a night is late", "<3>error: a broken disk")
    assert ended.startswith("<6>stage=watch seconds=")
