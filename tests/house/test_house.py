"""Laws of the house itself: floors, and figures that can be made again."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.house_measures import cycles, imports, modules
from tests.support.places import ROOT

ROOMS = ("flows", "dtml", "translation", "db", "tests", "benchmarks")
FILES = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
OPENS = re.compile(r"^(reading|transaction)\(|\.(connect|begin)\(")


@pytest.mark.slow
def test_imports_keep_to_the_floors() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    kept = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert kept.returncode == 0, kept.stdout


def test_the_formatter_decides_the_layout_of_every_file() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]
    assert config["line-length"] == 100
    assert not config.get("format", {}).get("skip-magic-trailing-comma", False)
    skips = re.compile("fmt" + r": *(skip|off)")
    skipping = [file for file in FILES if skips.search(file.read_text(encoding="utf-8"))]
    assert skipping == []


@pytest.mark.slow
def test_no_modules_import_each_other() -> None:
    assert cycles(imports(modules(), at_once=True)) == []


@pytest.mark.slow
def test_no_generator_holds_a_connection_while_its_rows_are_used_elsewhere() -> None:
    """What drives a generator may change threads, or leave it to the garbage
    collector, and a connection with it.
    """
    assert [
        f"{file.relative_to(ROOT)}: {place}" for file in FILES for place in held_connections(file)
    ] == []


def held_connections(file: Path) -> Iterator[str]:
    """Yield the generators of a file that open a connection and yield inside
    it, with the line of the block.
    """
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if (
            isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            and not function.decorator_list
        ):
            for block in (node for node in ast.walk(function) if isinstance(node, ast.With)):
                opens = any(OPENS.search(ast.unparse(item.context_expr)) for item in block.items)
                yields = any(
                    isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(block)
                )
                if opens and yields:
                    yield f"{function.name}, line {block.lineno}"


def test_a_connection_that_a_generator_holds_is_found(tmp_path: Path) -> None:
    file = tmp_path / "leaky.py"
    file.write_text(
        "def rows(engine):\n    with reading(engine) as conn:\n        yield from conn\n"
    )
    assert list(held_connections(file)) == ["rows, line 2"]


def test_tests_import_from_support_and_never_from_another_test() -> None:
    importing = re.compile(r"^\s*(?:from|import) (?:tests\.\w+\.)?test_.*", re.MULTILINE)
    of_tests = [file for file in FILES if "tests" in file.relative_to(ROOT).parts]
    found = {
        str(file.relative_to(ROOT)): importing.findall(file.read_text(encoding="utf-8"))
        for file in of_tests
    }
    assert {file: lines for file, lines in found.items() if lines} == {}


# What torch's optimizers and compiler call, for which torch has no public name that is as fast.
FAST = {
    "torch._foreach_add_",
    "torch._foreach_lerp",
    "torch._foreach_lerp_",
    "torch.ops.mkldnn._linear_pointwise",
    "torch.ops.mkldnn._reorder_linear_weight",
}


def test_the_product_uses_no_private_name_of_prefect_torch_or_scikit_learn() -> None:
    private = [
        f"{name}: {used}"
        for name, file in modules().items()
        for used in outside_names(ast.parse(file.read_text(encoding="utf-8")))
        if re.search(r"\._(?!_)", used) and used not in FAST
    ]
    assert private == []


def outside_names(tree: ast.AST) -> Iterator[str]:
    """Yield the full names that are imported from the three libraries, or reached from these."""
    full: dict[str, str] = {}  # by the names that the module gives them
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full |= {alias.asname: alias.name for alias in node.names if alias.asname}
            full |= {top: top for top in (alias.name.split(".")[0] for alias in node.names)}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    reached = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for name in (*full, *reached):
        first, *others = name.split(".")
        used = ".".join([full.get(first, first), *others])
        if used.startswith(("prefect.", "torch.", "sklearn.")):
            yield used


def test_a_private_name_is_found_wherever_it_is_used() -> None:
    source = """
import torch
import torch.nn.functional as F
from prefect.client import _internal
from sklearn import utils

torch.nn._made(F._other, utils._third, torch.Tensor.__add__)
"""
    found = {name for name in outside_names(ast.parse(source)) if re.search(r"\._(?!_)", name)}
    assert found == {
        "torch.nn._made",
        "torch.nn.functional._other",
        "prefect.client._internal",
        "sklearn.utils._third",
    }


def test_every_package_is_shipped() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for room in ROOMS[:4]
        for file in (ROOT / room).rglob("*.py")
    }
    assert set(listed) == found


@pytest.mark.slow
def test_what_makes_the_figures_again_is_there() -> None:
    from typer.main import get_command

    from benchmarks.results import RESULTS
    from flows.cli import app

    assert len({each.name for each in RESULTS}) == len(RESULTS)
    for command in (command for each in RESULTS for command in each.commands):
        program, *words = shlex.split(command)
        if program == "dtml":
            get_command(app).commands[words[0]].make_context(words[0], words[1:])
        else:
            assert find_spec(words[1]), words[1]


@pytest.mark.slow
def test_every_benchmark_imports() -> None:
    names = {file.stem for file in (ROOT / "benchmarks").glob("[!_]*.py")}
    for name in names - {"first_analysis"}:  # a notebook's script, which another test runs whole
        import_module(f"benchmarks.{name}")
