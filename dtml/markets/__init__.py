"""Named markets, one TOML file each, and users' own markets in files of the same shape."""

import difflib
from dataclasses import replace
from pathlib import Path

from dtml.errors import UsageError
from dtml.markets.definition import Checks, Constituent, Index, Market, is_symbol
from dtml.markets.reading import read_market

__all__ = ["Checks", "Constituent", "Index", "Market", "is_symbol", "load_market", "load_market_file", "market_names"]

_FOLDER = Path(__file__).parent


def market_names() -> list[str]:
    """Return the names of the markets that come with the package, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_market(name: str) -> Market:
    """Read a market that comes with the package; for an unknown name UsageError lists those there are."""
    names = market_names()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"unknown market {name!r}: {hint}the markets are {', '.join(names)}")
    return read_market(_FOLDER / f"{name}.toml")


def load_market_file(path: Path, text: str | None = None) -> Market:
    """Read a user's own market; its name is the file's, and may not be that of a market of the package.

    `text` stands for a file that is no longer there. Raises UsageError, one line with file and key, for what is wrong.
    """
    if path.stem in market_names():
        # Two markets of one name would share their rows in the database.
        raise UsageError(f"{path}: {path.stem} is a market of this package; give the file another name")
    market, path = read_market(path, text), path.absolute()
    return replace(market, file=(path, path.read_text(encoding="utf-8") if text is None else text))
