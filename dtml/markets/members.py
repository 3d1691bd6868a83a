"""A table of a market's members, which its file names: from which day to which each was one.

CSV with `symbol, since, until` and perhaps `renamed_to`; the market's `until` says whether a member
is one on that day.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as table_of

from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import SYMBOL_RULE, Constituent, Listed, Market, Symbol, is_symbol
from translation.definitions import STRICT, Definition, DefinitionError, mistake, shown

COLUMNS = ("symbol", "since", "until")
STORED = "stored"  # a table that only the store adds to a market's file


def _day(text: str) -> date:
    try:
        day = datetime.strptime(text, "%Y-%m-%d").date()  # noqa: DTZ007 - a date
    except ValueError:
        day = date.max
    if day == date.max:  # the day after it is no date
        raise ValueError(f"expected a date such as 2020-06-15, got {shown(text)}")
    return day


DayInWords = Annotated[date, BeforeValidator(_day)]


@table_of(frozen=True, config=STRICT)
class Row(Definition):
    """The cells of a row that are not empty."""

    symbol: Symbol
    since: DayInWords
    until: DayInWords | None = None
    renamed_to: Symbol | None = None


@dataclass(frozen=True)
class Spell:
    """A row of the table, at `line`: a time in which a stock was a member without a break.

    `symbol` is the one then, `stock` that of its prices; `until` the first day after, or None.
    """

    symbol: str
    stock: str
    since: date
    until: date | None
    line: int


def read_members(listed: Listed, stored: str | None) -> tuple[list[Spell], str]:
    """Return the spells of the table that a list names, by stock and day, and its text.

    `stored` is the text that the store kept. Raises UsageError, with file, line and symbol, for a
    row incomplete, impossible or ambiguous, overlaps, and no row; DefinitionError for an unreadable
    file.
    """
    path = listed.members
    assert path is not None
    last_day_counts = listed.until == "included"
    text = _text_of(path) if stored is None else stored
    spells = sorted(
        _spells(path, text, last_day_counts=last_day_counts),
        key=lambda spell: (spell.stock, spell.since),
    )
    if not spells:
        raise UsageError(f"{path}: no member is listed; give rows below {', '.join(COLUMNS)}")
    for before, each in pairwise(spells):
        if before.stock == each.stock and (before.until is None or before.until > each.since):
            raise UsageError(
                f"{path}: line {before.line} and line {each.line}: memberships of {each.stock} "
                f"overlap from {each.since} on; correct their dates, give the first an until, or "
                "delete one of these lines; check too whether until is included or excluded, as "
                "the market's file says"
            )
    return spells, text


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise DefinitionError(
            "constituents.members",
            f"cannot read {path} as UTF-8 text: {problem}; check its path and permissions",
        ) from problem


def _spells(path: Path, text: str, *, last_day_counts: bool) -> Iterator[Spell]:
    """Yield the spell of each row; a row whose cells are all empty is skipped."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        known = {*COLUMNS, "renamed_to"}
        if not set(COLUMNS) <= set(header) <= known or len(set(header)) < len(header):
            raise UsageError(
                f"{path}: line 1: the columns are {shown(', '.join(header))}; give each of "
                f"{', '.join(COLUMNS)} and, optionally, renamed_to once, separated by commas"
            )
        reader.fieldnames = header
        for row in reader:
            place = f"{path}: line {reader.line_num}"
            if None in row or None in row.values():
                raise UsageError(f"{place}: give each of the {len(header)} columns one cell")
            cells = {name: cell.strip() for name, cell in row.items() if cell.strip()}
            if cells:
                yield _spell(place, reader.line_num, cells, last_day_counts=last_day_counts)
    except csv.Error as problem:
        raise UsageError(
            f"{path}: line {reader.reader.line_num} is not CSV: {problem}; check the quotes here "
            "and above"
        ) from problem


def _spell(place: str, line: int, cells: Mapping[str, str], *, last_day_counts: bool) -> Spell:
    """Return the spell of a row; raise UsageError for one that is incomplete or impossible."""
    try:
        row = TypeAdapter(Row).validate_python(cells)
    except ValidationError as problem:
        raise UsageError(f"{place}: {mistake(problem, cells)}") from problem
    until = row.until and row.until + timedelta(days=last_day_counts)
    if until is not None and until <= row.since:
        raise UsageError(
            f"{place}: {row.symbol} is a member on no day from {row.since} to {row.until}; "
            "correct one of these dates, or until in the market's file if the last day counts"
        )
    return Spell(row.symbol, row.renamed_to or row.symbol, row.since, until, line)


def constituents_of(spells: Sequence[Spell], listed: Listed) -> tuple[Constituent, ...]:
    """Return the stays of sorted spells, with the details that a list's `symbols` give its stocks.

    Spells without a break are one stay. Raises DefinitionError for an entry with dates, or not in
    the table.
    """
    renamed = {spell.symbol: spell.stock for spell in spells}
    stocks = {spell.stock for spell in spells}
    details: dict[str, Constituent] = {}
    for entry in listed.symbols:
        if entry.since is not None or entry.until is not None:
            raise DefinitionError(
                "constituents.symbols",
                f"{entry.symbol!r} has dates, but members gives all dates; delete its since and "
                "until here",
            )
        if entry.symbol not in stocks:
            now = renamed.get(entry.symbol)
            raise DefinitionError(
                "constituents.symbols",
                f"{entry.symbol!r} is not in members; add a row with its membership there, or "
                "delete it here"
                if now is None
                else f"members renames {entry.symbol!r} to {now!r}; use that symbol here",
            )
        details[entry.symbol] = entry
    for stock in sorted(stocks.difference(details)):
        name = stock + listed.suffix
        if not is_symbol(name):
            raise DefinitionError(
                "constituents.suffix", f"{shown(name)} is not a valid symbol; use {SYMBOL_RULE}"
            )
        details[stock] = Constituent(stock, name)
    stays: list[Constituent] = []
    for spell in spells:
        stay = replace(details[spell.stock], since=spell.since, until=spell.until)
        if stays and stays[-1].symbol == stay.symbol and stays[-1].until == stay.since:
            stays[-1] = replace(stays[-1], until=stay.until)
        else:
            stays.append(stay)
    return tuple(stays)


def refuse_other_counts(market: Market, count: int) -> None:
    """Raise DefinitionError for a session up to the list's day without `count` members.

    A spell that ends too early leaves too few: the list looks ahead, to a removal not yet known.
    """
    # Imported only here: the calendar of an exchange takes a second.
    from dtml.prices.sessions import sessions_between

    first = min(stay.since for stay in market.constituents if stay.since is not None)
    assert market.constituents_as_of is not None
    try:
        sessions = sessions_between(market.calendar, first, market.constituents_as_of)
    except DtmlError as problem:  # the calendar begins after `first`, or ends before the list's day
        raise DefinitionError(
            "constituents.count", f"cannot be checked ({problem}); delete it"
        ) from problem
    members = market.is_constituent(sessions).sum(axis=1)
    for session, number in zip(sessions, members, strict=True):
        if number != count:
            raise DefinitionError(
                "constituents.count",
                f"says {count}, but members lists {number} on {session.date()}: correct the "
                "memberships around that day, or correct or delete count",
            )


def with_members(text: str, members: str | None) -> str:
    """Return the text of a market's file with the text of its table of members, for the store."""
    if members is None:
        return text
    # A string of JSON is one of TOML too, except for this character.
    as_toml = json.dumps(members, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{text.rstrip()}\n\n[{STORED}]\nmembers = {as_toml}\n"
