"""Laws of `dtml history`."""

import re

import pandas as pd
import pytest

from flows.commands.history import _decided, _print_symbol_scores


def test_a_single_outcome_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"kind": ["nightly"], "n": [1], "acc": [1.0], "mcc": [0.0], "up_acc": [1.0]}
    _print_symbol_scores(pd.DataFrame(scores))
    assert re.match(r"in all 1 outcome \(.*: ACC 100\.0 %", capsys.readouterr().out)


def test_what_is_correct_is_said_of_the_direction_that_is_printed() -> None:
    """A calibrated direction may be another than the model's own, or none."""
    stored = pd.DataFrame(
        {
            "run_id": "r",
            "target": ["1", "2", "3", "4", "5"],
            "direction": ["rise", "rise", "rise", "fall", "rise"],
            "correct": pd.array([1, 1, 0, None, 1], dtype="Int64"),
        }
    )
    calibrated = pd.DataFrame(
        {
            "run_id": "r",
            "target": ["1", "2", "3", "4"],
            "direction": ["rise", "fall", "fall", "rise"],
        }
    )
    calibrated.loc[0, "direction"] = "none"
    found = _decided(stored, calibrated)
    assert found["direction"].tolist() == ["none", "fall", "fall", "rise", "rise"]
    assert found["correct"].astype(object).where(found["correct"].notna(), None).tolist() == [
        None,
        0,
        1,
        None,
        1,
    ]
