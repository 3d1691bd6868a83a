"""Where the code of a user's own feed is: in a file beside the market's file, or in a package."""

from dataclasses import dataclass
from pathlib import Path

from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import Market, installed_feeds, is_feed_file


class FeedError(DtmlError):
    """A fault of a user's own feed; it ends the fetch, and nothing of the fetch is stored."""


@dataclass(frozen=True)
class FeedCode:
    """The code of a feed as it was found.

    `name` is that of the file or of the entry point; stored bars carry it as their source. A file
    has its `path` and its `text`, an entry point has only `entry`, such as "vendor.feed:Vendor".
    The fields that it lacks are empty.
    """

    name: str
    path: str = ""
    text: str = ""
    entry: str = ""

    @classmethod
    def of(cls, source: str, market: Market) -> "FeedCode":
        """Return the code of the feed that a market's file or the user names.

        A relative path begins at the folder of the market's file if that file names it, else at
        the working folder. Raises UsageError for a file that cannot be read and for a name that is
        not installed.
        """
        if not is_feed_file(source):
            installed = installed_feeds()
            if source not in installed:
                raise UsageError(
                    f"source {source!r} is not installed: install the package that provides it, or "
                    "name another source"
                )
            return cls(name=source, entry=installed[source].value)
        is_of_market = source == market.source
        folder = market.file[0].parent if market.file and is_of_market else Path()
        file = (folder / source).absolute()
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(
                f"{file}: the file of your own feed cannot be read ({problem}): check its path and "
                "permissions, and that it is UTF-8 text"
            ) from problem
        return cls(name=file.name, path=str(file), text=text)
