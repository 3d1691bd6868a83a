"""`python -m translation`: models are trained and used without Prefect, a database or stocks."""

import os
import subprocess
import sys

import pytest

from tests.support.places import ROOT
from tests.support.recipe import SOURCES, write_recipe

pytestmark = [pytest.mark.slow, pytest.mark.soak]
# The rest of the product cannot be imported.
ALONE = (
    "import runpy, sys; "
    "sys.modules |= dict.fromkeys(('prefect', 'sqlalchemy', 'flows', 'dtml', 'db')); "
    "runpy.run_module('translation', run_name='__main__', alter_sys=True)"
)


def alone(folder, *arguments, given=b""):
    return subprocess.run(
        [sys.executable, "-c", ALONE, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        input=given,
        check=False,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a recipe and its model."""
    folder = tmp_path_factory.mktemp("alone")
    write_recipe(folder)
    said = alone(folder, "train", "tiny.toml", "--processes", "2")
    assert said.returncode == 0, said.stderr
    scored, model = said.stdout.splitlines()
    assert scored.startswith(b"made: BLEU ")
    assert model == b"models/tiny"
    assert b"step 160, epoch " in said.stderr
    assert b"160 updates of" in said.stderr
    assert b"2 processes" in said.stderr
    return folder


def test_it_translates_line_by_line(folder):
    given = f"{SOURCES[0]}\n\n{SOURCES[1]}\n".encode()
    said = alone(folder, "translate", "models/tiny", given=given)
    assert said.returncode == 0, said.stderr
    assert [bool(line) for line in said.stdout.splitlines()] == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train none.toml", "none.toml"),
        ("translate models/none", "models/none"),
        ("translate models/tiny --beams 0", "beams must be 1"),
        ("translate models/tiny", "input is not UTF-8"),
    ],
)
def test_mistakes_are_one_line_and_2(folder, arguments, words):
    said = alone(folder, *arguments.split(), given=b"Gr\xfc\xdfe\n")
    assert said.returncode == 2
    (line,) = said.stderr.decode().splitlines()
    assert words in line
