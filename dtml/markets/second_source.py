"""What a market's file says of a second source of its bars: the table [second_source]."""

from collections.abc import Collection
from pathlib import Path
from typing import cast, get_args

from dtml.markets.columns import read_columns
from dtml.markets.definition import (
    COMPARED_FIELDS,
    SYMBOL_RULE,
    SecondSource,
    SourceName,
    is_symbol,
)
from dtml.markets.table import Table

KEYS = (
    "source",
    "prices",
    "index",
    "symbols",
    "suffix",
    "fields",
    "price_unit",
    "seconds",
    "columns",
)
LONGEST = 6 * 3600  # seconds; a night must end before the next session


def read_second_source(table: Table, symbols: Collection[str]) -> SecondSource:
    """Read the table [second_source] of a market's file.

    Paths are relative to the market's file. `symbols` are those of the market, its index among
    them; empty where the market has no list. A mistake raises UsageError with its key.
    """
    table.allow(*KEYS)
    source = cast(SourceName, table.choice("source", get_args(SourceName)))
    prices = _path(table, "prices")
    index = _path(table, "index")
    if source == "files" and prices is None:
        raise table.error("prices", "missing; give the file or folder of the second source")
    if source != "files" and (prices or index):
        key = "prices" if prices else "index"
        raise table.error(
            key,
            f'the source "{source}" reads no files; delete prices and index, or set '
            'source = "files" and give prices',
        )
    return SecondSource(
        source=source,
        prices=prices,
        index=index,
        symbols=_symbols(table.subtable("symbols"), symbols),
        suffix=table.optional("suffix", str, None),
        fields=_fields(table),
        price_unit=_within(table, "price_unit", SecondSource.price_unit, float("inf")),
        seconds=_within(table, "seconds", SecondSource.seconds, LONGEST),
        columns=read_columns(table.subtable("columns")),
    )


def _path(table: Table, key: str) -> Path | None:
    if key not in table.values:
        return None
    return table.path.parent / table.typed(key, str)


def _symbols(table: Table, known: Collection[str]) -> dict[str, str]:
    """Return the second source's symbols by the market's, as the table pairs them.

    Raises UsageError for a symbol that is not among the `known` ones (of a market without a list,
    any may be paired), for one of the second source that is not valid, and where the table pairs
    two of the market's symbols with the same one.
    """
    names: dict[str, str] = {}
    for symbol in table.values:
        if known and symbol not in known:
            raise table.error(
                symbol, "the market does not list this symbol; correct or delete this key"
            )
        name = table.typed(symbol, str)
        if not is_symbol(name):
            raise table.error(symbol, f"{name!r} is not a valid symbol; use {SYMBOL_RULE}")
        for other, other_name in names.items():
            if other_name == name:
                raise table.error(symbol, f"{name!r} is also given for {other}; give each its own")
        names[symbol] = name
    return names


def _fields(table: Table) -> tuple[str, ...]:
    """Return the columns of a bar that are compared, all of them where the key is missing."""
    if "fields" not in table.values:
        return COMPARED_FIELDS
    listed = table.texts("fields")
    for name in listed:
        if name not in COMPARED_FIELDS:
            known = ", ".join(COMPARED_FIELDS)
            raise table.error("fields", f"unknown field {name!r}; use some of {known}")
    if not listed:
        raise table.error("fields", "the list is empty; list one field or more, or delete the key")
    return tuple(name for name in COMPARED_FIELDS if name in listed)


def _within(table: Table, key: str, default: float, most: float) -> float:
    """Return a number above 0 and at most `most`."""
    number = table.optional(key, float, default)
    if not 0 < number <= most or number == float("inf"):
        bound = "" if most == float("inf") else f" and at most {most}"
        raise table.error(key, f"expected a finite number above 0{bound}, got {number}")
    return number
