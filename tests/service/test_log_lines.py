"""What operators read on standard error: a line a run, as text, as JSON, and as the journal takes
it.
"""

import io
import json
import logging
import os
import shutil
import subprocess
import sys
from datetime import date

import pytest

from dtml.errors import DtmlError, UsageError
from flows.log_lines import (
    Lines,
    LineStream,
    Run,
    log_ended_run,
    logged_run,
    logged_stage,
    set_up_logging,
)
from tests.support.log_lines import objects, record, standard_error

NIGHT = date(2026, 11, 25)
KEYS = ["timestamp", "level", "message", "market", "night", "stage", "seconds", "run"]
OWN = logging.getLogger("flows.of_a_test")


def without_seconds(line: str) -> list[str]:
    return [pair for pair in line.split() if not pair.startswith("seconds=")]


def test_a_run_is_one_line_of_pairs_with_its_last_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    said = standard_error(monkeypatch)
    with logged_run("night", market="toy", night=NIGHT) as run:
        with logged_stage("fetch"), logged_stage("model"):
            OWN.info("for terminals alone")
        run.outcome = "complete"
    (line,) = said.getvalue().splitlines()
    told = ["market=toy", "night=2026-11-25", "stage=model", "message=complete"]
    assert without_seconds(line) == told
    assert " seconds=0." in line


def test_a_value_of_several_words_or_with_marks_is_quoted_on_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = standard_error(monkeypatch)
    ended = Run(stage="night", market='a="b', outcome="refused:\n 3 of 9")
    log_ended_run(ended, seconds=2.0)
    assert said.getvalue() == (
        'market="a=\\"b" stage=night seconds=2.0 message="refused: 3 of 9"\n'
    )


def fail_in_the_second_stage() -> None:
    with logged_run("night", market="toy", night=NIGHT):
        with logged_stage("fetch"):
            pass
        with logged_stage("model"):
            raise DtmlError("too few sessions")


def test_a_run_that_fails_is_a_warning_with_its_error_and_the_stage_it_was_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_run_whose_nights_have_lines_has_none_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    said = standard_error(monkeypatch)
    with logged_run("night", market="toy"):
        for day in (24, 25):
            with logged_run("night", market="toy", night=date(2026, 11, day)):
                pass
    with logged_run("night", market="toy") as run:
        run.outcome = "Skipped: no session"
    nights = [line.split("night=")[1][:10] for line in said.getvalue().splitlines()[:2]]
    assert nights == ["2026-11-24", "2026-11-25"]
    assert said.getvalue().splitlines()[2].endswith('message="Skipped: no session"')
    assert len(said.getvalue().splitlines()) == 3


def test_every_line_is_an_object_with_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_lines_of_libraries_are_shown_with_debug_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said = standard_error(monkeypatch, form="json")
    logging.getLogger("urllib3").warning("GET https://quotes.example/?token=SECRET")
    assert objects(said) == []


def test_another_form_is_a_mistake_that_names_the_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTML_LOG", "xml")
    with pytest.raises(UsageError, match=r"DTML_LOG .*'xml':.*json"):
        set_up_logging(debug=False)


def test_in_the_journal_every_line_begins_with_its_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    said = standard_error(monkeypatch)
    with logged_run("watch"):
        OWN.warning("a night is late")
        print("error: a broken disk", file=sys.stderr)  # noqa: T201
    warned, failed, ended = said.getvalue().splitlines()
    assert (warned, failed) == ("<4>a night is late", "<3>error: a broken disk")
    assert ended.startswith("<6>stage=watch seconds=")


def test_in_the_journal_an_object_begins_with_its_priority_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    said = standard_error(monkeypatch, form="json")
    OWN.warning("a night is late")
    line = said.getvalue()
    assert line.startswith("<4>{")
    assert json.loads(line.removeprefix("<4>"))["message"] == "a night is late"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("logger") is None, reason="no logger of util-linux")
def test_a_reader_of_priorities_takes_them_off_and_keeps_them() -> None:
    """The journal reads them in the same way; there is none to ask in a test."""
    lines = Lines(for_journal=True)
    given = "\n".join(
        lines.format(record(level, f"a {logging.getLevelName(level).lower()}"))
        for level in (logging.INFO, logging.WARNING, logging.ERROR)
    )
    options = ("--no-act", "--stderr", "--prio-prefix", "--socket-errors=off", "--tag", "dtml")
    command = ["logger", *options]
    ended = subprocess.run(
        command, input=f"{given}\n", capture_output=True, text=True, check=True, timeout=60
    )
    found = [line.split("dtml: ") for line in ended.stderr.splitlines()]
    # 8 is the facility "user", which `logger` gives where a prefix names none
    assert [head.split(">")[0] for head, _ in found] == ["<14", "<12", "<11"]
    assert [message for _, message in found] == ["a info", "a warning", "a error"]


def test_what_is_printed_in_pieces_is_written_when_its_line_ends() -> None:
    said = io.StringIO()
    stream = LineStream(said, Lines(for_journal=True))
    stream.write("half of a ")
    stream.flush()
    assert said.getvalue() == ""
    stream.write("line\n\nand")
    assert said.getvalue() == "<6>half of a line\n"
