"""The words on an explanation say what its tests found, and no page says more than they do."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dtml.attention.findings import verdict, words

BOTH = {
    "seeds": 4,
    "shuffles": 8,
    "told_apart": True,
    "distance": 0.1,
    "distance_p": 0.01,
    "agreement": 0.5,
    "agreement_low": 0.4,
    "agreement_high": 0.6,
    "top": 3,
    "drivers": None,
    "drivers_chance": None,
    "drivers_importance": None,
    "stocks": 50,
    "epochs": 20,
    "days": 42,
}


@pytest.mark.parametrize(
    ("changes", "expected", "is_explanation"),
    [
        ({}, "It agrees with", True),
        ({"told_apart": False}, "does not differ", False),
        ({"agreement_low": -0.1}, "does not agree with", False),
        (
            {"agreement": -0.5, "agreement_low": -0.6, "agreement_high": -0.4},
            "It contradicts",
            False,
        ),
        (
            {"agreement": 0.2, "agreement_low": 0.1, "agreement_high": 0.3},
            "agrees only weakly with",
            False,
        ),
        ({"agreement_low": None, "agreement_high": None}, "It is not known", False),
        ({"agreement_low": np.nan, "agreement_high": np.nan}, "It is not known", False),
    ],
)
def test_the_words_are_as_good_as_both_tests(
    changes: Mapping[str, Any], expected: str, is_explanation: bool
) -> None:
    said = words(BOTH | changes)
    assert expected in said
    assert ("Do not read" not in said) == is_explanation
    assert verdict(BOTH | changes) == ("holds" if is_explanation else "fails")
    assert "driver" not in said
    assert "nan" not in said


def test_a_model_that_was_never_tested_has_words_that_say_how() -> None:
    assert "dtml explain MARKET" in words(None)
    assert verdict(None) == "untested"
