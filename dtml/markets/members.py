"""A table of a market's members, which its file names: from which day to which each was one.

It is a CSV file with the columns `symbol, since, until` and, optionally, `renamed_to`. The key
`until` of the market's file says whether a member is still one on the day `until`.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import SYMBOL_RULE, AnyCalendar, Constituent, is_symbol
from dtml.markets.table import Table, shown

COLUMNS = ("symbol", "since", "until")
RENAMED = "renamed_to"
INCLUDED = "included"  # a member is still one on the day `until`
EXCLUDED = "excluded"  # that day is the first after the spell, as in the list of the market's file
STORED = "stored"  # a table that only the store adds to a market's file
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Spell:
    """A row of the table: a time in which a stock was a member without a break.

    `symbol` is the one that it had then, `stock` the one under which its prices are kept. `until`
    is the first day after the spell; None while it lasts. `line` is that of the file.
    """

    symbol: str
    stock: str
    since: date
    until: date | None
    line: int


def read_spells(table: Table, stored: str | None) -> tuple[tuple[Spell, ...], str]:
    """Return the spells of the table that the key `members` names, and the text of that table.

    Spells are sorted by stock and first day. `stored` is the table's text where the store kept it;
    None to read the table's file, whose path is relative to the market's file. Raises UsageError,
    one line with file, line and symbol, for a row that is incomplete, impossible or ambiguous, and
    for spells of one stock that overlap; and for a file that cannot be read or has no row, and
    without the key `until`.
    """
    path = table.path.parent / table.required("members", str)
    if "until" not in table.values:
        raise table.error(
            "until",
            'missing; set it to "included" if a stock is still a member on the day in the column '
            'until, or to "excluded" if that day is the first after its membership',
        )
    last_day_counts = table.choice("until", (INCLUDED, EXCLUDED)) == INCLUDED
    text = _read_members(table, path) if stored is None else stored
    spells = sorted(
        _spells(path, text, last_day_counts=last_day_counts),
        key=lambda spell: (spell.stock, spell.since),
    )
    if not spells:
        raise UsageError(f"{path}: no member is listed; give rows below {', '.join(COLUMNS)}")
    _refuse_overlaps(path, spells, last_day_counts=last_day_counts)
    return tuple(spells), text


def _read_members(table: Table, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        reason = problem.strerror or problem
        raise table.error(
            "members", f"cannot read {path}: {reason}; check its path and permissions"
        ) from problem
    except UnicodeDecodeError as problem:
        raise table.error(
            "members", f"{path} is not UTF-8 text: byte {problem.start}; save it as UTF-8"
        ) from problem


def _spells(path: Path, text: str, *, last_day_counts: bool) -> Iterator[Spell]:
    """Yield the spell of each row; a row whose cells are all empty is skipped."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        expected = (
            f"give the columns {', '.join(COLUMNS)} and, optionally, {RENAMED}, separated by commas"
        )
        for name in COLUMNS:
            if name not in header:
                raise UsageError(f"{path}: line 1: no column {name}; {expected}")
        for name in header:
            if name not in (*COLUMNS, RENAMED):
                raise UsageError(f"{path}: line 1: unknown column {shown(name)}; {expected}")
            if header.count(name) > 1:
                raise UsageError(f"{path}: line 1: the column {name} is repeated; {expected}")
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield _spell(path, reader.line_num, header, cells, last_day_counts=last_day_counts)
    except csv.Error as problem:
        raise UsageError(
            f"{path}: line {reader.line_num} is not CSV: {problem}; check the quotes on this line "
            "and above"
        ) from problem


def _spell(
    path: Path, line: int, header: list[str], cells: list[str], *, last_day_counts: bool
) -> Spell:
    """Return the spell of a row; raise UsageError for one that is incomplete or impossible."""
    if len(cells) != len(header):
        raise UsageError(
            f"{path}: line {line}: {len(cells)} cells, but the header has {len(header)} columns; "
            "give each column one cell"
        )
    row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    symbol = row["symbol"]
    stock = row.get(RENAMED) or symbol
    for name in (symbol, stock):
        if not is_symbol(name):
            raise UsageError(
                f"{path}: line {line}: {shown(name)} is not a valid symbol; use {SYMBOL_RULE}"
            )
    since = _day(path, line, symbol, "since", row["since"])
    if since is None:
        raise UsageError(
            f"{path}: line {line}: {symbol} has no since; give the first day of its membership"
        )
    until = _day(path, line, symbol, "until", row["until"])
    if until is not None and last_day_counts:
        until += timedelta(days=1)
    if until is not None and until <= since:
        advice = "; correct one of these dates"
        if until == since and not last_day_counts:
            advice += f', or set until = "{INCLUDED}" in the market\'s file if that day counts'
        raise UsageError(
            f"{path}: line {line}: {symbol} is a member on no day from {row['since']} to "
            f"{row['until']}{advice}"
        )
    return Spell(symbol=symbol, stock=stock, since=since, until=until, line=line)


def _day(path: Path, line: int, symbol: str, name: str, text: str) -> date | None:
    """Return the date in the column `name` of a row; None for an empty cell.

    Of the forms of ISO 8601 only YYYY-MM-DD is taken: any other text raises UsageError.
    """
    if not text:
        return None
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text)
            if day < date.max:  # the day after it is a date too
                return day
    except ValueError:  # such as 2020-02-30
        pass
    advice = "; give a date such as 2020-06-15"
    if name == "until":
        advice += ", or leave the cell empty while the membership lasts"
    raise UsageError(f"{path}: line {line}: {symbol}: {name} is {shown(text)}{advice}")


def _refuse_overlaps(path: Path, spells: list[Spell], *, last_day_counts: bool) -> None:
    """Raise UsageError where two spells of a stock share a day.

    The spells are sorted by stock and first day.
    """
    for before, each in pairwise(spells):
        if before.stock != each.stock:
            continue
        if before.until is not None and before.until <= each.since:
            continue
        lines = f"line {before.line} and line {each.line}"
        if before.until is None:
            raise UsageError(
                f"{path}: {lines}: the membership of {before.symbol} since {before.since} has no "
                f"until, but {each.symbol} joins again on {each.since}; give the first an until, "
                "or delete one of these lines"
            )
        hint = ""
        # They share a single day, which is the first one's `until` in the file.
        if last_day_counts and before.until == each.since + timedelta(days=1):
            hint = (
                f', or set until = "{EXCLUDED}" in the market\'s file if until is the first day '
                "after a membership"
            )
        raise UsageError(
            f"{path}: {lines}: memberships of {each.stock} overlap from {each.since} on; correct "
            f"their dates{hint}"
        )


def dated_stays(
    spells: tuple[Spell, ...], details: Mapping[str, Constituent]
) -> tuple[Constituent, ...]:
    """Return the stays of the sorted spells, with the details of their stocks.

    Spells without a break between them, such as those of a stock that was renamed, are one stay.
    """
    stays: list[Constituent] = []
    for spell in spells:
        stay = replace(details[spell.stock], since=spell.since, until=spell.until)
        if stays and stays[-1].symbol == stay.symbol and stays[-1].until == stay.since:
            stays[-1] = replace(stays[-1], until=stay.until)
        else:
            stays.append(stay)
    return tuple(stays)


def refuse_other_counts(
    table: Table,
    stays: tuple[Constituent, ...],
    count: int,
    calendar: AnyCalendar,
    as_of: date,
) -> None:
    """Raise UsageError for the first session, up to `as_of`, that has another number of members.

    It finds a list whose spells end too early, as too few members are left on the days that such a
    spell lacks. The list looks ahead: on these days it knows already that a stock will be removed.
    """
    # Imported only here: the calendar of an exchange takes a second.
    from dtml.prices.sessions import sessions_between

    first = min(stay.since for stay in stays if stay.since is not None)
    try:
        sessions = sessions_between(calendar, first, as_of)
    except UsageError as problem:
        raise table.error(
            "count",
            f"cannot be checked, because members begins on {first}, before the calendar "
            f"{calendar} does; delete count",
        ) from problem
    except DtmlError as problem:  # the calendar ends before `as_of`
        raise table.error("as_of", str(problem)) from problem
    # How many more members each session has than the one before. A stay that begins or ends on a
    # day that is no session changes the next session, if there is one up to `as_of`. A missing day
    # changes none.
    changes = dict.fromkeys(sessions, 0)
    for stay in stays:
        for day, change in ((stay.since, 1), (stay.until, -1)):
            place = len(sessions) if day is None else int(sessions.searchsorted(str(day)))
            if place < len(sessions):
                changes[sessions[place]] += change
    members = 0
    for session, change in changes.items():
        members += change
        if members != count:
            raise table.error(
                "count",
                f"says {count}, but members lists {members} on {session.date()}: correct the "
                "memberships around that day, or correct or delete count",
            )


def take_stored(values: dict[str, object]) -> str | None:
    """Remove what `with_members` added to the values of a market's file, and return the text.

    None where it added nothing.
    """
    stored: Any = values.pop(STORED, None)
    return None if stored is None else str(stored["members"])


def with_members(text: str, members: str | None) -> str:
    """Return the text of a market's file with the text of its table of members, for the store."""
    if members is None:
        return text
    # A string of JSON is one of TOML too, except for this character.
    as_toml = json.dumps(members, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{text.rstrip()}\n\n[{STORED}]\nmembers = {as_toml}\n"
