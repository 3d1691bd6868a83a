"""What trading in a market costs, which trades it refuses, and how its nights follow an order of the stocks."""

from dataclasses import dataclass, field, fields
from datetime import date
from math import inf
from typing import TYPE_CHECKING

from dtml.errors import UsageError

if TYPE_CHECKING:  # a market is read without waiting for pandas
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

BASIS_POINT = 1e-4
YEAR = 252  # sessions
SMALLEST_LIMIT = 0.01  # of a price in a day: rounding to ticks would pass for a smaller one

Rate = float | tuple[tuple[date, float], ...]  # one for all days, or each from its date on


def _values(rate: Rate) -> list[float]:
    return [rate] if isinstance(rate, float | int) else [value for _, value in rate]


def rate_on(rate: Rate, sessions: "pd.DatetimeIndex") -> "npt.NDArray[np.float64]":
    """Return the rate of each session; before the first date, the first rate."""
    import numpy as np

    if isinstance(rate, float | int):
        return np.full(len(sessions), float(rate))
    since, value = (np.array(each) for each in zip(*rate, strict=True))
    found = since.astype("datetime64[D]").searchsorted(sessions.to_numpy().astype("datetime64[D]"), side="right")
    return np.asarray(value[np.maximum(found - 1, 0)], dtype=float)


@dataclass(frozen=True)
class Costs:
    """The costs of trading, in basis points, each 0 or more.

    `commission` and `half_spread` (half of what is quoted between bid and ask) are paid on the value of every purchase
    and of every sale, `purchase_tax` and `sale_tax` on one of them; `borrow` is paid per year of 252 sessions on the
    value held short.
    """

    commission: Rate = 1.0
    half_spread: Rate = 2.0
    borrow: Rate = 50.0
    purchase_tax: Rate = 0.0
    sale_tax: Rate = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            for value in _values(getattr(self, each.name)):
                if not 0 <= value < inf:
                    raise UsageError(f"{each.name} must be 0 basis points or more, got {value}")

    def of_trades(self, sessions: "pd.DatetimeIndex") -> "tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]":
        """Return what a purchase and what a sale costs on each session, as a share of the value traded."""
        both = rate_on(self.commission, sessions) + rate_on(self.half_spread, sessions)
        bought, sold = (both + rate_on(tax, sessions) for tax in (self.purchase_tax, self.sale_tax))
        return bought * BASIS_POINT, sold * BASIS_POINT

    def of_shorts(self, sessions: "pd.DatetimeIndex") -> "npt.NDArray[np.float64]":
        """Return the cost of a session as a share of the value held short."""
        return rate_on(self.borrow, sessions) * BASIS_POINT / YEAR


FREE = Costs(0.0, 0.0, 0.0)
STANDARD = Costs()


@dataclass(frozen=True)
class Trading:
    """How a market is traded.

    A stock that opens `price_limit` (a ratio; 0.3 is 30 %) from the close before cannot be bought, or sold, there; None
    where the exchange has no such limit. Orders are for multiples of `lot` shares. The nights hold the `top` stocks of
    the order, in equal parts: by the mean rank of the last `smooth` nights, and a stock held is kept while its place
    is at most `band` times `top`. `sources` says where each fact comes from, and as of when.
    """

    costs: Costs = STANDARD
    price_limit: Rate | None = None
    lot: int = 1
    top: int = 20
    smooth: int = 1
    band: float = 1.0
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not all(value >= 1 for value in (self.lot, self.top, self.smooth, self.band)):
            raise UsageError("lot, top, smooth and band must be 1 or more")
        limits = [] if self.price_limit is None else _values(self.price_limit)
        if not all(SMALLEST_LIMIT <= value < inf for value in limits):
            raise UsageError(f"price_limit must be {SMALLEST_LIMIT} or more, a ratio")
