"""Definitions: TOML files of which each table is a pydantic dataclass.

A mistake is one line: the file, the key, what is expected there and what was found.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic.dataclasses import dataclass

T = TypeVar("T")

# What is expected, by the type of pydantic's error, where its own words are none of a file's.
EXPECTED = {
    "bool_type": "true or false",
    "dataclass_type": "a table",
    "date_from_datetime_inexact": "a date without a time, such as 2026-01-20",
    "date_from_datetime_parsing": "a date such as 2026-01-20",
    "date_type": "a date without quotes, such as 2026-01-20",
    "dict_type": "a table",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_type": "a whole number",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "string_type": "text in quotes",
    "too_long": "at most {max_length} {items}",
    "too_short": "{min_length} {items} or more",
    "tuple_type": "a list",
}
MISSING = ("missing", "missing_argument")  # the latter of a named tuple
STRICT = ConfigDict(extra="forbid")


class DefinitionError(ValueError):
    """A mistake that a validator of a table finds at one of its keys."""

    def __init__(self, key: str, complaint: str) -> None:
        super().__init__(complaint)
        self.key = key


class UnknownKeyError(DefinitionError):
    """A key that a table does not have."""


def refuse_unknown(values: object, known: Collection[str]) -> None:
    """Raise UnknownKeyError for a key of a table that is not a known one."""
    for key in values if isinstance(values, dict) else ():
        if key not in known:
            listed = ", ".join(known)
            raise UnknownKeyError(key, f"unknown key{nearest(key, known)}; use one of {listed}")


@dataclass(frozen=True, config=STRICT)
class Definition:
    """A table of a file, in which every key is known."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        refuse_unknown(values, [each.name for each in fields(cls)])
        return values


def checked_settings(
    config: type, values: dict[str, Any], left_out: Collection[str] = (), **more: Any
) -> None:
    """Check that keys of a table are fields of a configuration, or `more`; any may be left out."""
    types = {name: kind for name, kind in get_type_hints(config).items() if name not in left_out}
    types |= more
    refuse_unknown(values, types)
    optional: Any = {name: (kind, None) for name, kind in types.items()}
    strict = ConfigDict(strict=True, allow_inf_nan=False)
    create_model("Settings", __config__=strict, **optional).model_validate(values)


def must(hold: Callable[[Any], object], expected: str) -> AfterValidator:
    """Return a validator of values for which something must hold: these are `expected`."""

    def validated(value: T) -> T:
        if not hold(value):
            raise ValueError(f"expected {expected}, got {shown(value)}")
        return value

    return AfterValidator(validated)


def _beside_the_file(value: Any, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a path in quotes, got {shown(value)}")
    return Path(info.context or ".") / value


def one_of(words: Collection[str]) -> AfterValidator:
    """Return a validator of text that is one of these words."""

    def known(text: str) -> str:
        if text not in words:
            listed = ", ".join(sorted(words))
            raise ValueError(f"unknown {shown(text)}{nearest(text, words)}; use one of {listed}")
        return text

    return AfterValidator(known)


PRINTABLE = must(
    lambda text: text.isprintable() and text.strip(), "printable text that is not blank"
)
Text = Annotated[str, Strict(), PRINTABLE]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), AllowInfNan(False)]
Count = Annotated[Whole, Field(ge=1)]
Positive = Annotated[Number, Field(gt=0)]
Flag = Annotated[bool, Strict()]
Day = Annotated[date, Strict()]
# A relative path begins at the folder of the file.
FilePath = Annotated[Path, BeforeValidator(_beside_the_file)]


def parse(file: Path, text: str | None, error: Callable[[str], Exception]) -> dict[str, Any]:
    """Return the contents of a TOML file, or of its `text`; raises `error` if that cannot be."""
    try:
        if text is None:
            # Windows editors may put a byte order mark first, which TOML does not allow.
            text = file.read_text(encoding="utf-8-sig")
        return tomllib.loads(text)
    except OSError as problem:
        raise error(
            f"{file}: cannot read the file: {problem.strerror or problem}; check its path and "
            "permissions"
        ) from problem
    except UnicodeDecodeError as problem:
        raise error(
            f"{file}: the file is not UTF-8 text: byte {problem.start}; save it as UTF-8"
        ) from problem
    # Invalid TOML and a number of 5,000 digits raise ValueError, deep nesting RecursionError.
    except (ValueError, RecursionError) as problem:
        raise error(f"{file}: the file is not TOML: {problem}; correct it there") from problem


def checked(
    kind: type[T], values: Mapping[str, Any], file: Path, error: Callable[[str], Exception]
) -> T:
    """Return the contents of a file as its definition; raise `error` for the first mistake."""
    try:
        return TypeAdapter(kind).validate_python(values, context=file.parent)
    except ValidationError as problem:
        raise error(f"{file}: {mistake(problem, values)}") from problem


def mistake(problem: ValidationError, values: Mapping[str, Any]) -> str:
    """Say in one line what is wrong in a table: the key, what is expected, and what it has.

    An unknown key first: another may be missing for it.
    """
    found = [
        (_key(error, values), error.get("ctx", {}).get("error"), error)
        for error in problem.errors()
    ]
    # An alternative of a value has errors of its own; one deeper in the value is of the one meant,
    # and so is one that our own validators raise.
    key, own, error = max(
        found,
        key=lambda each: (
            isinstance(each[1], UnknownKeyError),
            len(each[0]),
            each[1] is not None,
        ),
    )
    name = ".".join(key).replace(".[", "[")
    if own is not None:
        return f"{name}: {own}"
    if error["type"] in MISSING:
        return f"{name}: missing; add this key"
    alternatives = [other for other_key, _, other in found if other_key == key]
    if not all(other["type"].endswith(("_type", "literal_error")) for other in alternatives):
        # One has the type of the value; those of other types were not meant.
        alternatives = [other for other in alternatives if not other["type"].endswith("_type")]
    expected = " or ".join(dict.fromkeys(map(expectation, alternatives)))
    value = error["input"]
    hint = nearest(str(value), re.findall("'(.*?)'", expected))
    return f"{name}: expected {expected}{hint}, got {shown(value)}"


def expectation(error: Any) -> str:
    """Return what is expected in place of a value, by pydantic's error."""
    if error["type"] in EXPECTED:
        bounds = error.get("ctx", {})
        items = "item" if 1 in (bounds.get("min_length"), bounds.get("max_length")) else "items"
        return EXPECTED[error["type"]].format(**bounds, items=items)
    return str(error["msg"]).removeprefix("Input should be ")


def _key(error: Any, values: Any) -> list[str]:
    """Return the key of an error as the file has it, without pydantic's alternatives of a value."""
    parts = []
    for part in error["loc"]:
        if isinstance(part, int) and isinstance(values, list):
            parts.append(f"[{part + 1}]")
            values = values[part]
        elif isinstance(values, dict) and part in values:
            parts.append(part)
            values = values[part]
    own = error.get("ctx", {}).get("error")
    if error["type"] in MISSING:
        parts.append(error["loc"][-1])
    elif isinstance(own, DefinitionError):
        parts.append(own.key)
    # A quoted key may hold anything, line breaks too.
    return [part if part.isprintable() else repr(part) for part in parts]


def shown(value: object) -> str:
    """Return a value as errors quote it, at most 60 characters."""
    # Dates and times as TOML has them, not as Python calls them.
    text = str(value) if isinstance(value, date | time) else repr(value)
    if isinstance(value, list):
        text = f"[{', '.join(map(shown, value))}]"
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest(word: str, choices: Collection[str]) -> str:
    """Return a hint at the choice most like a word; empty where none is like it."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f", perhaps {near[0]}" if near else ""
