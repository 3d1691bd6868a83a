"""Orders in whole lots: from the shares held towards the weights wanted.

They cost no more than the capital.
"""

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

PerStock = Float[ndarray, " stocks"]
SLACK = 1e-9  # of a lot: a quotient that rounding leaves that far below a whole lot is one


def whole_lots(shares: PerStock, lot: int) -> PerStock:
    """Return so many shares, 0 or more, rounded down to multiples of a lot."""
    return np.asarray(np.floor(shares / lot + SLACK) * lot)


def trades(
    held: PerStock,
    weights: PerStock,
    price: PerStock,
    *,
    capital: float,
    lot: int,
    kept: Bool[ndarray, " stocks"],
    rates: tuple[float, float],
) -> PerStock:
    """Return the shares to trade in each stock: above 0 bought, below 0 sold.

    `held` are shares, 0 or more; `weights` shares of the `capital` to hold after the trades, 0 or
    more and 1 in all at most; `price` and `capital` are in currency units; `rates` are what a
    purchase and a sale cost, as shares of their value.

    What has no weight is sold whole, odd lots too. What is `kept` is not traded. Every other trade
    is the difference to the weight, rounded down to whole lots, so that no sale leaves less than
    the weight. Purchases shrink by one factor where they and their costs exceed the cash left.
    """
    purchase_rate, sale_rate = rates
    wanted = weights * capital / price
    gap = np.where(kept, 0.0, wanted - held)
    surplus = whole_lots(np.maximum(-gap, 0.0), lot)
    sold = np.where(weights > 0, surplus, held)
    cash = capital - held @ price + (sold @ price) * (1 - sale_rate)
    asked = np.maximum(gap, 0.0)
    cost = (asked @ price) * (1 + purchase_rate)
    share = 0.0
    if cost > 0:
        share = min(1.0, max(cash, 0.0) / cost)
    bought = whole_lots(share * asked, lot)
    return bought - sold
