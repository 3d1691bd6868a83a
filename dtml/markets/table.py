"""A table of a market's file: its values by key, each with a check that names file and key."""

import difflib
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

from dtml.errors import UsageError

T = TypeVar("T")
D = TypeVar("D")

_WORDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    date: "a date without quotes such as 2026-01-20",
}


@dataclass(frozen=True)
class Table:
    """One TOML table with its file and key, so that every error can name both.

    `prefix` is the key of the table with a point, such as "trading."; empty for the whole file.
    """

    path: Path
    prefix: str
    values: dict[str, object]

    def error(self, key: str, complaint: str) -> UsageError:
        """Return the error of a key, with its file: `my.toml: trading.lot: complaint`."""
        # A quoted key may hold anything, line breaks too.
        name = key if key.isprintable() else repr(key)
        return UsageError(f"{self.path}: {self.prefix}{name}: {complaint}")

    def allow(self, *keys: str) -> None:
        """Raise for a key that is not one of these."""
        for key in self.values:
            if key not in keys:
                nearest = _nearest(key, keys)
                raise self.error(key, f"unknown key{nearest}; use one of {', '.join(keys)}")

    def required(self, key: str, kind: type[T], wanted: str | None = None) -> T:
        """Return the value of a required key, checked to be of a kind.

        The error of a missing key asks for what `wanted` says, by default for a value of the kind.
        """
        if key not in self.values:
            raise self.error(key, f"missing; give {wanted or _WORDS.get(kind, 'a value')}")
        return self.typed(key, kind)

    def optional(self, key: str, kind: type[T], default: D) -> T | D:
        """Return the value of a key, checked to be of a kind, or else the default."""
        return self.typed(key, kind) if key in self.values else default

    def typed(self, key: str, kind: type[T]) -> T:
        """Return the value of an existing key, checked to be of a kind.

        A text must be printable, on one line, and not blank. A whole number such as 3 is also a
        float, and returned as one.
        """
        value = self.values[key]
        if not is_a(value, kind):
            raise self.error(key, f"expected {_WORDS[kind]}, got {shown(value)}")
        is_blank = isinstance(value, str) and not value.strip()
        is_unprintable = isinstance(value, str) and not value.isprintable()
        if is_blank or is_unprintable:
            raise self.error(key, f"expected printable text that is not blank, got {shown(value)}")
        if kind is float:  # TOML reads 3 as a whole number
            try:
                value = float(cast(float, value))
            except OverflowError as problem:  # of more than about 300 digits
                raise self.error(
                    key, f"expected a number of at most 308 digits, got {shown(value)}"
                ) from problem
        return cast(T, value)

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return one of the words that a key may have; without a default the key is required."""
        if default is not None and key not in self.values:
            return default
        words = sorted(choices)
        if key not in self.values:
            raise self.error(key, f"missing; use one of {', '.join(words)}")
        value = self.typed(key, str)
        if value not in words:
            nearest = _nearest(value, words)
            raise self.error(key, f"unknown {shown(value)}{nearest}; use one of {', '.join(words)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty where the key is missing."""
        values: Any = self.values.get(key, [])
        self._require_list(key, values, str, 'strings such as ["A", "B"]')
        return tuple(values)

    def dates(self, key: str) -> tuple[date, ...]:
        """Return a list of dates, ascending and each once; empty where the key is missing."""
        values: Any = self.values.get(key, [])
        self._require_list(key, values, date, "dates without quotes such as [2026-01-20]")
        self.require_ascending(key, values)
        return tuple(values)

    def _require_list(self, key: str, values: Any, kind: type, wanted: str) -> None:
        """Raise for a value that is no list, and for the first item that is not of a kind."""
        if not isinstance(values, list):
            raise self.error(key, f"expected a list of {wanted}, got {shown(values)}")
        for place, value in enumerate(values, start=1):
            if not is_a(value, kind):
                raise self.error(
                    key, f"expected a list of {wanted}, but item {place} is {shown(value)}"
                )

    def require_ascending(self, key: str, days: Sequence[date]) -> None:
        """Raise for the first of a key's dates that is not after the date listed before it."""
        for before, day in pairwise(days):
            if day <= before:
                raise self.error(
                    key, f"{day} is listed after {before}; list each date once, the earliest first"
                )

    def subtable(self, key: str) -> "Table":
        """Return the table of a key, empty where it is missing."""
        values = self.values.get(key, {})
        if not isinstance(values, dict):
            raise self.error(key, f"expected a table [{self.prefix}{key}], got {shown(values)}")
        return Table(self.path, f"{self.prefix}{key}.", values)


def parse(path: Path, text: str | None) -> dict[str, object]:
    """Return the contents of a TOML file, or of its `text` where that is not None.

    Raises UsageError if the file cannot be read, or if it is not TOML.
    """
    try:
        if text is None:
            # Windows editors may put a byte order mark first, which TOML does not allow.
            text = path.read_text(encoding="utf-8-sig")
        return tomllib.loads(text)
    except OSError as problem:
        raise UsageError(
            f"{path}: cannot read the file: {problem.strerror or problem}; check its path and "
            "permissions"
        ) from problem
    except UnicodeDecodeError as problem:
        raise UsageError(
            f"{path}: the file is not UTF-8 text: byte {problem.start}; save it as UTF-8"
        ) from problem
    # Invalid TOML and a number of 5,000 digits raise ValueError, deep nesting RecursionError.
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{path}: the file is not TOML: {problem}; correct it there") from problem


def is_a(value: object, kind: type) -> bool:
    """Say whether a TOML value is of a kind; a whole number such as 3 is also a `float`."""
    # In Python, unlike here, True is a whole number and a date-time is a date.
    is_bool = isinstance(value, bool)
    if is_bool or kind is bool:
        return is_bool and kind is bool
    if isinstance(value, datetime):
        return False
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, kind)


def shown(value: object) -> str:
    """Return a value as errors quote it, at most 60 characters."""
    # Dates and times as TOML has them, not as Python calls them.
    text = str(value) if isinstance(value, date | time) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _nearest(word: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f", perhaps {near[0]}" if near else ""
