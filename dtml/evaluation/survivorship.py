"""How far a list of constituents names only stocks that survived, and how much of it has prices.

Survivors flatter whoever holds stocks, and slow features most. A constituent without a price may
have been delisted.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dtml.markets import Market
from dtml.markets.definition import YEAR
from dtml.prices.returns import on_grid

SUSPENDED = 20  # days without a price after which a stock counts as ended


@dataclass(frozen=True)
class Survivorship:
    """Counts of a list of constituents over the days that are scored.

    - list_date: the day on which the list was true, as text; None unknown, and for stocks
      `of_prices`;
    - is_dated: whether the list has any date; else its stocks are constituents on every day;
    - names: constituents on any of the days, `first_names` on the first, `last_names` on the last;
    - first_priced: the names with a price on the first day;
    - constituent_days: days as a constituent over all stocks, `without_price` of them without one;
    - last_priced: the names with a price on one of the last `SUSPENDED` days; None in less than a
      year.
    """

    list_date: str | None
    is_dated: bool
    names: int
    first_names: int
    last_names: int
    first_priced: int
    constituent_days: int
    without_price: int
    last_priced: int | None = None
    of_prices: bool = False

    @property
    def has_only_survivors(self) -> bool:
        """Return whether every name is a constituent on the last day, or still traded then."""
        return self.names in (self.last_names, self.last_priced)


def survivorship_of(market: Market, days: pd.DatetimeIndex, bars: pd.DataFrame) -> Survivorship:
    """Count the constituents of a market on some sessions, and those without a bar in `bars`."""
    is_constituent = market.is_constituent(days)
    has_price = np.isfinite(on_grid(bars, "close", days, market.symbols))
    is_name = is_constituent.any(axis=0)
    return Survivorship(
        list_date=date_of(market),
        is_dated=not market.is_snapshot,
        names=int(is_name.sum()),
        first_names=int(is_constituent[:1].sum()),
        last_names=int(is_constituent[-1:].sum()),
        first_priced=int((has_price & is_name)[:1].sum()),
        constituent_days=int(is_constituent.sum()),
        without_price=int((is_constituent & ~has_price).sum()),
        last_priced=(
            int((has_price & is_name)[-SUSPENDED:].any(axis=0).sum()) if len(days) >= YEAR else None
        ),
        of_prices=market.of_prices,
    )


def date_of(market: Market) -> str | None:
    """Return the date of the list that a market's stocks are of, as text; None without one."""
    if market.of_prices or market.constituents_as_of is None:
        return None
    return str(market.constituents_as_of)
