"""What every page that scores says of the list of constituents: survivors, and missing prices."""

from dtml.evaluation.survivorship import Survivorship
from dtml.pages.figures import Row
from dtml.pages.rendering import said


def survivorship_words(found: Survivorship) -> str:
    """Say which kind of list it is, with a share of its names, and what share has no price."""
    return said("survivorship", found)


def of_study(study: Row) -> str:
    """Say it of a stored backtest, benchmark or ranking; empty where nothing was counted."""
    counts = study["config"].get("list")
    return "" if counts is None else survivorship_words(Survivorship(**counts))
