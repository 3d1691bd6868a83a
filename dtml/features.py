"""The 11 features of a stock in a session (section 4.1 of Yoo et al., KDD 2021; Feng et al., IJCAI
2019).

All are percentages and read the session's own bar and earlier ones only; the bar before a halt
precedes the bar after it. NaN where a bar is missing.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dtml.markets.definition import ZClose
from dtml.prices import changes
from dtml.prices.returns import outcome

Prices = Float[ndarray, "sessions stocks"]
Features = Float[ndarray, "sessions stocks features"]

AVERAGED = (5, 10, 15, 20, 25, 30)  # bars in the mean of each of the features z_d5 to z_d30
FEATURES = ("z_open", "z_high", "z_low", "z_close", "z_adj_close", *(f"z_d{k}" for k in AVERAGED))
HISTORY = max(AVERAGED)  # bars that the longest average needs, the session's own included
MAX_GAP = changes.MAX_GAP  # sessions that may be missing inside those bars
# Raw and adjusted returns further apart than this have a split or spin-off between them.
CORPORATE_ACTION = 0.03


@dataclass(frozen=True)
class Panel:
    """Prices of a market on a grid of sessions, in currency units; NaN where there is no bar.

    `adjusted` is the adjusted close, or the close where the source has none.
    """

    open: Prices
    high: Prices
    low: Prices
    close: Prices
    adjusted: Prices


def returns(panel: Panel, max_return: float = np.inf) -> Prices:
    """Return the `outcome` of each session of the grid, counted from the session before."""
    return outcome(changes.before(panel.adjusted, 1), panel.adjusted, max_return)


def features(panel: Panel, *, z_close: ZClose, max_return: float = np.inf) -> Features:
    """Return all features in the order of `FEATURES`, in percent, NaN where history is missing.

    With `z_close="raw"`, that feature is the change of the unadjusted close, as in the paper, even
    over a split; with "adjusted" that of the adjusted price, where they are more than
    `CORPORATE_ACTION` apart. No feature reads prices from both sides of a change beyond
    `max_return`.
    """
    # [bars stocks]: the session of each bar of a stock, in time; after a stock's bars come the
    # sessions on which it has none.
    order = np.argsort(~np.isfinite(panel.adjusted), axis=0, kind="stable")
    bars = Panel(
        **{name: np.take_along_axis(grid, order, axis=0) for name, grid in vars(panel).items()}
    )
    raw_return = changes.change(bars.close)
    adjusted_return = changes.change(bars.adjusted)
    is_action = np.abs(raw_return - adjusted_return) > CORPORATE_ACTION
    replaces_raw = is_action & (z_close == "adjusted")
    # In the order of FEATURES, each with the number of bars that it reads.
    columns = [
        (1, bars.open / bars.close - 1),
        (1, bars.high / bars.close - 1),
        (1, bars.low / bars.close - 1),
        (2, np.where(replaces_raw, adjusted_return, raw_return)),
        (2, adjusted_return),
    ]
    for count in AVERAGED:
        mean = np.full_like(bars.adjusted, np.nan)
        if len(bars.adjusted) >= count:
            windows = np.lib.stride_tricks.sliding_window_view(bars.adjusted, count, axis=0)
            mean[count - 1 :] = windows.mean(axis=-1)
        columns.append((count, mean / bars.adjusted - 1))
    # Bars cannot be compared where too many sessions are missing between them, or where the unit of
    # account has changed. The change is 0 at a stock's first bar and after its last.
    change = np.nan_to_num(adjusted_return)
    era = np.cumsum(np.abs(change) > max_return, axis=0)
    by_bar = np.empty((*order.shape, len(FEATURES)))
    for place, (count, values) in enumerate(columns):
        by_bar[..., place] = np.where(changes.reads_enough(order, era, count), values, np.nan)
    # Back from the order of bars to the grid of sessions.
    by_session = np.full_like(by_bar, np.nan)
    np.put_along_axis(by_session, order[..., None], by_bar, axis=0)
    return 100 * by_session
