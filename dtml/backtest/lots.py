"""Orders in whole lots from the shares held towards target weights, within the capital."""

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

    `held` are shares; `capital` is their value and the cash, in the currency of `price`; `weights`
    are fractions of it, at most 1 in total; `rates` are the costs of a purchase and of a sale,
    fractions of the value traded.

    A weight of 0 is sold completely, odd lots included; others `kept` are not traded. Every other
    trade is rounded down to whole lots; purchases are scaled down by one factor where the cash is
    short.
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
