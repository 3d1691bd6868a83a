"""The keys of a market's file as a Markdown table, made of the classes that check them.

`python -m tests.support.keys_of_files` prints it, for `dtml/README.md`.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any, get_args

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dtml.markets.definition import Columns, MarketFile, ModelSettings
from translation.definitions import Definition

BOUNDS = {
    "exclusiveMinimum": "above {:g}",
    "minimum": "{:g} or more",
    "exclusiveMaximum": "below {:g}",
    "maximum": "at most {:g}",
    "minItems": "at least {:g}",
}
TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "table",
}


def table_of_keys() -> str:
    """The table: the keys of the file, then those of each of its tables.

    Keys that follow each other with the same cells share a row.
    """
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for cells, keys in groupby(_rows(MarketFile, ""), key=lambda row: row[1]):
        listed = ", ".join(f"`{key}`" for key, _ in keys)
        lines.append(f"| {listed} | {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(lines)


def _rows(table: type[Definition], prefix: str) -> Iterator[tuple[str, tuple[str, str, str]]]:
    meanings = _meanings(table)
    inner: list[tuple[str, type[Definition]]] = []
    for name, field in table.__pydantic_fields__.items():
        found = ModelSettings if name == "model" else _table_in(field.annotation)
        if found is not None:
            inner.append((f"{prefix}{name}.", found))
        if found is None or name == "symbols":
            default = "" if "Default: " in meanings.get(name, "") else _default(field)
            yield f"{prefix}{name}", (_value(field), default, meanings.get(name, ""))
    for place, found in inner:
        if prefix and found is Columns:
            yield place.removesuffix("."), ("table", "", "The layout of its files, as `columns`.")
        else:
            yield from _rows(found, place)


def _meanings(table: type[Definition]) -> dict[str, str]:
    """The texts below the fields of a class and of the tables that it extends."""
    told: dict[str, str] = {}
    for each in reversed(table.__mro__):
        if each is Definition or not issubclass(each, Definition):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                told[ast.unparse(field.target)] = ast.literal_eval(text.value)
    return told


def _table_in(annotation: Any) -> type[Definition] | None:
    if isinstance(annotation, type) and issubclass(annotation, Definition):
        return annotation
    found = (_table_in(each) for each in get_args(annotation))
    return next((each for each in found if each is not None), None)


def _value(field: FieldInfo) -> str:
    annotated: Any = field.annotation
    for each in field.metadata:
        annotated = Annotated[annotated, each]
    schema = TypeAdapter(annotated).json_schema()
    return _words(schema, schema.get("$defs", {}))


def _words(schema: Mapping[str, Any], tables: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        schema = tables[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        each = [_words(part, tables) for part in schema["anyOf"] if part.get("type") != "null"]
        return ", or ".join(each)
    kind = schema["type"]
    if "prefixItems" in schema:  # a rate
        return "tables such as `{ since = 2026-01-20, rate = 1.5 }`"
    if kind == "array":
        words = f"list of: {_words(schema['items'], tables)}"
    else:
        words = schema.get("format") or TYPES[kind]
    bounds = [text.format(schema[name]) for name, text in BOUNDS.items() if name in schema]
    return ", ".join([words, *bounds])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default in (None, PydanticUndefined, (), ""):
        return ""
    default = field.default
    if isinstance(default, tuple):
        return ", ".join(f"`{each}`" for each in default)
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    print(table_of_keys())  # noqa: T201
