"""Find recorded splits and dividends that the prices contradict, though every bar is believable by
itself.

A split of 11:10 whose past is not divided is a return of -9.1 %; a dividend left in the adjusted
close is a fall, one
that was never paid a rise. A single day can do so honestly: these are warnings, and no bar is
rejected.
"""

import numpy as np
import pandas as pd

from dtml.markets.definition import Returns
from dtml.prices.returns import adjusted_price

UNDIVIDED = "undivided_split"
CONTRADICTED = "contradicted_dividend"
LEAST_SCATTER = 0.002  # log return; of a stock that hardly moves
UNUSUAL = 3  # times the scatter: a move that an ordinary session hardly has
LARGE = 0.05  # log change of adj_close / close; from here one day alone can be told from news
SURE = 5  # times the scatter, on one such day
DIFFERENCE = (0.005, 0.25)  # of the close before, and of the dividend: less is rounding
TINY = (0.0001, 0.0015)  # dividend / close before, a hundredth of 1 to 15 %
FEW_ERRORS = 2  # standard errors by which the falls on such ex-days are falls


def doubtful_actions(bars: pd.DataFrame, index_symbol: str, returns: Returns) -> pd.DataFrame:
    """Return symbol, reason and value, in words, of each stock whose prices contradict a recorded
    split or dividend.

    `bars` is a bars frame of accepted bars with the history of each stock; `returns` names the
    price that returns are
    taken from: where it is the close, no dividend is judged.
    """
    stocks = bars[bars["symbol"] != index_symbol]
    if stocks.empty:
        return pd.DataFrame(columns=["symbol", "reason", "value"], dtype=str)
    days = _days(stocks, returns)
    found = [_undivided(days)]
    if returns == "adj_close":
        found += [_not_taken_out(days), _not_paid(days), _hundredth(days)]
    named = pd.concat(found, ignore_index=True).drop_duplicates(["symbol", "reason"])
    return named.sort_values(["symbol", "reason"], ignore_index=True)


def has_actions(bars: pd.DataFrame) -> "pd.Series[bool]":
    """Return which bars have a recorded split or dividend."""
    return bars["split"].notna() | bars["dividend"].notna()


def _days(bars: pd.DataFrame, returns: Returns) -> pd.DataFrame:
    """Return the log changes of each bar from the one before, and `scatter`,
    what an ordinary one is of its stock.
    """
    rows = bars.sort_values(["symbol", "session"], ignore_index=True)
    symbol = rows["symbol"]
    logs = pd.DataFrame(
        {"close": rows["close"], "price": adjusted_price(rows, returns), "adj": rows["adj_close"]}
    )
    changes = logs.apply(np.log).groupby(symbol).diff()
    days = rows[["symbol", "session", "dividend", "split"]].assign(
        close=changes["close"],
        price=changes["price"],
        step=changes["adj"] - changes["close"],
        paid=rows["dividend"].where(rows["dividend"] > 0) / rows["close"].groupby(symbol).shift(),
    )
    usual = (
        days["price"].abs().groupby(symbol).median() * 1.4826
    )  # of a normal distribution, its standard deviation
    days["scatter"] = symbol.map(usual.clip(lower=LEAST_SCATTER))
    return days


def _undivided(days: pd.DataFrame) -> pd.DataFrame:
    """Return the stocks whose price moves by a recorded split, as if the days
    before had not been divided.
    """
    splits = days[days["split"].notna()]
    beside = (splits["price"] + np.log(splits["split"])).abs()
    moved = splits["price"].abs()
    found = splits[(moved > UNUSUAL * splits["scatter"]) & (beside < moved / 2)]
    said = [
        f"on {row.session:%Y-%m-%d} it moves by {np.expm1(row.price):+.1%} with a split of "
        f"{row.split:.4g} recorded: "
        "the days before are not divided by it (its own return is "
        f"{np.exp(row.price) * row.split - 1:+.1%})"
        for row in found.itertuples()
    ]
    return _named(found, UNDIVIDED, said)


def _not_taken_out(days: pd.DataFrame) -> pd.DataFrame:
    """Return the stocks whose adjusted close takes out another amount than the
    dividend recorded.
    """
    taken = -np.expm1(-days["step"])
    bound = np.maximum(DIFFERENCE[0], DIFFERENCE[1] * days["paid"])
    found = days.assign(taken=taken)[days["split"].isna() & ((taken - days["paid"]).abs() > bound)]
    said = [
        f"on {row.session:%Y-%m-%d} a dividend of {row.paid:.1%} of the close before is recorded, "
        "and adj_close takes "
        f"out {row.taken:.1%}"
        for row in found.itertuples()
    ]
    return _named(found, CONTRADICTED, said)


def _not_paid(days: pd.DataFrame) -> pd.DataFrame:
    """Return the stocks whose adjusted close takes out much on a day on which
    the close does not fall by it.
    """
    way = days["price"] * np.sign(days["step"])
    sure = np.maximum(days["step"].abs() / 2, SURE * days["scatter"])
    found = days[days["split"].isna() & (days["step"].abs() >= LARGE) & (way >= sure)]
    said = [
        f"on {row.session:%Y-%m-%d} adj_close takes out {-np.expm1(-row.step):.1%}, and the close "
        "moves by "
        f"{np.expm1(row.close):+.1%}: no such dividend was paid"
        for row in found.itertuples()
    ]
    return _named(found, CONTRADICTED, said)


def _hundredth(days: pd.DataFrame) -> pd.DataFrame:
    """Return the stocks that fall a hundred times as far as their dividends:
    pounds recorded as pence.
    """
    market = days["close"].groupby(days["session"]).transform("median")
    own = days.assign(fall=market - days["close"])
    spread = 1.4826 * own["fall"].abs().groupby(own["symbol"]).median()
    tiny = own[own["paid"].between(*TINY) & own["split"].isna()]
    mean = tiny.groupby("symbol").agg(
        days=("fall", "size"),
        fall=("fall", "mean"),
        paid=("paid", "mean"),
        session=("session", "max"),
    )
    error = spread.reindex(mean.index).clip(lower=LEAST_SCATTER) / np.sqrt(mean["days"])
    falls = mean["fall"] / (100 * mean["paid"])
    found = mean[(falls > 0.5) & (falls < 1.5) & (mean["fall"] > FEW_ERRORS * error)].reset_index()
    said = [
        f"on {row.days} ex-days, the last on {row.session:%Y-%m-%d}, it falls by {row.fall:.1%} "
        "more than the market, "
        f"a hundred times the dividend recorded ({row.paid:.3%} of the close before)"
        for row in found.itertuples()
    ]
    return _named(found, CONTRADICTED, said)


def _named(found: pd.DataFrame, reason: str, said: list[str]) -> pd.DataFrame:
    """Return a row for each stock: the newest day found, and how many there are."""
    rows = pd.DataFrame(
        {"symbol": list(found["symbol"]), "reason": reason, "value": said}, dtype=str
    )
    count = rows.groupby("symbol")["value"].transform("size")
    more = [f" ({days} days like this)" if days > 1 else "" for days in count]
    return rows.assign(
        value=rows["value"] + pd.Series(more, index=rows.index, dtype=str)
    ).drop_duplicates("symbol", keep="last")
