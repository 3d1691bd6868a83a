"""Which lines of our own a command shows: all on a terminal, in a pipe warnings
and that a long step moves.
"""

import logging
import re
from collections.abc import Callable

import pytest

from dtml.model import ModelConfig
from dtml.training import Epoch, Member, ResumedEpoch, TrainingConfig
from flows import log_lines
from flows.log_lines import lines_shown
from flows.progress import fold_progress, rankings_progress, training_progress
from tests.support.log_lines import record

INFO, WARNING = logging.INFO, logging.WARNING
Filter = Callable[[logging.LogRecord], bool]


def shown(lines: Filter, name: str, level: int = INFO) -> bool:
    return lines(record(level, "said", name))


def test_a_terminal_gets_all_but_what_its_bar_shows() -> None:
    lines = lines_shown(terminal=True)
    assert shown(lines, "flows.nightly.fetch")
    assert shown(lines, "flows.studies.ranking")
    assert not shown(lines, "flows.progress")
    assert not shown(lines, "prefect.flow_runs", WARNING)


def test_a_pipe_gets_warnings_and_once_a_minute_that_a_long_step_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(log_lines.time, "monotonic", lambda: now)
    lines = lines_shown(terminal=False)
    assert [shown(lines, "flows.nightly.fetch", level) for level in (INFO, WARNING)] == [
        False,
        True,
    ]
    seen = []
    for now in range(0, 200, 20):
        seen += [now] if shown(lines, "flows.progress") else []
    assert seen == [60, 120, 180]
    assert not shown(lines, "flows.studies.ranking")
    assert not shown(lines, "urllib3", WARNING)


def test_the_epochs_before_an_interruption_are_not_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(INFO, logger="flows.progress")
    member = Member(0, ModelConfig(), TrainingConfig(epochs=4))
    figures = {"loss": 0.7, "validation_loss": 0.7, "validation_acc": 0.5}
    with training_progress([member]) as report:
        report(member, ResumedEpoch(number=1, **figures))
        report(member, Epoch(number=2, **figures))
    logged = [each.getMessage() for each in caplog.records if each.name == "flows.progress"]
    (line,) = logged
    assert re.match(r"seed 0, epoch 2 of 4:.*\.700,.*50\.0 %$", line)


def test_folds_of_an_earlier_run_do_not_count_for_the_time_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), fold_progress(3, 8) as report:
        report()
    (message,) = caplog.messages
    assert message.startswith("fold 4 of 8 ")


def test_every_training_of_a_walk_is_logged_without_a_guess_of_the_time_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), rankings_progress("simulated", 2) as train:
        assert train("ridge-2025-11-03", lambda: 7) == 7
        assert train("boosting-2025-11-03", lambda: 8) == 8
    first, second = caplog.messages
    assert re.match("simulated: ridge-2025-11-03,.* 1 of 2, done ", first)
    assert re.match("simulated: boosting-2025-11-03,.* 2 of 2, done ", second)
    assert not [message for message in caplog.messages if "left" in message]
