"""What the columns of a file mean: those of a dialect, our own, or what a market's file names.

A dialect is recognised by its headers, never guessed.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from dtml.errors import UsageError
from dtml.markets.definition import Columns
from dtml.prices.bars import BAR_COLUMNS
from dtml.sources.files.cells import ISO, NumberFormat

FILE = Path(__file__).with_name("dialects.toml")
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
    """A layout of price files; `dialects.toml` explains each entry. Our own has no title."""

    title: str = ""
    example: str = ""
    signature: Sequence[str] = ()
    without: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    dates: Sequence[str] = ()
    volume_unit: float = 1
    numbers: NumberFormat = field(default_factory=NumberFormat)
    absolute: bool = False
    divisor: str = ""
    volume_factor: Sequence[str] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""
    needs: Sequence[str] = ()
    encodings: Sequence[str] = ()
    beside_symbol: str = ""
    remark: str = ""


OUR_OWN = Dialect()


def header_key(column: str) -> str:
    """Return a header as it is compared: in lower case, with _ for a blank."""
    return column.strip().lower().replace(" ", "_")


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def dialects() -> dict[str, Dialect]:
    """Return all layouts of others by their names, in the order of the file."""
    return {
        name: Dialect(**{**entry, "numbers": NumberFormat(**entry.get("numbers", {}))})
        for name, entry in _tables()["dialects"].items()
    }


@cache
def other_names() -> dict[str, str]:
    """Return our column by each header for it that is not our own."""
    known: dict[str, str] = {}
    for dialect in dialects().values():
        known.update(dialect.columns)
    known.update(_tables()["other_names"])
    return known


def recognised(header: Sequence[str], place: Path) -> Dialect:
    """Return the layout to which these headers belong, else our own.

    They contain its `signature` and nothing that it is `without`. Raises UsageError where two fit.
    """
    keys = {header_key(name) for name in header}
    known = [
        dialect
        for dialect in dialects().values()
        if dialect.signature and keys.issuperset(dialect.signature)
        if keys.isdisjoint(dialect.without)
    ]
    if len(known) > 1:
        shared = set.intersection(*(set(dialect.signature) for dialect in known))
        layouts = []
        for dialect in known:
            own = [name for name in header if header_key(name) in {*dialect.signature} - shared]
            layouts.append(f"{dialect.title} ({', '.join(own)})")
        raise UsageError(
            f"{place}: the columns fit {' and '.join(layouts)}: remove the columns in brackets of "
            "all but one layout, or rename each to what it holds: date, symbol, open, high, low, "
            "close, adj_close, volume, dividend or split"
        )
    return known[0] if known else OUR_OWN


WIDE = (
    "; if each column has the closes of one stock, write one row per date and stock instead, "
    "with the columns date, symbol, open, high, low and close"
)
BESIDES_CLOSE = ("open", "high", "low")
LONGEST = 80  # characters of a value that an error shows
MOST_NAMES = 300  # characters of column names that an error shows
MISSPELT = 0.75  # difflib's similarity, from 0 to 1, from which a name is another one misspelt


@dataclass(frozen=True)
class Layout:
    """What the columns of a file mean.

    - header: as the file writes it;
    - columns: the position of each of `BAR_COLUMNS` that the file has;
    - dialect: with what the market's file states.
    """

    header: Sequence[str]
    columns: Mapping[str, int]
    dialect: Dialect

    @property
    def has_closes_alone(self) -> bool:
        """Say whether the file has closes and no open, high or low."""
        return "close" in self.columns and not set(BESIDES_CLOSE) & self.columns.keys()

    @property
    def has_prices(self) -> bool:
        """Say whether the file has dates or closes, as a list of names has not."""
        return not self.columns.keys().isdisjoint(("session", "close"))

    @property
    def held(self) -> set[str]:
        """Return our columns that the file has, or to which its dialect copies another."""
        return {*self.columns, *self.dialect.copies}

    def unused(self) -> list[str]:
        """Return the headers of columns that are not read."""
        used = set(self.columns.values())
        return [name for position, name in enumerate(self.header) if position not in used]

    def left_out(self) -> dict[str, str]:
        """Return the headers that seem to be a column which the file lacks, with that column."""
        seeming = {name: other_names().get(header_key(name)) for name in self.unused()}
        return {name: ours for name, ours in seeming.items() if ours and ours not in self.columns}

    def is_wide(self) -> bool:
        """Say whether the headers are dates and two or more symbols, each of a column of closes."""
        signatures = {header for dialect in dialects().values() for header in dialect.signature}
        fields = {*NAMES, *other_names(), *_tables()["fields"]["names"], *signatures}
        dates = self.columns.get("session")
        others = [
            header_key(name) for position, name in enumerate(self.header) if position != dates
        ]
        are_symbols = len(others) > 1 and all(others) and len(set(others)) == len(others)
        has_no_close = dates is not None and "close" not in self.columns
        return has_no_close and are_symbols and fields.isdisjoint(others)

    def require(self, place: Path, *fields: str) -> None:
        """Raise UsageError where one of `fields` is missing, or one of our headers is misspelt."""
        lacking = [_word(name) for name in BAR_COLUMNS if name not in self.columns]
        unknown = {header_key(name): name for name in self.unused()}
        unknown = {key: name for key, name in unknown.items() if key not in NAMES}
        for name in lacking if self.dialect.title == "" else []:
            for near in get_close_matches(name, unknown, n=1, cutoff=MISSPELT):  # one or none
                raise UsageError(
                    f"{place}: there is no column {name}: if {unknown[near]!r} is that column, "
                    f"rename it to {name}; if not, remove it or give it another name"
                )
        missing = [_word(name) for name in fields if name not in self.columns]
        if not missing:
            return
        advice = (
            "; add what is missing, or say in the market's file which column it is, such as "
            f'[columns] {missing[0]} = "..."'
        )
        if "symbol" in missing:
            advice += (
                "; a file of one stock needs no symbol if it is named after the stock and its "
                "folder is given"
            )
        if missing == ["close", "symbol"] and len(self.header) > 2:
            advice += WIDE
        noun = "column" if len(missing) == 1 else "columns"
        raise UsageError(
            f"{place}: missing {noun} {', '.join(missing)}; found {_words(self.header)}{advice}"
        )


def layout_of(header: Sequence[str], stated: Columns, place: Path) -> Layout:
    """Return what the columns of a file mean; what [columns] of a market's file states goes first.

    Raises UsageError for two columns of one meaning, a missing one, and columns of two dialects.
    """
    try:
        dialect = recognised(header, place)
    except UsageError:
        if not stated.headers:
            raise
        dialect = OUR_OWN  # the market's file says what the columns mean
    keys = [header_key(name) for name in header]
    lacking = [name.upper() for name in dialect.needs if name not in keys]
    if lacking:
        raise UsageError(
            f"{place}: it looks like a file of {dialect.title} but lacks {', '.join(lacking)}, "
            "which every bar needs: download it again with these columns"
        )
    columns = {}
    for name, written in stated.headers.items():
        key = header_key(written)
        if key not in keys:
            raise UsageError(
                f"{place}: [columns] in the market's file has {name} = {written!r}, but this file "
                f"has no such column; its columns are {_words(header)}: correct that entry, or "
                "rename the column in the file"
            )
        columns["session" if name == "date" else name] = keys.index(key)
    stated_fields = set(columns)
    for position, key in enumerate(keys):
        ours = dialect.columns.get(key, NAMES.get(key))
        # A field that the market's file states is not looked for in another column, and the column
        # that it names for a field has no other meaning.
        if ours is None or ours in stated_fields or position in columns.values():
            continue
        if ours in columns:
            raise UsageError(
                f"{place}: columns {header[columns[ours]][:LONGEST]!r} and "
                f"{header[position][:LONGEST]!r} both mean {_word(ours)}; keep one"
            )
        columns[ours] = position
    return Layout(header, columns, _as_stated(dialect, stated))


def _as_stated(dialect: Dialect, stated: Columns) -> Dialect:
    """Return a dialect with what a market's file says of dates, volumes and numbers."""
    dates: tuple[str, ...] = ()
    if stated.date_format is not None:
        dates = (stated.date_format,)
    elif dialect.dates:
        dates = (*dialect.dates, ISO)  # people write dates anew as pandas does
    numbers = replace(
        dialect.numbers,
        decimal=stated.decimal or dialect.numbers.decimal,
        thousands=stated.thousands or dialect.numbers.thousands,
    )
    volume_unit = stated.volume_unit or dialect.volume_unit
    return replace(dialect, dates=dates, numbers=numbers, volume_unit=volume_unit)


def _words(header: Sequence[str]) -> str:
    """Return the names of columns on one line, whatever they hold."""
    return shorten(", ".join(header), MOST_NAMES, placeholder=" ...")


def _word(name: str) -> str:
    """Return the name of a column as errors write it."""
    return "date" if name == "session" else name
