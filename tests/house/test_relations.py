"""Each table, view and column that the product names in a read or a save exists."""

import ast
from collections.abc import Iterator

import pytest

from db import tables
from db.read import selection
from db.views import views
from tests.house_measures import modules

READERS = ("read", "read_row", "read_value", "selection")
OPTIONS = ("columns", "order", "limit")


def calls() -> Iterator[tuple[str, ast.Call]]:
    for name, file in modules().items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in ("db.read", "db.save")
            for alias in node.names
        }
        for node in ast.walk(tree):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_call and node.func.id in imported.intersection((*READERS, "save")):
                yield f"{name}:{node.lineno}", node


def text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def named(call: ast.Call) -> tuple[str | None, list[str]]:
    """The relation of a call, and the columns that it names literally."""
    function = call.func.id if isinstance(call.func, ast.Name) else ""
    given = call.args if function == "selection" else call.args[1:]
    columns = [keyword.arg for keyword in call.keywords if keyword.arg not in (None, *OPTIONS)]
    if function == "save":
        rows = given[1] if len(given) > 1 else None
        keys = rows.keys if isinstance(rows, ast.Dict) else []
        return text(given[0]), [*columns, *(each for key in keys if (each := text(key)))]
    options = {keyword.arg: text(keyword.value) for keyword in call.keywords}
    listed = [options.get("columns"), options.get("order")]
    if function == "read_value":
        listed.append(text(given[1]))
    for each in listed:
        columns += [name.removeprefix("-") for name in (each or "").split(", ") if name]
    return text(given[0]), columns


def known(relation: str) -> set[str]:
    """The documented columns of a relation, and `market`, by which stocks are looked up."""
    return {column.name for column in selection(relation).selected_columns} | {"market"}


def test_every_relation_and_column_that_the_product_names_exists() -> None:
    found = list(calls())
    assert len(found) > 100
    for place, call in found:
        relation, columns = named(call)
        if relation is None:
            continue
        assert relation in tables.metadata.tables or relation in views(), place
        unknown = set(columns) - known(relation)
        assert not unknown, f"{place}: {relation} has no {unknown}"


def test_a_table_that_the_product_saves_says_how_it_is_written() -> None:
    for place, call in calls():
        relation, _ = named(call)
        if isinstance(call.func, ast.Name) and call.func.id == "save" and relation is not None:
            assert "written" in tables.metadata.tables[relation].info, place


def test_a_wrong_name_is_found() -> None:
    call = ast.parse('read_row(conn, "night_log", order="-asof")', mode="eval").body
    assert isinstance(call, ast.Call)
    assert named(call) == ("night_log", ["asof"])
    assert "asof" not in known("night_log")
    with pytest.raises(KeyError, match="asof"):
        selection("night_log", order="-asof")
