"""Read a market by its name: one of the package, or a user's own, whose file the store keeps."""

from contextlib import suppress
from dataclasses import replace
from importlib import resources
from pathlib import Path

from sqlalchemy import Engine

from db.engine import open_reader, reading
from db.errors import StoreError, StoreUsageError
from db.rows import markets
from dtml.errors import DtmlError, UsageError
from dtml.markets import Market, load_market, load_market_file, market_names, read_calendars
from flows.settings import data_folder

# In the data folder: sessions that exchange_calendars lacks or does not know yet, by exchange.
CALENDARS = "calendars.toml"


def read_market(name: str, market_file: Path | None = None) -> Market:
    """Read the market called `name`, or the one that a user's file describes.

    `name` is ignored if there is a file. The store keeps the path and the text of the file of each
    user's own market that had a night: the file at that path is read or, if it is gone, the text.
    CALENDARS adds sessions to the market's calendar, unless the market's file itself adds some.
    """
    return _with_calendars(_defined_market(name, market_file))


def _with_calendars(market: Market) -> Market:
    """Return a market with the sessions that CALENDARS adds to its exchange."""
    calendars = read_calendars(data_folder() / CALENDARS)
    if isinstance(market.calendar, str) and market.calendar in calendars:
        return replace(market, calendar=calendars[market.calendar])
    return market


def _defined_market(name: str, market_file: Path | None) -> Market:
    if market_file is not None:
        return load_market_file(market_file)
    if name in market_names():
        return load_market(name)
    with suppress(StoreError, StoreUsageError):  # there may be no store yet
        own_market = _own_market(open_reader(), name)
        if own_market is not None:
            return own_market
    return load_market(name)  # raises the error that lists the known markets


def market_of_store(engine: Engine, name: str) -> Market | None:
    """Return a market of a store, as `read_market` does; None where it cannot be read.

    The store may lack the file of a user's own market, or its reader may not be allowed to read it.
    """
    try:
        market = load_market(name) if name in market_names() else _own_market(engine, name)
    except (DtmlError, StoreError):
        return None
    return None if market is None else _with_calendars(market)


def named_in_command(market: Market) -> str:
    """Return how a command names a market: by its file where that is there, else by its name.

    The store knows a user's own market by name only after its first fetch.
    """
    if market.file is not None and market.file[0].exists():
        return f"--market-file {market.file[0]}"
    return market.name


def settings_place(market: Market) -> str:
    """Return in words the file in which a user changes the settings of a market.

    The file of a market of the package is not changed: a copy of it is a market of the user's own.
    """
    if market.file is not None:
        return str(market.file[0])
    shipped = resources.files("dtml.markets") / f"{market.name}.toml"
    return f"a copy of {shipped} under another name, given with --market-file"


def _own_market(engine: Engine, name: str) -> Market | None:
    """Return a user's own market whose file the store keeps; None for others.

    Raises UsageError where the file or, if it is gone, the text in the store is refused.
    """
    with reading(engine) as conn:
        stored = markets.file_of(conn, name)
    if stored is None:
        return None
    path, text_then = Path(stored[0]), stored[1]
    if path.exists():  # it is read, because the user may have changed settings since
        return load_market_file(path)
    try:
        return load_market_file(path, text_then)
    except UsageError as error:
        raise UsageError(
            f"{path} is gone, and the store's copy of it is refused: put a corrected file there "
            f"({error})"
        ) from error
