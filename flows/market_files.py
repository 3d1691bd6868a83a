"""Read a market by its name: one of the package, or a user's own, whose file the store keeps."""

from contextlib import suppress
from pathlib import Path

from db.engine import open_reader, reading
from db.errors import StoreError, StoreUsageError
from db.rows import markets
from dtml.markets import Market, load_market, load_market_file, market_names


def read_market(name: str, market_file: Path | None = None) -> Market:
    """Read the market called `name`, or the one that a user's file describes.

    The store knows the files of users' own markets that had a night: such a file is read where it
    lay or, where it is gone, as it was.
    """
    if market_file is None and name not in market_names():
        with suppress(StoreError, StoreUsageError), reading(open_reader()) as conn:
            if (stored := markets.file_of(conn, name)) is not None:
                path, text = Path(stored[0]), stored[1]
                return load_market_file(path, None if path.exists() else text)
    return load_market(name) if market_file is None else load_market_file(market_file)
