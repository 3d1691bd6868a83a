"""What the columns of a file mean: those of a dialect, our own, or what a market's file names.

A dialect is recognised by its headers, and never guessed between two.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


UNNAMED = ("", "__index_level_0__", "unnamed:_0")  # what pandas calls a column of dates without one
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
    - dialect: the layout of others that was recognised, None for our own;
    - dates: formats of its dates, as `dates.days_of` takes them;
    - volume_unit: shares in a unit of volume;
    - numbers: how they are written; has_decimal says whether a market's file says so.
    """

    header: Sequence[str]
    columns: Mapping[str, int]
    dialect: Dialect | None
    dates: tuple[str, ...]
    volume_unit: float
    numbers: NumberFormat
    has_decimal: bool

    @property
    def has_closes_alone(self) -> bool:
        """Say whether the file has closes and no open, high or low."""
        return "close" in self.columns and not set(BESIDES_CLOSE) & self.columns.keys()

    def header_of(self, field: str) -> str:
        """Return the header of a column, as the file writes it."""
        return self.header[self.columns[field]]

    def position(self, *headers: str) -> int | None:
        """Return the position of the first of these headers that the file has."""
        keys = [header_key(name) for name in self.header]
        return next((keys.index(header) for header in headers if header in keys), None)

    def left_out(self) -> dict[str, str]:
        """Return the headers that seem to be a column which the file lacks, with that column."""
        used = set(self.columns.values())
        found = {}
        for position, name in enumerate(self.header):
            field = other_names().get(header_key(name))
            if position not in used and field is not None and field not in self.columns:
                found[name] = field
        return found


def layout_of(header: Sequence[str], stated: Columns, place: Path) -> Layout:
    """Return what the columns of a file mean.

    What a market's file states in [columns], `stated`, goes before what is recognised. Raises
    UsageError, which names the file `place`, for two columns of one meaning, for a missing column
    that is stated or that the dialect needs, and for the columns of two dialects unless [columns]
    names columns.
    """
    known = _recognised(header, stated, place)
    of_header = dict(NAMES)
    keys = [header_key(name) for name in header]
    if known is not None:
        lacking = [name.upper() for name in known.needs if name not in keys]
        if lacking:
            raise UsageError(
                f"{place}: it looks like a file of {known.title} but lacks {', '.join(lacking)}, "
                "which every bar needs: download it again with these columns"
            )
        of_header |= known.fields
    columns = {}
    for name, written in stated.headers.items():
        key = header_key(written)
        if key not in keys:
            raise UsageError(
                f"{place}: [columns] in the market's file has {name} = {written!r}, but this file "
                f"has no such column; its columns are {header_words(header)}: correct that entry, "
                "or rename the column in the file"
            )
        columns["session" if name == "date" else name] = keys.index(key)
    stated_fields = set(columns)
    for position, name in enumerate(header):
        field = of_header.get(header_key(name))
        # A field that the market's file states is not looked for in another column, and the column
        # that it names for a field has no other meaning.
        if field is None or field in stated_fields or position in columns.values():
            continue
        if field in columns:
            earlier = header[columns[field]]
            raise UsageError(
                f"{place}: columns {earlier[:LONGEST]!r} and {name[:LONGEST]!r} "
                f"both mean {_word(field)}; keep one"
            )
        columns[field] = position
    numbers = NumberFormat() if known is None else known.numbers
    if stated.decimal is not None:
        numbers = replace(numbers, decimal=stated.decimal)
    if stated.thousands is not None:
        numbers = replace(numbers, thousands=stated.thousands)
    return Layout(
        header=header,
        columns=columns,
        dialect=known,
        dates=_dates(known, stated),
        volume_unit=_volume_unit(known, stated),
        numbers=numbers,
        has_decimal=stated.decimal is not None,
    )


def _recognised(header: Sequence[str], stated: Columns, place: Path) -> Dialect | None:
    """Return the dialect of a header; UsageError for two unless the market's file names columns."""
    try:
        return recognised(header, place)
    except UsageError:
        if stated.headers:  # they say what the columns mean
            return None
        raise


def _dates(known: Dialect | None, stated: Columns) -> tuple[str, ...]:
    if stated.date_format is not None:
        return (stated.date_format,)
    if known is None or not known.dates:
        return ()
    return (*known.dates, ISO)  # people write dates anew as pandas does


def _volume_unit(known: Dialect | None, stated: Columns) -> float:
    if stated.volume_unit is not None:
        return stated.volume_unit
    return 1.0 if known is None else known.volume_unit


def require(layout: Layout, place: Path, *fields: str) -> None:
    """Raise UsageError if one of `fields` is missing, or a header of our own layout is misspelt."""
    if layout.dialect is None:
        used = set(layout.columns.values())
        headers = {
            header_key(name): name
            for position, name in enumerate(layout.header)
            if position not in used
        }
        unknown = {key: name for key, name in headers.items() if key not in NAMES}
        missing = [_word(name) for name in BAR_COLUMNS if name not in layout.columns]
        for name in missing:
            for near in get_close_matches(name, unknown, n=1, cutoff=MISSPELT):  # one or none
                raise UsageError(
                    f"{place}: there is no column {name}: if {unknown[near]!r} is that column, "
                    f"rename it to {name}; if not, remove it or give it another name"
                )
    missing = [name for name in fields if name not in layout.columns]
    if not missing:
        return
    lacking = ", ".join(_word(name) for name in missing)
    has_dates_only = {"close", "symbol"} <= set(missing) and "session" in layout.columns
    may_be_wide = has_dates_only and len(layout.header) > 2
    noun, pronoun, which = ("column", "it", "column it is")
    if len(missing) > 1:
        noun, pronoun, which = ("columns", "them", "columns they are")
    advice = (
        f"; add {pronoun}, or say in the market's file which {which}, such as "
        f'[columns] {_word(missing[0])} = "..."'
    )
    if "symbol" in missing:
        advice += (
            "; a file of one stock needs no symbol if it is named after the stock and its folder "
            "is given"
        )
    if may_be_wide:
        advice += WIDE
    if missing == ["symbol"]:
        advice = (
            "; add that column, say in the market's file which column it is, such as "
            '[columns] symbol = "...", or, if the file holds one stock, name it after the stock '
            "and give its folder"
        )
    raise UsageError(
        f"{place}: missing {noun} {lacking}; found {header_words(layout.header)}{advice}"
    )


def is_wide(header: Sequence[str], dates: int | None) -> bool:
    """Say whether a table has a column of closes for each of two stocks or more.

    Its headers are then the date's and symbols: none is the name of something of a stock.
    """
    if dates is None or len(header) < 3:
        return False
    others = [header_key(name) for position, name in enumerate(header) if position != dates]
    are_names = all(others) and len(set(others)) == len(others)
    return are_names and not field_headers() & set(others)


def is_no_price_table(layout: Layout) -> bool:
    """Say whether a table has neither dates nor closes, as a list of names has."""
    return "session" not in layout.columns and "close" not in layout.columns


def header_words(header: Sequence[str]) -> str:
    """Return the names of columns on one line, whatever they hold."""
    return shorten(", ".join(header), MOST_NAMES, placeholder=" ...")


def shown(value: object) -> str:
    """Return a value as errors show it: the beginning of a long one."""
    written = repr(value)
    return written if len(written) <= LONGEST else f"{written[:LONGEST]}..."


def _word(name: str) -> str:
    """Return the name of a column as errors write it."""
    return "date" if name == "session" else name
