"""What a market's file says of its constituents: a list of its own, or a table that it names."""

from datetime import date
from typing import NamedTuple

from dtml.markets.definition import SYMBOL_RULE, AnyCalendar, Constituent, is_symbol
from dtml.markets.members import Spell, dated_stays, read_spells, refuse_other_counts
from dtml.markets.table import Table, shown

KEYS = ("as_of", "complete", "count", "suffix", "symbols", "members", "until")


class Constituents(NamedTuple):
    """The stays in the index, the date on which their list was true, and whether it is complete.

    `members` is the text of the table that the market's file names; None where it names none.
    """

    stays: tuple[Constituent, ...]
    as_of: date | None
    is_complete: bool
    members: str | None = None


def read_constituents(table: Table, calendar: AnyCalendar, stored: str | None) -> Constituents:
    """Read the table [constituents] of a market's file.

    `stored` is the text of the table of members as the store kept it; None to read the file that
    the key `members` names. Raises UsageError for an unknown key, a value of the wrong kind,
    constituents without the date `as_of`, a table of members that cannot be read, and values that
    contradict each other.
    """
    table.allow(*KEYS)
    as_of = table.optional("as_of", date, None)
    is_complete = table.optional("complete", bool, default=False)
    listed = _listed(table)
    members = None
    if "members" in table.values:
        spells, members = read_spells(table, stored)
        stays = _with_details(table, spells, listed)
    else:
        if "until" in table.values:
            raise table.error(
                "until",
                "has an effect only with members; add members (the path of a table), or delete "
                "this key: in a list, each entry of symbols can have its own until",
            )
        stays = listed
    _refuse_repeats(table, stays)
    if is_complete and not stays:
        raise table.error(
            "complete", "is true, but no constituent is listed; list them, or set it to false"
        )
    if stays and as_of is None:
        raise table.error("as_of", "missing; give the date on which the list was valid")
    _refuse_other_count(table, stays, as_of, calendar)
    return Constituents(stays=stays, as_of=as_of, is_complete=is_complete, members=members)


def _listed(table: Table) -> tuple[Constituent, ...]:
    """Return the entries of the key `symbols`."""
    rows = table.values.get("symbols", [])
    if not isinstance(rows, list):
        raise table.error("symbols", f"expected a list of symbols, got {shown(rows)}")
    suffix = table.optional("suffix", str, "")
    return tuple(
        _constituent(table, position, row, suffix) for position, row in enumerate(rows, start=1)
    )


def _with_details(
    table: Table, spells: tuple[Spell, ...], listed: tuple[Constituent, ...]
) -> tuple[Constituent, ...]:
    """Return the stays of a table, with the details that the entries of `symbols` give its stocks.

    A stock without an entry has its symbol with the list's suffix as source symbol. Raises
    UsageError for an entry that has dates of its own, and for one that is not in the table.
    """
    suffix = table.optional("suffix", str, "")
    details: dict[str, Constituent] = {}
    in_table = {spell.stock for spell in spells}
    renamed = {spell.symbol: spell.stock for spell in spells}
    for entry in listed:
        if entry.since is not None or entry.until is not None:
            raise table.error(
                "symbols",
                f"{entry.symbol!r} has dates, but members gives all dates; delete its since and "
                "until here",
            )
        if entry.symbol not in in_table and entry.symbol in renamed:
            raise table.error(
                "symbols",
                f"members renames {entry.symbol!r} to {renamed[entry.symbol]!r}; use that symbol "
                "here",
            )
        if entry.symbol not in in_table:
            raise table.error(
                "symbols",
                f"{entry.symbol!r} is not in members; add a row with its membership there, or "
                "delete it here",
            )
        details[entry.symbol] = entry
    for stock in in_table - set(details):
        source_symbol = _checked_symbol(table, "suffix", stock + suffix)
        details[stock] = Constituent(symbol=stock, source_symbol=source_symbol)
    return dated_stays(spells, details)


def _refuse_other_count(
    table: Table, stays: tuple[Constituent, ...], as_of: date | None, calendar: AnyCalendar
) -> None:
    """Raise UsageError where the key `count` is not the number of constituents.

    Without a table of members, the entries are counted; with one, the members of each session up to
    `as_of`, which is known there.
    """
    count = table.optional("count", int, None)
    if count is None:
        return
    if "members" in table.values and as_of is not None:
        refuse_other_counts(table, stays, count, calendar, as_of)
    elif count != len(stays):
        raise table.error(
            "count",
            f"says {count}, but symbols has {len(stays)} entries; correct either, or delete count",
        )


def _constituent(table: Table, position: int, row: object, suffix: str) -> Constituent:
    """Read one stay in the index, which a `row` gives as a symbol alone or as a table.

    `position`, from 1, names the row in the UsageError that a mistake in it raises.
    """
    values = row if isinstance(row, dict) else {"symbol": row}
    entry = Table(table.path, f"{table.prefix}symbols[{position}].", values)
    entry.allow("symbol", "source_symbol", "name", "sector", "since", "until")
    symbol = read_symbol(entry, "symbol")
    # A source symbol that is not given is the symbol with the list's suffix. An error then names
    # the key `suffix`, as the symbol alone is valid.
    if "source_symbol" in values:
        source_symbol = read_symbol(entry, "source_symbol")
    else:
        source_symbol = _checked_symbol(table, "suffix", symbol + suffix)
    since = entry.optional("since", date, None)
    until = entry.optional("until", date, None)
    if since is not None and until is not None and until <= since:
        raise entry.error("until", f"{until} is not after since, {since}; give a later day")
    return Constituent(
        symbol=symbol,
        source_symbol=source_symbol,
        name=entry.optional("name", str, None),
        sector=entry.optional("sector", str, None),
        since=since,
        until=until,
    )


def _refuse_repeats(table: Table, stays: tuple[Constituent, ...]) -> None:
    """Raise UsageError where stays of one symbol are not dated one after the other.

    Raise it too where two symbols have the same source symbol.
    """
    last_until: dict[str, date | None] = {}
    symbol_at_source: dict[str, str] = {}
    for stay in stays:
        symbol = stay.symbol
        if symbol in last_until and not _follows(stay, last_until[symbol]):
            raise table.error(
                "symbols",
                f"symbol {symbol!r} is listed twice; list it once or, if it left and came back, "
                "once for each membership with its since and until, the earliest first and without "
                "overlap",
            )
        other_symbol = symbol_at_source.setdefault(stay.source_symbol, symbol)
        if other_symbol != symbol:
            raise table.error(
                "symbols",
                f"{other_symbol} and {symbol} both have the source_symbol {stay.source_symbol!r}; "
                "give each its own or, if they are one stock that was renamed, list it once, under "
                "its present symbol",
            )
        last_until[symbol] = stay.until


def _follows(stay: Constituent, earlier_until: date | None) -> bool:
    """Return whether a stay begins on or after the end of the one before.

    False where either date is unknown.
    """
    if earlier_until is None or stay.since is None:
        return False
    return stay.since >= earlier_until


def read_symbol(table: Table, key: str) -> str:
    """Return the value of a key, which must be a symbol."""
    return _checked_symbol(table, key, table.required(key, str, "a symbol"))


def _checked_symbol(table: Table, key: str, symbol: str) -> str:
    if not is_symbol(symbol):
        raise table.error(key, f"{shown(symbol)} is not a valid symbol; use {SYMBOL_RULE}")
    return symbol
