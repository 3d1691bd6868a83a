"""Laws of the house itself: floors, names that exist, and figures that can be made again."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from db import tables
from db.read import selection
from db.views import views
from tests.house_measures import cycles, imports, modules
from tests.support.places import ROOT

ROOMS = ("flows", "dtml", "translation", "db", "tests", "benchmarks")
FILES = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))


def test_imports_keep_to_the_floors():
    program = Path(sys.executable).with_name("lint-imports")
    kept = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert kept.returncode == 0, kept.stdout


def test_no_modules_import_each_other():
    assert cycles(imports(modules(), at_once=True)) == []


def test_tests_import_from_support_and_never_from_another_test():
    importing = re.compile(r"^\s*(?:from|import) (?:tests\.\w+\.)?test_.*", re.MULTILINE)
    of_tests = [file for file in FILES if "tests" in file.relative_to(ROOT).parts]
    found = {
        str(file.relative_to(ROOT)): importing.findall(file.read_text(encoding="utf-8"))
        for file in of_tests
    }
    assert {file: lines for file, lines in found.items() if lines} == {}


# `os._exit`, and `_make` and `_replace` of a named tuple, are documented; `_predictors` are the
# trees of scikit-learn's boosting, which have no other name.
PRIVATE = {"_exit", "_make", "_replace", "_predictors"}


def test_the_product_uses_no_private_name_of_a_library():
    texts = [file.read_text(encoding="utf-8") for file in modules().values()]
    assert private_names_of_others(texts) == PRIVATE


def private_names_of_others(texts):
    """Return the private names that modules use or import, and none of them defines."""
    own, used = set(), set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                own.add(name)
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                own.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                used.add(name)
            case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
                used |= {*name.split(".")}
    return {name for name in used - own if re.match("_[a-z]", name)}


READ_OPTIONS = {"columns", "order", "limit"}


def named_relations():
    """Yield each place where the product names a relation literally, with it and its columns."""
    for module, file in modules().items():
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match call:
                case ast.Call(
                    func=ast.Name("read" | "read_rows" | "read_row" | "read_value"),
                    args=[_, ast.Constant(str(relation)), *rest],
                ):
                    given = rest
                case ast.Call(func=ast.Name("selection"), args=[ast.Constant(str(relation))]):
                    given = []
                case ast.Call(func=ast.Name("save"), args=[_, ast.Constant(str(relation)), *rest]):
                    given = [key for each in rest for key in getattr(each, "keys", []) if key]
                case _:
                    continue
            given += [each.value for each in call.keywords if each.arg in ("columns", "order")]
            texts = [each.value for each in given if isinstance(each, ast.Constant)]
            names = {name.removeprefix("-") for each in texts for name in str(each).split(", ")}
            columns = {each.arg for each in call.keywords if each.arg} - READ_OPTIONS
            yield f"{module}:{call.lineno}", relation, (columns | names) - {""}


def test_every_relation_and_column_that_the_product_names_exists():
    found = list(named_relations())
    assert len(found) > 100
    for place, relation, columns in found:
        assert relation in tables.metadata.tables or relation in views(), place
        known = {column.name for column in selection(relation).selected_columns} | {"market"}
        assert columns <= known, f"{place}: {relation} has no {columns - known}"


def test_every_package_is_shipped():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for room in ROOMS[:4]
        for file in (ROOT / room).rglob("*.py")
    }
    assert set(listed) == found


def test_what_makes_the_figures_again_is_there():
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


def test_every_benchmark_imports():
    names = {file.stem for file in (ROOT / "benchmarks").glob("[!_]*.py")}
    for name in names - {"first_analysis"}:  # a notebook's script, which another test runs whole
        import_module(f"benchmarks.{name}")
