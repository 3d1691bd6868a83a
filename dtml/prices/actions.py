"""Find splits and dividends that the prices contradict, though each bar is believable.

A split of 11:10 by which earlier prices were not divided is a return of -9.1 %; a dividend left in
the adjusted close is a fall, one deducted but never paid a rise. These are warnings.
"""

import numpy as np
import pandas as pd

from dtml.markets.definition import Returns
from dtml.prices.returns import adjusted_price, doubts

UNDIVIDED = "undivided_split"
CONTRADICTED = "contradicted_dividend"
LEAST_SCATTER = 0.002  # log return; the least scatter assumed of a stock
UNUSUAL = 3  # times the scatter: a move that is rare in an ordinary session
# Log change of adj_close / close from which a single day can be distinguished from news, and the
# move of the price on such a day, in scatters, that is no news.
LARGE = 0.05
SURE = 5
# The largest difference of a deduction from its dividend that is rounding: a share of the close
# before, or of the dividend, whichever is more.
DIFFERENCE = (0.005, 0.25)
TINY = (0.0001, 0.0015)  # dividend / close before, a hundredth of 1 to 15 %
FEW_ERRORS = 2  # standard errors that the mean fall on such ex-days must exceed
NORMAL = 1.4826  # standard deviation / median absolute value, of a normal distribution around 0


def doubtful_actions(bars: pd.DataFrame, index_symbol: str, returns: Returns) -> pd.DataFrame:
    """Return symbol, reason and value of each stock whose prices contradict a split or a dividend.

    Reasons: `UNDIVIDED`, `CONTRADICTED`; sorted. Dividends are recorded, or deducted by the
    adjusted closes. `bars` are accepted bars of a history; where returns are of the close, no
    dividend is judged.
    """
    stocks = bars[bars["symbol"] != index_symbol]
    if stocks.empty:
        return doubts([], UNDIVIDED, [])
    days = _daily_changes(stocks, returns)
    warnings = [_undivided(days)]
    if returns == "adj_close":
        # Of a stock that several of these three report, the first row is kept.
        warnings += [_wrongly_deducted(days), _not_paid(days), _hundredfold_falls(days)]
    doubtful = pd.concat(warnings, ignore_index=True).drop_duplicates(["symbol", "reason"])
    return doubtful.sort_values(["symbol", "reason"], ignore_index=True)


def has_actions(bars: pd.DataFrame) -> "pd.Series[bool]":
    """Return which bars have a recorded split or dividend."""
    return bars["split"].notna() | bars["dividend"].notna()


def _daily_changes(bars: pd.DataFrame, returns: Returns) -> pd.DataFrame:
    """Return a row for each bar with its log changes from the bar before, NaN for the first bar.

    `symbol, session, dividend, split`; log changes `close`, `price` (of returns), `step` (adj_close
    / close); `paid`, the dividend over the close before; `scatter`, the deviation of `price`, at
    least `LEAST_SCATTER`, from the median size.
    """
    rows = bars.sort_values(["symbol", "session"], ignore_index=True)
    symbol = rows["symbol"]
    prices = pd.DataFrame(
        {
            "close": rows["close"],
            "price": adjusted_price(rows, returns),
            "adj": rows["adj_close"],
        }
    )
    changes = prices.apply(np.log).groupby(symbol).diff()
    close_before = rows["close"].groupby(symbol).shift()
    days = rows[["symbol", "session", "dividend", "split"]].assign(
        close=changes["close"],
        price=changes["price"],
        step=changes["adj"] - changes["close"],
        paid=rows["dividend"].where(rows["dividend"] > 0) / close_before,
    )
    sizes = days["price"].abs()
    median_size = sizes.groupby(symbol).median()
    scatter = (median_size * NORMAL).clip(lower=LEAST_SCATTER)
    days["scatter"] = symbol.map(scatter)
    return days


def _undivided(days: pd.DataFrame) -> pd.DataFrame:
    """Return the stocks that move by about a split's ratio, and over `UNUSUAL` scatters."""
    splits = days[days["split"].notna()]
    moved = splits["price"].abs()
    # An undivided price moves by -log(split), a divided one by an ordinary return.
    away_from_split = (splits["price"] + np.log(splits["split"])).abs()
    is_unusual = moved > UNUSUAL * splits["scatter"]
    is_like_split = away_from_split < moved / 2
    undivided = splits[is_unusual & is_like_split]
    values = [
        f"on {row.session:%Y-%m-%d} the price moves by {np.expm1(row.price):+.1%} "
        f"with a recorded split of {row.split:.4g}: earlier prices are not divided by it "
        f"(the split-adjusted return is {np.exp(row.price) * row.split - 1:+.1%})"
        for row in undivided.itertuples()
    ]
    return _newest_day_of_each_stock(undivided["symbol"], UNDIVIDED, values)


def _wrongly_deducted(days: pd.DataFrame) -> pd.DataFrame:
    """Return the stocks whose adjusted close deducts a dividend wrongly, but on a split's day."""
    # As a share of the close before: adj_close / close rises by 1 / (1 - deduction) on the ex-day.
    deduction = -np.expm1(-days["step"])
    bound = np.maximum(DIFFERENCE[0], DIFFERENCE[1] * days["paid"])
    # False on days without a dividend, where `paid` is NaN.
    differs = (deduction - days["paid"]).abs() > bound
    contradicted = days.assign(deduction=deduction)[days["split"].isna() & differs]
    values = [
        f"on {row.session:%Y-%m-%d} a dividend of {row.paid:.1%} of the previous close is "
        f"recorded, but adj_close takes out {row.deduction:.1%}"
        for row in contradicted.itertuples()
    ]
    return _newest_day_of_each_stock(contradicted["symbol"], CONTRADICTED, values)


def _not_paid(days: pd.DataFrame) -> pd.DataFrame:
    """Return the stocks whose adjusted close deducts a large dividend that was not paid.

    The price of returns then moves by about the step of adj_close / close; after a real one it
    hardly moves. A step down counts too if the price falls with it. Days with a split are left out.
    """
    is_large = days["step"].abs() >= LARGE
    along_step = days["price"] * np.sign(days["step"])  # above 0 if it moves as the step does
    bound = np.maximum(days["step"].abs() / 2, SURE * days["scatter"])
    is_sure = along_step >= bound
    contradicted = days[days["split"].isna() & is_large & is_sure]
    values = [
        f"on {row.session:%Y-%m-%d} adj_close takes out {-np.expm1(-row.step):.1%}, "
        f"but the close moves by {np.expm1(row.close):+.1%}: no such dividend was paid"
        for row in contradicted.itertuples()
    ]
    return _newest_day_of_each_stock(contradicted["symbol"], CONTRADICTED, values)


def _hundredfold_falls(days: pd.DataFrame) -> pd.DataFrame:
    """Return the stocks that fall by about a hundred times their dividends on ex-days.

    Such dividends are in pounds, beside prices in pence. Only dividends within `TINY` count, on
    days without a split. The mean fall, measured against the day's median stock, is 50 to 150 times
    the mean dividend, and above `FEW_ERRORS` standard errors.
    """
    median_change = days["close"].groupby(days["session"]).transform("median")
    days = days.assign(fall=median_change - days["close"])
    # The standard deviation of a stock's falls, estimated by their median size.
    median_fall = days["fall"].abs().groupby(days["symbol"]).median()
    fall_scatter = NORMAL * median_fall
    is_tiny = days["paid"].between(*TINY)
    ex_days = days[is_tiny & days["split"].isna()]
    # A row for each stock with such days; `session` is the newest of them.
    means = ex_days.groupby("symbol").agg(
        days=("fall", "size"),
        fall=("fall", "mean"),
        paid=("paid", "mean"),
        session=("session", "max"),
    )
    scatter_of_stock = fall_scatter.reindex(means.index).clip(lower=LEAST_SCATTER)
    error = scatter_of_stock / np.sqrt(means["days"])
    share_of_hundredfold = means["fall"] / (100 * means["paid"])
    is_hundredfold = (share_of_hundredfold > 0.5) & (share_of_hundredfold < 1.5)
    is_sure = means["fall"] > FEW_ERRORS * error
    contradicted = means[is_hundredfold & is_sure].reset_index()
    values = [
        f"on {row.days} ex-days, the last on {row.session:%Y-%m-%d}, the price falls by "
        f"{row.fall:.1%} more than the market, a hundred times the recorded dividend "
        f"({row.paid:.3%} of the previous close)"
        for row in contradicted.itertuples()
    ]
    return _newest_day_of_each_stock(contradicted["symbol"], CONTRADICTED, values)


def _newest_day_of_each_stock(
    symbol: "pd.Series[str]", reason: str, values: list[str]
) -> pd.DataFrame:
    """Return `symbol, reason, value` of each stock's newest day, with the number of days."""
    rows = doubts(symbol, reason, values)
    count = rows.groupby("symbol")["value"].transform("size")
    how_many = [f" ({days} days like this)" if days > 1 else "" for days in count]
    rows["value"] += pd.Series(how_many, index=rows.index, dtype=str)
    return rows.drop_duplicates("symbol", keep="last")
