"""What a market's file says of its source: its name, and what a feed of the user's own may read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtml.errors import UsageError
from dtml.markets.table import Table

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FILE_SUFFIX = ".py"
GROUP = "dtml.sources"  # of the entry points by which installed packages offer feeds
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class FeedAccess:
    """What the process of a feed is given beyond the network.

    - environment: names of environment variables, such as that of an API key.
    """

    environment: tuple[str, ...] = ()


def is_feed_file(source: str) -> bool:
    """Return whether the name of a source is the path of a Python file."""
    return source.endswith(FILE_SUFFIX)


def installed_feeds() -> dict[str, "EntryPoint"]:
    """Return the entry points of `GROUP` by name; none of them is imported."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def read_source(table: Table, built_in: Iterable[str], default: str) -> str:
    """Return the key `source`: a built-in source, an installed feed, or the path of a file.

    Whether the file exists is seen when it is opened. Raises UsageError for any other name.
    """
    known = sorted(built_in)
    name = table.optional("source", str, default)
    if name in known or is_feed_file(name):
        return name
    try:
        return table.choice("source", [*known, *installed_feeds()])
    except UsageError as problem:
        raise UsageError(f"{problem}, or a file of your own such as mine.py") from problem


def read_feed(table: Table) -> FeedAccess:
    """Read the table [feed]; a mistake raises UsageError with its key."""
    table.allow("environment")
    names = table.texts("environment")
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise table.error(
                "environment",
                f"{name!r} cannot be the name of an environment variable; give one such as "
                "VENDOR_KEY",
            )
    return FeedAccess(environment=names)
