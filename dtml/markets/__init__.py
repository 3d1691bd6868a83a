"""Named markets, one TOML file each, and users' own; an error is a line with file and key."""

import difflib
import re
from dataclasses import fields, replace
from datetime import date
from pathlib import Path

from dtml.errors import UsageError
from dtml.markets.definition import (
    SYMBOL_RULE,
    Calendar,
    CalendarCode,
    Checks,
    Constituent,
    Index,
    Market,
    MarketFile,
    MarketKeys,
    SecondSource,
    Sessions,
    is_symbol,
)
from dtml.markets.members import (
    STORED,
    constituents_of,
    read_members,
    refuse_other_counts,
    with_members,
)
from translation.definitions import DefinitionError, checked, parse, shown

__all__ = [
    "Checks",
    "Constituent",
    "Index",
    "Market",
    "is_symbol",
    "load_market",
    "load_market_file",
    "market_names",
    "read_calendars",
]

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_FOLDER = Path(__file__).parent


def market_names() -> list[str]:
    """Return the names of the markets that come with the package, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_market(name: str) -> Market:
    """Read a market of the package; UsageError lists the markets if the name is unknown."""
    names = market_names()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"unknown market {name!r}: {hint}choose one of {', '.join(names)}, or give the file of "
            "your own market (--market-file my.toml; in a notebook, my.toml in place of the name)"
        )
    return read_market(_FOLDER / f"{name}.toml")


def load_market_file(path: Path, text: str | None = None) -> Market:
    """Read a user's own market, named after its file, unlike the package's.

    `text` takes the place of the file and of its table of members. The market keeps path and texts,
    as `file`. Raises UsageError for any mistake.
    """
    if path.stem in market_names():
        # Two markets of one name would share their rows in the database.
        raise UsageError(f"{path}: {path.stem} is a market of this package; rename the file")
    market = read_market(path, text)
    path = path.absolute()  # it is stored, and later commands may run in another folder
    if text is None:
        text = with_members(path.read_text(encoding="utf-8-sig"), market.members)
    return replace(market, file=(path, text))


def read_calendars(path: Path) -> dict[str, Calendar]:
    """Return exchanges' calendars, with what a file adds, by code; none without the file.

    A table each, with a market's [sessions]. Raises UsageError for a mistake.
    """
    if not path.exists():
        return {}
    added = checked(dict[CalendarCode, Sessions], parse(path, None, UsageError), path, UsageError)
    return {code: _with_sessions(code, sessions) for code, sessions in added.items()}


def _with_sessions(code: str, sessions: Sessions) -> Calendar:
    return Calendar(code, sessions.known_to, sessions.holidays, sessions.extra)


def read_market(path: Path, text: str | None = None) -> Market:
    """Read the market that a TOML file, or its `text`, describes; it is named after the file.

    Raises UsageError, one line with file and key, for an unreadable file, an impossible name, and a
    key missing, unknown, mistyped or impossible; [model] is checked later.
    """
    if not _NAME.fullmatch(path.stem):
        raise UsageError(
            f"{path}: a market is named after its file, and {path.stem!r} cannot be the name of a "
            "market: rename the file so that its name begins with one of a-z and has at most 40 "
            "characters of a-z, 0-9, - and _"
        )
    values = parse(path, text, UsageError)
    # A text from the store may have the table of members added to it (`with_members`).
    stored = {} if text is None else values.pop(STORED, {})
    said = checked(MarketFile, values, path, UsageError)
    try:
        return _market_of(path.stem, said, stored.get("members"))
    except DefinitionError as mistake:
        raise UsageError(f"{path}: {mistake.key}: {mistake}") from mistake


def _market_of(name: str, said: MarketFile, stored_members: str | None) -> Market:
    listed = said.constituents
    stays, members = listed.symbols, None
    if listed.members is not None:
        spells, members = read_members(listed, stored_members)
        stays = constituents_of(spells, listed)
    _refuse_repeats(stays)
    symbols = {stay.symbol for stay in stays}
    if said.index.symbol in symbols:
        raise DefinitionError(
            "index.symbol",
            f"{said.index.symbol!r} is also a constituent; give the index a symbol of its own, or "
            "take this one out of the constituents",
        )
    if said.second_source is not None:
        _refuse_symbols(said.second_source, symbols, said.index.symbol)
    market = Market(
        **{each.name: getattr(said, each.name) for each in fields(MarketKeys)},
        name=name,
        calendar=_with_sessions(said.calendar, said.sessions) if said.sessions else said.calendar,
        constituents=stays,
        constituents_as_of=listed.as_of,
        constituents_complete=listed.complete,
        members=members,
    )
    if members is not None and listed.count is not None:
        refuse_other_counts(market, listed.count)
    return market


def _refuse_symbols(second: SecondSource, symbols: set[str], index: str) -> None:
    """Raise DefinitionError for a second source's symbol that is no stock's, or is invalid."""
    # A market without a list takes its stocks from the prices, which may have any symbols.
    for symbol in second.symbols if symbols else ():
        if symbol not in symbols and symbol != index:
            raise DefinitionError(
                f"second_source.symbols.{symbol}",
                "the market does not list this symbol; correct or delete this key",
            )
    for symbol in sorted((symbols or {"A"}).difference(second.symbols)):
        name = symbol + (second.suffix or "")
        if not is_symbol(name):
            raise DefinitionError(
                "second_source.suffix", f"{shown(name)} is not a valid symbol; use {SYMBOL_RULE}"
            )


def _refuse_repeats(stays: tuple[Constituent, ...]) -> None:
    """Raise DefinitionError where stays of one symbol overlap, or two share a source symbol."""
    last: dict[str, Constituent] = {}
    symbol_at_source: dict[str, str] = {}
    for stay in stays:
        earlier = last.get(stay.symbol)
        if earlier is not None and (stay.since or date.min) < (earlier.until or date.max):
            raise DefinitionError(
                "constituents.symbols",
                f"symbol {stay.symbol!r} is listed twice; list it once or, if it left and came "
                "back, once for each membership with its since and until, the earliest first and "
                "without overlap",
            )
        last[stay.symbol] = stay
        other = symbol_at_source.setdefault(stay.source_symbol, stay.symbol)
        if other != stay.symbol:
            raise DefinitionError(
                "constituents.symbols",
                f"{other} and {stay.symbol} both have the source_symbol {stay.source_symbol!r}; "
                "give each its own or, if they are one stock that was renamed, list it once, under "
                "its present symbol",
            )
