"""The layouts of price files that are known: `dialects.toml`, a table each.

A layout is recognised by its headers, and never guessed between two.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dtml.errors import UsageError
from dtml.prices.bars import BAR_COLUMNS
from dtml.sources.files.cells import NumberFormat

FILE = Path(__file__).with_name("dialects.toml")
OTHER_NAMES = "other_names"
# Our own headers, in any case, where blanks stand for underscores.
NAMES = {
    **{name: name for name in BAR_COLUMNS},
    "ticker": "symbol",
    "date": "session",
    "datetime": "session",
    "adjclose": "adj_close",
    "dividends": "dividend",
    "splits": "split",
    "stock_splits": "split",
}


@dataclass(frozen=True)
class Dialect:
    """A layout of price files; `dialects.toml` explains each entry."""

    name: str
    title: str
    signature: frozenset[str]
    without: frozenset[str]
    columns: Mapping[str, tuple[str, ...]]
    dates: tuple[str, ...]
    volume_unit: float
    numbers: NumberFormat
    absolute: bool
    divisor: str | None
    volume_factor: tuple[str, ...]
    copies: Mapping[str, str]
    only: Mapping[str, str]
    identity: str | None
    needs: tuple[str, ...]
    encodings: tuple[str, ...]
    file_prefixes: tuple[str, ...]
    file_suffix: str
    remark: str
    example: str

    @property
    def fields(self) -> dict[str, str]:
        """Return our column for each header that this layout names otherwise than we do."""
        return {header: field for field, headers in self.columns.items() for header in headers}


def header_key(column: str) -> str:
    """Return a header as it is compared: in lower case, with _ for a blank."""
    return column.strip().lower().replace(" ", "_")


def dialect(name: str) -> Dialect:
    """Return the layout of a name in `dialects.toml`."""
    return next(entry for entry in dialects() if entry.name == name)


def recognised(header: Sequence[str], place: Path) -> Dialect | None:
    """Return the layout in `dialects.toml` to which these headers belong; None if to none.

    They must contain the layout's `signature`, and none of the headers that it is `without`. A
    layout without a signature is recognised by its shape elsewhere. Raises UsageError, which names
    the file `place`, where they belong to two layouts.
    """
    keys = {header_key(name) for name in header}
    known = [
        entry
        for entry in dialects()
        if entry.signature and entry.signature <= keys and not entry.without & keys
    ]
    if len(known) > 1:
        shared = frozenset.intersection(*(entry.signature for entry in known))
        layouts = []
        for entry in known:
            own = [name for name in header if header_key(name) in entry.signature - shared]
            layouts.append(f"{entry.title} ({', '.join(own)})")
        raise UsageError(
            f"{place}: the columns fit {' and '.join(layouts)}: remove the columns in brackets of "
            "all but one layout, or rename each to what it holds: date, symbol, open, high, low, "
            "close, adj_close, volume, dividend or split"
        )
    return known[0] if known else None


@cache
def dialects() -> tuple[Dialect, ...]:
    """Return all layouts, in the order of the file."""
    tables = _tables()
    return tuple(_dialect(name, tables[name]) for name in tables if name != OTHER_NAMES)


@cache
def other_names() -> dict[str, str]:
    """Return our column by each other header for it: those of all dialects and of `OTHER_NAMES`."""
    known: dict[str, str] = {}
    for entry in dialects():
        known.update(entry.fields)
    for field, headers in _tables()[OTHER_NAMES].items():
        if field != "fields":
            known.update(dict.fromkeys(headers, field))
    return known


@cache
def field_headers() -> frozenset[str]:
    """Return all headers that name something of a stock, so that none is a stock's symbol."""
    fields = _tables()[OTHER_NAMES]["fields"]
    signatures = [header for entry in dialects() for header in entry.signature]
    return frozenset([*NAMES, *other_names(), *fields, *signatures])


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _dialect(name: str, table: Mapping[str, Any]) -> Dialect:
    """Return a table of `dialects.toml` as a layout; only its title and example are required."""
    columns = table.get("columns", {})
    return Dialect(
        name=name,
        title=table["title"],
        signature=frozenset(table.get("signature", ())),
        without=frozenset(table.get("without", ())),
        columns={field: _several(headers) for field, headers in columns.items()},
        dates=tuple(table.get("dates", ())),
        volume_unit=float(table.get("volume_unit", 1)),
        numbers=NumberFormat(
            decimal=table.get("decimal", "."),
            thousands=table.get("thousands", ""),
            signs=table.get("signs", ""),
            blank=tuple(table.get("blank", ())),
        ),
        absolute=table.get("absolute", False),
        divisor=table.get("divisor"),
        volume_factor=_several(table.get("volume_factor", ())),
        copies=table.get("copies", {}),
        only=table.get("only", {}),
        identity=table.get("identity"),
        needs=tuple(table.get("needs", ())),
        encodings=tuple(table.get("encodings", ())),
        file_prefixes=tuple(table.get("file_prefixes", ())),
        file_suffix=table.get("file_suffix", ""),
        remark=table.get("remark", ""),
        example=table["example"].removeprefix("\n"),
    )


def _several(headers: str | Sequence[str]) -> tuple[str, ...]:
    return (headers,) if isinstance(headers, str) else tuple(headers)
