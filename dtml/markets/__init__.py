"""Named markets, one TOML file each, and users' own markets in files of the same shape.

Every key of a file is checked, and an error is one line that names file and key.
"""

import difflib
import math
import re
import zoneinfo
from collections.abc import Collection
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import NamedTuple, TypeVar, cast, get_args

from dtml.errors import UsageError
from dtml.markets import definition
from dtml.markets.definition import (
    COMPARED_FIELDS,
    SYMBOL_RULE,
    AnyCalendar,
    Calendar,
    Checks,
    Constituent,
    Index,
    Market,
    SecondSource,
    SourceName,
    is_symbol,
    read_columns,
    read_feed,
    read_source,
)
from dtml.markets.members import (
    Spell,
    dated_stays,
    read_spells,
    refuse_other_counts,
    take_stored,
    with_members,
)
from dtml.markets.table import Table, is_a, parse, shown

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

_CONSTITUENT_KEYS = ("as_of", "complete", "count", "suffix", "symbols", "members", "until")


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
    table.allow(*_CONSTITUENT_KEYS)
    as_of = table.optional("as_of", date, None)
    is_complete = table.optional("complete", bool, default=False)
    rows = table.values.get("symbols", [])
    if not isinstance(rows, list):
        raise table.error("symbols", f"expected a list of symbols, got {shown(rows)}")
    suffix = table.optional("suffix", str, "")
    listed = tuple(
        _constituent(table, position, row, suffix) for position, row in enumerate(rows, start=1)
    )
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


_SECOND_SOURCE_KEYS = (
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
    table.allow(*_SECOND_SOURCE_KEYS)
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


W = TypeVar("W", bound=str)

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
    """Read a user's own market, named after its file; no market of the package may have the name.

    `text`, if given, is read in place of the file, which may no longer exist, and in place of the
    table of members that it names. The market keeps the file's absolute path and its text, with
    that of the table, as `file`. Raises UsageError, one line with file and key, for any mistake.
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
    """Return the calendars of exchanges by code, with the sessions that a file adds to each.

    The file has a table for each exchange, with the keys of a market's [sessions]. Returns an empty
    dict where there is no such file; raises UsageError for a mistake in it.
    """
    if not path.exists():
        return {}
    exchanges = Table(path, "", parse(path, None))
    exchanges.allow(*sorted(definition.CALENDARS))
    return {code: _with_sessions(code, exchanges.subtable(code)) for code in exchanges.values}


def read_market(path: Path, text: str | None = None) -> Market:
    """Read the market that a TOML file, or its `text`, describes; it is named after the file.

    Raises UsageError, one line with file and key, for a file that cannot be read, for a name that
    no market can have, and for a key that is missing, unknown, mistyped or impossible. The ranges
    of [model] are checked later, by the configurations that it changes.
    """
    if not _NAME.fullmatch(path.stem):
        raise UsageError(
            f"{path}: a market is named after its file, and {path.stem!r} cannot be the name of a "
            "market: rename the file so that its name begins with one of a-z and has at most 40 "
            "characters of a-z, 0-9, - and _"
        )
    values = parse(path, text)
    # A text from the store may have the table of members added to it (`with_members`).
    stored = None if text is None else take_stored(values)
    table = Table(path, "", values)
    facts = table.texts("facts")
    table.allow(*_MARKET_KEYS)
    calendar = _calendar(table)
    constituents = read_constituents(table.subtable("constituents"), calendar, stored)
    index = _index(table.subtable("index"))
    if index.symbol in {stock.symbol for stock in constituents.stays}:
        raise table.error(
            "index.symbol",
            f"{index.symbol!r} is also a constituent; give the index a symbol of its own, or take "
            "this one out of the constituents",
        )
    source = read_source(table, get_args(definition.SourceName), Market.source)
    returns = _word(table, "returns", definition.Returns, Market.returns)
    z_close = _word(table, "z_close", definition.ZClose, Market.z_close)
    leg = _word(table, "leg", definition.Leg, Market.leg)
    features = _word(table, "features", definition.FeatureSet, Market.features)
    ranker = _word(table, "ranker", definition.RankerName, Market.ranker)
    return Market(
        name=path.stem,
        title=table.required("title", str),
        calendar=calendar,
        timezone=_timezone(table),
        currency=_currency(table),
        index=index,
        constituents=constituents.stays,
        constituents_as_of=constituents.as_of,
        constituents_complete=constituents.is_complete,
        members=constituents.members,
        facts=facts,
        source=source,
        returns=returns,
        z_close=z_close,
        leg=leg,
        features=features,
        ranker=ranker,
        checks=_checks(table.subtable("checks")),
        trading=_trading(table.subtable("trading")),
        retrain=_retrain(table),
        level=_level(table),
        model=_model(table.subtable("model")),
        columns=read_columns(table.subtable("columns")),
        feed=read_feed(table.subtable("feed")),
        second_source=_second_source(table, index, constituents.stays),
        code=_code(table),
        candidates=_candidates(table),
    )


_MARKET_KEYS = (
    "title",
    "calendar",
    "sessions",
    "timezone",
    "currency",
    "source",
    "returns",
    "z_close",
    "leg",
    "features",
    "ranker",
    "retrain",
    "candidates",
    "level",
    "facts",
    "index",
    "checks",
    "trading",
    "model",
    "columns",
    "feed",
    "second_source",
    "constituents",
    "code",
)


def _word(table: Table, key: str, words: object, default: W) -> W:
    """Return the value of a key, which must be one of the words of a Literal."""
    return cast(W, table.choice(key, get_args(words), default))


def _calendar(table: Table) -> AnyCalendar:
    """Return the exchange's code, with the sessions that the file adds to its calendar if any."""
    code = table.choice("calendar", definition.CALENDARS)
    sessions = table.subtable("sessions")
    if not sessions.values:
        return code
    return _with_sessions(code, sessions)


def _with_sessions(code: str, sessions: Table) -> Calendar:
    sessions.allow("known_to", "holidays", "extra", "source")
    # Called for its error: the source of the sessions must be stated, but only people read it.
    sessions.required("source", str, "the source of these dates")
    return Calendar(
        code=code,
        known_to=sessions.optional("known_to", date, None),
        holidays=sessions.dates("holidays"),
        extra=sessions.dates("extra"),
    )


def _index(table: Table) -> Index:
    """Read the table [index]; without a source symbol, the source uses the index's own."""
    table.allow("symbol", "source_symbol", "name", "of_constituents")
    symbol = read_symbol(table, "symbol")
    source_symbol = symbol
    if "source_symbol" in table.values:
        source_symbol = read_symbol(table, "source_symbol")
    of_constituents = table.optional("of_constituents", bool, default=False)
    return Index(
        symbol=symbol,
        source_symbol=source_symbol,
        name=table.required("name", str),
        of_constituents=of_constituents,
    )


def _checks(table: Table) -> Checks:
    """Read the table [checks]; raise UsageError for an unknown key or a bound out of range."""
    table.allow("max_return", "max_missing", "stale_share", "max_rank_ic")
    numbers = {key: table.typed(key, float) for key in table.values}
    checks = Checks(**numbers)
    if not 0 < checks.max_return < math.inf:
        raise _out_of_bounds(table, "max_return", "a finite ratio above 0", checks.max_return)
    if not 0 <= checks.max_missing < 1:
        raise _out_of_bounds(
            table, "max_missing", "a share of 0 or more and below 1", checks.max_missing
        )
    if not 0 < checks.stale_share <= 1:
        raise _out_of_bounds(
            table, "stale_share", "a share above 0 and at most 1", checks.stale_share
        )
    if checks.max_rank_ic is not None and not 0 < checks.max_rank_ic <= 1:
        raise _out_of_bounds(
            table, "max_rank_ic", "a rank IC above 0 and at most 1", checks.max_rank_ic
        )
    return checks


def _out_of_bounds(table: Table, key: str, bound: str, value: float) -> UsageError:
    return table.error(key, f"expected {bound}, got {value}")


_RATES = (*(cost.name for cost in fields(definition.Costs)), "price_limit")
_WHOLE_NUMBERS = ("lot", "top", "smooth")


def _trading(table: Table) -> definition.Trading:
    """Read the table [trading]; raise UsageError for an unknown key or a number out of range."""
    table.allow(*_RATES, *_WHOLE_NUMBERS, "band", "sources")
    rates = {name: _rate(table, name) for name in _RATES if name in table.values}
    price_limit = rates.pop("price_limit", None)  # the others are costs
    sources = table.subtable("sources")
    sources.allow(*_RATES, *_WHOLE_NUMBERS, "band")
    source_of = {name: sources.typed(name, str) for name in sources.values}
    whole_numbers = {
        name: table.typed(name, int) for name in _WHOLE_NUMBERS if name in table.values
    }
    band = table.optional("band", float, 1.0)
    try:
        return definition.Trading(
            costs=definition.Costs(**rates),
            price_limit=price_limit,
            band=band,
            sources=source_of,
            **whole_numbers,
        )
    except UsageError as problem:
        # The classes check the ranges, and their messages begin with the key alone.
        raise UsageError(f"{table.path}: trading.{problem}") from problem


def _rate(table: Table, key: str) -> definition.Rate:
    """Return a rate: a number, or for a list of tables, pairs of a date and the rate from it on.

    Raises UsageError for anything else, and where the dates are not ascending.
    """
    rows = table.values[key]
    if not isinstance(rows, list) or not rows:  # an empty list is refused as no number
        return table.typed(key, float)
    entries = [_rate_entry(table, key, place, row) for place, row in enumerate(rows, start=1)]
    for entry in entries:
        entry.allow("since", "rate")
    since = [entry.required("since", date) for entry in entries]
    table.require_ascending(key, since)
    rates = [entry.required("rate", float) for entry in entries]
    return tuple(zip(since, rates, strict=True))


def _rate_entry(table: Table, key: str, place: int, row: object) -> Table:
    """Return one row of a list of rates, whose `place` counts from 1, as a table.

    Raises UsageError for a row that is no table.
    """
    if not isinstance(row, dict):
        raise table.error(
            f"{key}[{place}]",
            f"expected a table such as {{since = 2026-01-20, rate = 1.5}}, got {shown(row)}",
        )
    return Table(table.path, f"{table.prefix}{key}[{place}].", row)


def _timezone(table: Table) -> str:
    name = table.required("timezone", str, 'a time zone such as "Asia/Seoul"')
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as problem:
        raise table.error(
            "timezone", f"unknown time zone {name!r}; give one such as Asia/Seoul"
        ) from problem
    return name


def _currency(table: Table) -> str:
    code = table.required("currency", str, 'an ISO 4217 code such as "USD"')
    if not re.fullmatch("[A-Z]{3}", code):
        raise table.error("currency", f"expected an ISO 4217 code such as USD, got {code!r}")
    return code


def _retrain(table: Table) -> definition.Retrain:
    value = table.values.get("retrain", Market.retrain)
    if value in ("never", "missing"):
        return cast(definition.Retrain, value)
    if is_a(value, int) and cast(int, value) >= 1:
        return cast(int, value)
    raise table.error(
        "retrain",
        f'expected "never", "missing" or a whole number of sessions above 0, got {shown(value)}',
    )


def _level(table: Table) -> float:
    value = table.optional("level", float, Market.level)
    if value in definition.LEVELS:
        return value
    levels = ", ".join(map(str, definition.LEVELS))
    raise table.error("level", f"expected one of {levels}, got {shown(value)}")


def _candidates(table: Table) -> tuple[definition.RankerName, ...]:
    """Return the rankers among which the champion is chosen: the default ones without the key.

    Raises UsageError for a list of fewer than two, for a ranker that is unknown or listed twice,
    and where the market's ranker is not `EARNED`, so that the list would have no effect.
    """
    if "candidates" not in table.values:
        return Market.candidates
    rankers = [name for name in get_args(definition.RankerName) if name != definition.EARNED]
    listed = table.texts("candidates")
    for name in listed:
        if name not in rankers:
            known = ", ".join(rankers)
            raise table.error("candidates", f"{name!r} cannot be a candidate; use some of {known}")
        if listed.count(name) > 1:
            raise table.error("candidates", f"{name!r} is listed twice; list it once")
    if table.values.get("ranker") != definition.EARNED:
        raise table.error(
            "candidates",
            f'used only with ranker = "{definition.EARNED}", which shows the best of these '
            "rankers: set that, or delete candidates",
        )
    if len(listed) < 2:
        raise table.error("candidates", f"list two or more rankers, got {len(listed)}")
    return cast("tuple[definition.RankerName, ...]", listed)


def _code(table: Table) -> Path | None:
    """Return the path of the user's own code, required where `own` is a ranker of the market."""
    rankers = (table.values.get("ranker"), *table.texts("candidates"))
    if "code" not in table.values and "own" not in rankers:
        return None
    wanted = 'the path of a Python file, which the ranker "own" needs'
    return table.path.parent / table.required("code", str, wanted)


def _second_source(
    table: Table, index: Index, stays: tuple[Constituent, ...]
) -> definition.SecondSource | None:
    """Return the source to compare with, None where the file names none."""
    if "second_source" not in table.values:
        return None
    listed = [stay.symbol for stay in stays]
    # A market without a list takes its stocks from the prices, which may have any symbols.
    symbols = (index.symbol, *listed) if listed else ()
    return read_second_source(table.subtable("second_source"), symbols)


def _model(table: Table) -> dict[str, object]:
    table.allow(*definition.MODEL_KEYS)
    # Called for the errors that they raise: these two texts must be one of a few words.
    table.choice("normalisation", ("per_stock", "shared"), default="shared")
    table.choice("protocol", definition.LABEL_PROTOCOLS, default="published")
    return {key: table.typed(key, definition.MODEL_KEYS[key]) for key in table.values}
