"""`make mutation`: what is changed, what is noticed, and that what is listed as
equivalent is still there.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.mutants import mutants, statements
from benchmarks.mutation import EQUIVALENT, TRIALS
from tests.support.places import ROOT

pytestmark = pytest.mark.slow

LISTED = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
TOY = '''"""A toy."""

LEAST = 3


class Toy:
    @property
    def size(self) -> int:
        return 7


def larger(one: int, other: int) -> int:
    """Return the larger."""
    if one > other:
        return one
    return other


def enough(count: int) -> bool:
    return count >= LEAST
'''
LAWS = """from toy import Toy, enough, larger


def test_toy():
    assert larger(2, 1) == 2 and larger(1, 2) == 2
    assert Toy().size == 7 and enough(4) and not enough(2)
"""
PROGRAM = """
from pathlib import Path
from benchmarks.mutants import mutants
from benchmarks.mutation_tests import run

def told(each, noticed):
    print(each.function, each.after, noticed, sep=" | ")

run(mutants("toy.py", Path("toy.py").read_text()), ["test_toy.py"], "postgresql", told)
"""


def test_properties_and_constants_are_changed_too_and_types_are_not() -> None:
    found = mutants("toy.py", TOY)
    assert [(each.function, each.inside, each.before, each.after) for each in found] == [
        ("", False, "LEAST = 3", "LEAST = None"),
        ("", False, "LEAST = 3", "LEAST = 4"),
        ("Toy.size", True, "return 7", "return 8"),
        ("larger", True, "if one > other:", "if one >= other:"),
        ("enough", True, "return count >= LEAST", "return count > LEAST"),
    ]
    assert (
        mutants("typed.py", 'Prices = Float[ndarray, "days stocks"]\n')[0].after == "Prices = None"
    )


@pytest.mark.soak
def test_a_mutant_is_noticed_where_a_test_fails_on_it_wherever_it_was_imported(
    tmp_path: Path,
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "test_toy.py").write_text(LAWS)
    program = [sys.executable, "-c", PROGRAM]
    told = subprocess.run(
        program,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.splitlines() == [
        "Toy.size | return 8 | True",
        "larger | if one >= other: | False",
        "enough | return count > LEAST | False",
        " | LEAST = None | True",
        " | LEAST = 4 | False",
    ], told.stderr


@pytest.mark.parametrize("module", sorted(LISTED))
def test_what_is_listed_as_equivalent_has_a_reason_and_a_line_that_is_still_there(
    module: str,
) -> None:
    assert module in {each.module for each in TRIALS}
    lines = statements((ROOT / module).read_text(encoding="utf-8"))
    source = " ".join(line.strip() for line in lines)
    for each in LISTED[module]:
        assert each["before"] in source, each["before"]
        assert len(each["reason"].split()) >= 4, each["before"]
