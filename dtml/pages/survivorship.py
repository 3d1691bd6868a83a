"""What every page that scores says of the list of constituents: survivors, and missing prices."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dtml.evaluation.survivorship import Survivorship, read_survivorship
from dtml.pages.figures import count, day, percent


def survivorship_words(found: Survivorship) -> str:
    """Say whether a list names survivors alone, and what share of its days has no price."""
    share = unpriced(found.without_price, found.constituent_days)
    return f"Survivorship: {_kind_of_list(found)} {share}"


def unpriced(without_price: int, constituent_days: int) -> str:
    """Say what share of the days as a constituent has no price; "-" of none."""
    share = without_price / constituent_days if constituent_days else None
    return f"{percent(share)} of {count(constituent_days)} constituent-days have no price."


def _kind_of_list(found: Survivorship) -> str:
    """Say which of four kinds a list of constituents is, with a share of its names.

    - no list, but the stocks of the prices: how many had a price on the first day scored, and how
      many had none any more at the end, which is not known of less than a year;
    - a snapshot, the list of one day: how many names had a price on the first day scored;
    - a dated list of survivors, whose stocks are all constituents on the last day scored, or all
      traded then: how many were constituents on that day;
    - a dated list with stocks that left: the same, and how many had left by the last day scored.
    """
    if not found.is_dated:
        if found.of_prices:
            return _stocks_of_prices(found)
        priced = _share(found.first_priced, found.names)
        dated = f" of {found.list_date}" if found.list_date else ""
        return (
            f"the list of stocks is a snapshot{dated}, which is a list of survivors: stocks that "
            "left before are missing, which flatters portfolios that hold stocks. Which of its "
            f"{count(found.names)} names were constituents on the first day scored is not known; "
            f"{priced} had a price then."
        )
    on_first_day = (
        f"{_share(found.first_names, found.names)} of the {count(found.names)} names that are "
        "constituents on a day scored were on the first one"
    )
    if found.has_only_survivors:
        return (
            "the list is dated, but it is a list of survivors: each name that is a constituent on "
            f"a day scored still {'is' if found.last_names == found.names else 'trades'} on the "
            f"last, which flatters portfolios. {on_first_day}."
        )
    left = found.names - found.last_names
    return (
        "the list is dated, and a stock counts only while it was a constituent. "
        f"{on_first_day}, and {count(left)} had left by the last."
    )


def _stocks_of_prices(found: Survivorship) -> str:
    """Say how far the stocks of the prices are survivors, by the prices themselves."""
    stocks = (
        "the stocks are those of the prices, not of a list of constituents. "
        f"{_share(found.first_priced, found.names)} of these {count(found.names)} names had a "
        "price on the first day scored"
    )
    if found.last_priced is None:
        return f"{stocks}. Whether stocks that left before are missing is not known."
    if found.last_priced == found.names:
        return (
            f"{stocks}, and all still trade on the last: this is a list of survivors, which "
            "flatters portfolios that hold stocks."
        )
    ended = found.names - found.last_priced
    return f"{stocks}, and {count(ended)} had ended by the last."


def _share(part: int, whole: int) -> str:
    share = part / whole if whole else None
    return f"{count(part)} ({percent(share)})"


def of_backtest(backtest: Mapping[str, Any]) -> str:
    """Say which stocks could be in the panel, and the share of constituent-days without a price.

    Backtests of earlier versions did not count the names of their list.
    """
    counts = read_survivorship(backtest["config"].get("list"))
    if counts is not None:
        return survivorship_words(counts)
    days = 0 if pd.isna(backtest["constituent_days"]) else int(backtest["constituent_days"])
    without_price = int(backtest["without_price"]) if days else 0
    no_price = unpriced(without_price, days)
    if not backtest["list_is_snapshot"]:
        return (
            "Survivorship: the list is dated, and a stock counts only while it was a constituent. "
            f"{no_price}"
        )
    dated: str = "" if pd.isna(backtest["list_as_of"]) else f" of {day(backtest['list_as_of'])}"
    return (
        f"Survivorship: the list of stocks is a snapshot{dated}. Stocks that left before are "
        f"missing, which flatters portfolios that hold stocks. {no_price}"
    )
