"""Laws of the house itself: floors, sizes, and figures that can be made again."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house_measures import (
    cycles,
    folder_sizes,
    function_lines,
    imports,
    modules,
    strangers,
    ways_to_the_equations,
)

ROOT = Path(__file__).parents[2]
ROOMS = ("flows", "dtml", "translation", "db", "tests", "benchmarks")
FILES = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
OPENS = re.compile(r"^(reading|transaction)\(|\.(connect|begin)\(")


@pytest.mark.slow
def test_imports_keep_to_the_floors() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    kept = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert kept.returncode == 0, kept.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_is_over_500_lines_and_no_function_over_60(file: Path) -> None:
    assert file.read_text(encoding="utf-8").count("\n") <= 500
    if "migrations" not in file.parts:
        assert [name for name, lines in function_lines(file).items() if lines >= 60] == []


def test_no_modules_import_each_other() -> None:
    assert cycles(imports(modules(), at_once=True)) == []


def test_a_folder_has_at_most_15_modules() -> None:
    assert {folder: count for folder, count in folder_sizes(modules()).items() if count > 15} == {}


def test_few_modules_lie_with_strangers() -> None:
    found = modules()
    assert len(alone := strangers(imports(found), found)) <= 20, alone


def test_the_equations_are_at_most_five_imports_from_the_command() -> None:
    found = modules()
    for way in ways_to_the_equations(imports(found), found).values():
        assert len(way) - 1 <= 5, way


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_generator_holds_a_connection_while_its_rows_are_used_elsewhere(file: Path) -> None:
    """What drives a generator may change threads, or leave it to the garbage collector, and a connection with it."""
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and not function.decorator_list:
            for block in (node for node in ast.walk(function) if isinstance(node, ast.With)):
                opens = any(OPENS.search(ast.unparse(each.context_expr)) for each in block.items)
                yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(block))
                assert not (opens and yields), f"{function.name}, line {block.lineno}"


@pytest.mark.parametrize(
    "file", [file for file in FILES if "tests" in file.relative_to(ROOT).parts], ids=lambda file: file.name
)
def test_tests_import_from_helpers_and_never_from_another_test(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert re.findall(r"^\s*(?:from|import) (?:tests\.\w+\.)?test_.*", text, re.MULTILINE) == []


def test_every_package_is_shipped() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(file.parent.relative_to(ROOT).parts) for room in ROOMS[:4] for file in (ROOT / room).rglob("*.py")
    }
    assert set(listed) == found


def test_what_makes_the_figures_again_is_there() -> None:
    from typer.main import get_command

    from benchmarks.results import DTML, RESULTS
    from flows.cli import app

    assert len({each.name for each in RESULTS}) == len(RESULTS)
    for program, *words in (command for each in RESULTS for command in each.commands):
        if program == DTML:
            get_command(app).commands[words[0]].make_context(words[0], words[1:])
        else:
            assert (ROOT / f"{words[1].replace('.', '/')}.py").exists(), words[1]
