"""Read a market by its name: one of the package, or a user's own, whose file the store keeps."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from db.engine import open_reader, reading
from db.errors import StoreError, StoreUsageError
from db.rows import markets
from dtml.markets import Market, load_market, load_market_file, market_names, read_calendars
from flows.settings import data_folder

# In the data folder: sessions that exchange_calendars lacks or does not know yet, by exchange.
CALENDARS = "calendars.toml"


def read_market(name: str, market_file: Path | None = None) -> Market:
    """Read the market called `name`, or the one that a user's file describes.

    The store knows the files of users' own markets that had a night: such a file is read where it
    lay or, where it is gone, as it was. CALENDARS adds sessions to the market's calendar, unless
    the market's file does.
    """
    market = _defined_market(name, market_file)
    calendars = read_calendars(data_folder() / CALENDARS)
    if isinstance(market.calendar, str) and market.calendar in calendars:
        return replace(market, calendar=calendars[market.calendar])
    return market


def _defined_market(name: str, market_file: Path | None) -> Market:
    if market_file is not None:
        return load_market_file(market_file)
    if name in market_names():
        return load_market(name)
    with suppress(StoreError, StoreUsageError), reading(open_reader()) as conn:
        stored = markets.file_of(conn, name)
        if stored is not None:
            path, text = Path(stored[0]), stored[1]
            return load_market_file(path, None if path.exists() else text)
    return load_market(name)
