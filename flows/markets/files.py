"""Read a market by its name: one of the package, or a user's own, whose file the store keeps.

What this user let run here, own code and paths of markets' files, is remembered by its text in a
folder of the user, outside the data folder: a store or a backup may come from somebody else, so
what it names is no permission.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import get_args

from sqlalchemy import Engine

from db.engine import open_reader, reading
from db.errors import StoreError, StoreUsageError, did_you_mean
from db.read import read_row
from dtml.errors import DtmlError, UsageError
from dtml.markets import Market, load_market, load_market_file, market_names, read_calendars
from dtml.markets.definition import SourceName
from flows.settings import data_folder
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)


def trusted_folder() -> Path:
    """Return the folder of what may run: `dtml/own_code` in XDG_STATE_HOME, or ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "dtml" / "own_code"


def file_of(text: str, kind: str) -> Path:
    """Return the file of a text of a kind, `py` or `path`, in the trusted folder."""
    return trusted_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.{kind}"


def is_trusted(text: str, kind: str) -> bool:
    """Return whether the trusted folder has this text."""
    file = file_of(text, kind)
    return file.is_file() and file.read_bytes() == text.encode()


def keep(text: str, file: Path) -> None:
    """Write a text, whole, and its folder where needed; raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda partial: partial.write_bytes(text.encode()))


# In the data folder: sessions that exchange_calendars lacks or does not know yet, by exchange.
CALENDARS = "calendars.toml"


def read_market(name: str, market_file: Path | None = None) -> Market:
    """Read the market called `name`, or the one of a user's file, whose path is then remembered.

    The store keeps path and text of a user's own market. The file is read where this user gave that
    path on this machine, else the text. Raises UsageError where that text names code to run.
    CALENDARS adds sessions unless the market's file does.
    """
    return _with_calendars(_defined_market(name, market_file))


def _with_calendars(market: Market) -> Market:
    calendars = read_calendars(data_folder() / CALENDARS)
    if isinstance(market.calendar, str) and market.calendar in calendars:
        return replace(market, calendar=calendars[market.calendar])
    return market


def _defined_market(name: str, market_file: Path | None) -> Market:
    if market_file is not None:
        market = load_market_file(market_file)
        path = str(market_file.absolute())
        if not is_trusted(path, "path"):
            try:
                keep(path, file_of(path, "path"))
            except OSError as error:
                log.warning(
                    "%s cannot be remembered in %s (%s): give it to each command with "
                    "--market-file, or set XDG_STATE_HOME to a writable folder",
                    path,
                    trusted_folder(),
                    error.strerror,
                )
        return market
    if name in market_names():
        return load_market(name)
    with suppress(StoreError, StoreUsageError):  # there may be no store yet
        own_market = _own_market(open_reader(), name)
        if own_market is not None:
            market, is_given = own_market
            if not is_given and (market.code is not None or _has_feed(market)):
                file, _ = market.file or ("its file", "")
                raise UsageError(
                    f"the store's copy of {file} names {market.code or market.source}, which does "
                    "not run, because the store may be somebody else's: if the file is yours, give "
                    f"it once on this machine with --market-file {file}"
                )
            return market
    return load_market(name)  # raises the error that lists the known markets


def market_of_store(engine: Engine, name: str) -> Market | None:
    """Return a market of a store as `read_market`, or None; stored text comes without its code."""
    try:
        own_market = None if name in market_names() else _own_market(engine, name)
        market = load_market(name) if own_market is None else own_market[0]
    except (DtmlError, StoreError):
        return None
    if own_market is not None and not own_market[1]:
        market = replace(market, code=None)
        if _has_feed(market):
            market = replace(market, source=Market.source)
    return _with_calendars(market)


def named_in_command(market: Market) -> str:
    """Return how a command names a market: by its file where that is there, else by its name."""
    if market.file is not None and market.file[0].exists():
        return f"--market-file {market.file[0]}"
    return market.name


def no_such_market(name: str, stored: Sequence[str], of_file: Market | None = None) -> str:
    """Return the message that a store lacks a market: which ones it has, and how to begin it."""
    named = named_in_command(of_file) if of_file else name
    first = f"run a first night of it with `dtml nightly {named}`"
    if not stored:
        return f"the store has no market {name!r}: it has no market yet; {first}"
    more = f" and {len(stored) - 12} more" if len(stored) > 12 else ""
    return (
        f"the store has no market {name!r}: {did_you_mean(name, stored)}choose one of "
        f"{', '.join(stored[:12])}{more}, or {first}"
    )


def settings_place(market: Market) -> str:
    """Return in words the file in which a user changes a market: of the package's, a copy."""
    if market.file is not None:
        return str(market.file[0])
    shipped = resources.files("dtml.markets") / f"{market.name}.toml"
    return f"a copy of {shipped} under another name, given with --market-file"


def _own_market(engine: Engine, name: str) -> tuple[Market, bool] | None:
    """Return a user's own market whose file the store keeps, and whether this user's file was read.

    None for others. Raises UsageError where the file or text is refused.
    """
    with reading(engine) as conn:
        stored = read_row(conn, "market_file", market=name)
    if stored is None:
        return None
    path, text_then = Path(stored["path"]), stored["text"]
    if path.stem == name and path.exists():
        if is_trusted(str(path), "path"):  # the user may have changed settings since
            return load_market_file(path), True
        log.warning(
            "%s: the store's copy of %s is read, as that file was never given on this machine: "
            "give it once with --market-file, if it is yours",
            name,
            path,
        )
    try:
        return load_market_file(path.with_name(f"{name}.toml"), text_then), False
    except UsageError as error:
        raise UsageError(
            f"{path} is gone or was never given with --market-file on this machine, and the "
            f"store's copy of it is refused: give a corrected file with --market-file ({error})"
        ) from error


def _has_feed(market: Market) -> bool:
    return market.source not in get_args(SourceName)
