"""Orders in whole lots, which move a portfolio from the shares held towards target weights.

The orders of a day never cost more than the capital.
"""

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

PerStock = Float[ndarray, " stocks"]
SLACK = 1e-9  # of a lot: rounding may leave a whole number of lots this little too small


def whole_lots(shares: PerStock, lot: int) -> PerStock:
    """Return numbers of shares, 0 or more, rounded down to multiples of a lot."""
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

    `held` are numbers of shares, 0 or more. `capital` is the value of these and of the cash
    together. `weights` are the fractions of it to hold after the trades, each 0 or more, at most 1
    in total. `price`, known for every stock, and `capital` are in currency units. `rates` are the
    costs of a purchase and of a sale, as fractions of the value traded.

    A stock with a weight of 0 is sold completely, odd lots included, even if it is `kept`. Other
    stocks that are `kept` are not traded. Every other trade is the difference to the weight,
    rounded down to whole lots, so that no sale leaves less than the weight. Purchases are scaled
    down by one factor where they and their costs exceed the cash available.
    """
    purchase_rate, sale_rate = rates
    target_shares = weights * capital / price
    missing = np.where(kept, 0.0, target_shares - held)  # below 0 where too many shares are held
    surplus = whole_lots(np.maximum(-missing, 0.0), lot)
    sold = np.where(weights > 0, surplus, held)
    proceeds = (sold @ price) * (1 - sale_rate)
    cash = capital - held @ price + proceeds
    shortfall = np.maximum(missing, 0.0)
    cost = (shortfall @ price) * (1 + purchase_rate)
    affordable_share = 0.0
    if cost > 0:
        affordable_share = min(1.0, max(cash, 0.0) / cost)
    bought = whole_lots(affordable_share * shortfall, lot)
    return bought - sold
