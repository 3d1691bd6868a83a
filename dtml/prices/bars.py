"""The checks of bars: each bar is accepted as it came or rejected with one reason, and none is
repaired.

A bar is one row of the table that sources return (`BAR_COLUMNS`): prices in the market's currency,
NaN where the source has no value, `split` the ratio of a split effective that session (2.0 is two
new shares for one) and `dividend` the cash paid per share, both NaN on ordinary sessions.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.markets.definition import Checks, Returns
from dtml.prices.jumps import FACTOR, brief_jumps

BAR_COLUMNS = (
    "symbol",
    "session",
    "open",
    "high",
    "low",
    "close",
    "adj_close",
    "volume",
    "dividend",
    "split",
)
PRICES = ("open", "high", "low", "close")
MISPLACED = ("future_session", "open_session", "not_a_session", "duplicate_session")
REASONS = (  # a bar with several faults is rejected for the first of these
    *MISPLACED,
    *(
        "null_price",
        "non_positive_price",
        "high_below_low",
        "outside_range",
        "unexplained_range",
        "impossible_amount",
    ),
    *("stale_day", "brief_jump", "unexplained_return"),
)
HINDSIGHT = ("brief_jump",)  # what only a later bar can show: the bar may have been accepted before
ROUNDING = 1e-3  # adjusted prices of real sources leave [low, high] by up to 0.06 % of rounding
# times; nine public sets reach 9.2 (KBWD on 2015-08-24), a misplaced decimal point makes 10 or more
WIDEST = 10

Flags = Bool[ndarray, "bars"]
Values = Float[ndarray, "bars"]
Positions = Int[ndarray, "bars"]


@dataclass(frozen=True)
class Checked:
    """Checked bars in two frames; every bar is in exactly one of them, in the order it came.

    `accepted` has `BAR_COLUMNS`; `rejected` has symbol, session, reason (one of `REASONS`) and
    value, a text that shows what was wrong.
    """

    accepted: pd.DataFrame
    rejected: pd.DataFrame


def bars_frame(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table` in the one shape of bars: `BAR_COLUMNS`, str, naive datetime64[ns] and
    float64.

    Columns that the table lacks become NaN, other columns are left out. Some sources write a
    dividend of 0 and a split
    of 0 or 1 on ordinary sessions: they become NaN.
    """
    frame = pd.DataFrame(index=pd.RangeIndex(len(table)))
    frame["symbol"] = table["symbol"].to_numpy()
    frame["symbol"] = frame["symbol"].astype(str)
    frame["session"] = table["session"].to_numpy("datetime64[ns]")
    for column in BAR_COLUMNS[2:]:
        frame[column] = table[column].to_numpy(np.float64) if column in table else np.nan
    frame["dividend"] = frame["dividend"].where(frame["dividend"] != 0)
    frame["split"] = frame["split"].where(~frame["split"].isin([0, 1]))
    return frame


def no_bars() -> pd.DataFrame:
    """Return the frame of bars without a row."""
    return bars_frame(pd.DataFrame({"symbol": [], "session": []}))


def check(
    bars: pd.DataFrame,
    *,
    sessions: pd.DatetimeIndex,
    closed_until: date,
    checks: Checks,
    index_symbol: str,
    returns: Returns,
    market_size: int = 0,
) -> Checked:
    """Accept good bars and reject the others, naming for each the first of `REASONS` that applies.

    `sessions` are the exchange's and must span the bars; `closed_until` is its last closed session.
    `returns` names the price that returns are taken from; a symbol without any adjusted close is
    judged by its close, and its first bar has nothing to be compared with. `market_size` is the
    number of stocks a session should have, for a table that holds
    only some of them: one halted stock on its own is then no stale day. Raises ValueError when
    columns are not those of bars.
    """
    if tuple(bars.columns) != BAR_COLUMNS:
        raise ValueError(
            f"bars: expected columns {', '.join(BAR_COLUMNS)}; got "
            f"{', '.join(map(str, bars.columns))}"
        )
    rows = bars.reset_index(drop=True)
    judged = _Judged.of(rows, returns)
    faults = _calendar_faults(judged.session, sessions, closed_until)
    faults["duplicate_session"] = _duplicates(rows)
    faults |= _price_faults(rows, judged)
    misplaced = np.logical_or.reduce([faults[reason] for reason in MISPLACED])
    usable = ~misplaced & (judged.price > 0) & (judged.close > 0)
    before = _row_before(judged, usable)
    faults["brief_jump"] = _brief_jumps(
        judged, usable, before, rows["split"].notna().to_numpy(), checks.max_return
    )
    if faults["brief_jump"].any():
        before = _row_before(judged, usable & ~faults["brief_jump"])
    extent = intraday_extent(rows, before)
    faults["unexplained_range"] = extent >= WIDEST * (1 - ROUNDING)
    is_stock = (judged.symbols != index_symbol)[judged.code]
    without_volume = rows["volume"].to_numpy() == 0  # an unknown volume does not count as none
    repeated = is_stock & (before >= 0) & (judged.close == judged.close[before]) & without_volume
    there = ~misplaced & is_stock
    counts = (
        pd.DataFrame({"repeated": repeated & there, "there": there})
        .groupby(judged.session)
        .transform("sum")
    )
    share = np.asarray(
        counts["repeated"] / counts["there"].clip(lower=max(market_size, 1))
    )  # of each row's session
    faults["stale_day"] = repeated & (share >= checks.stale_share)
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.where(before >= 0, judged.price / judged.price[before] - 1, np.nan)
    faults["unexplained_return"] = (np.abs(change) > checks.max_return) & rows[
        "split"
    ].isna().to_numpy()
    table = np.stack([faults[reason] for reason in REASONS])
    bad = np.flatnonzero(table.any(axis=0))
    shown = rows.iloc[bad].assign(
        judged_by=np.where(judged.by_adjusted[bad], "adj_close", "close"),
        last=judged.price[before[bad]],
        change=change[bad],
        share=share[bad],
        extent=extent[bad],
    )
    reasons = [REASONS[first] for first in table[:, bad].argmax(axis=0)]
    words = {
        "reason": pd.Series(reasons, dtype=str),
        "value": pd.Series(list(_values(shown, reasons)), dtype=str),
    }
    rejected = shown[["symbol", "session"]].reset_index(drop=True).assign(**words)
    return Checked(rows.drop(bad).reset_index(drop=True), rejected)


@dataclass(frozen=True)
class _Judged:
    """The columns that checks share; returns are taken from `price`, the
    adjusted close where `by_adjusted`.
    """

    code: Positions
    symbols: ndarray
    session: ndarray
    close: Values
    price: Values
    by_adjusted: Flags

    @staticmethod
    def of(rows: pd.DataFrame, returns: Returns) -> "_Judged":
        code, symbols = pd.factorize(rows["symbol"])
        close, adjusted = (rows[name].to_numpy(np.float64) for name in ("close", "adj_close"))
        by_adjusted = np.zeros(len(rows), dtype=bool)
        if returns == "adj_close":
            by_adjusted = np.isin(code, np.unique(code[np.isfinite(adjusted)]))
        price = np.where(by_adjusted, adjusted, close)
        session = rows["session"].to_numpy("datetime64[ns]")
        return _Judged(code, np.asarray(symbols, dtype=object), session, close, price, by_adjusted)


def _calendar_faults(
    session: ndarray, sessions: pd.DatetimeIndex, closed_until: date
) -> dict[str, Flags]:
    """Return the faults of dates: a bar after the last closed session is of the
    session under way or of the future.
    """
    known = sessions.to_numpy("datetime64[ns]")
    closed = np.datetime64(closed_until, "ns")
    under_way = known[known > closed][:1]
    is_open = np.isin(session, under_way)
    return {
        "future_session": (session > closed) & ~is_open,
        "open_session": is_open,
        "not_a_session": ~np.isin(session, known),
    }


def _duplicates(rows: pd.DataFrame) -> Flags:
    """Return the rows that share symbol and session: all of them where they
    differ, as any of them may be correct.
    """
    # Where they are equal in every column the first is a good bar, and only its repeats are marked.
    together = rows.duplicated(["symbol", "session"], keep=False).to_numpy()
    if not together.any():
        return together
    repeated = rows[together].drop_duplicates()
    alone = ~repeated.duplicated(["symbol", "session"], keep=False)
    return np.asarray(together & ~rows.index.isin(repeated.index[alone]))


def _price_faults(rows: pd.DataFrame, judged: _Judged) -> dict[str, Flags]:
    opening, high, low, close = (rows[column].to_numpy(np.float64) for column in PRICES)
    needed = (opening, high, low, close, judged.price)
    amounts = rows[["volume", "dividend", "split"]].to_numpy(np.float64)
    floor, ceiling = low * (1 - ROUNDING), high * (1 + ROUNDING)
    return {
        "null_price": np.logical_or.reduce([~np.isfinite(price) for price in needed]),
        "non_positive_price": np.logical_or.reduce([price <= 0 for price in needed]),
        "high_below_low": high < low,
        "outside_range": (opening < floor)
        | (opening > ceiling)
        | (close < floor)
        | (close > ceiling),
        "impossible_amount": ((amounts < 0) | np.isinf(amounts)).any(axis=1),
    }


def _row_before(judged: _Judged, usable: Flags) -> Positions:
    """Return the position of the same symbol's last usable row before each row;
    -1 where there is none.
    """
    # A row rejected for its open, high or low is still usable: the next session is compared with
    # its close.
    order = np.lexsort((judged.session, judged.code))
    symbol = judged.code[order]
    last = pd.Series(order).where(usable[order]).groupby(symbol).ffill()
    before = np.full(len(order), -1)
    before[order] = last.groupby(symbol).shift().fillna(-1).astype(int)
    return before


def intraday_extent(rows: pd.DataFrame, before: Positions) -> Values:
    """Return how far the open, high and low of each bar lie from its close and the close before: a
    factor of 1 or more.

    `before` is the position of the bar before each, -1 where there is none. A price that the stock
    had at either close is no way off, so that a crash or a first day is not wide; NaN where a price
    is missing or not above 0.
    """
    opening, high, low, close = (rows[column].to_numpy(np.float64) for column in PRICES)
    last = np.where(before >= 0, close[before], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.maximum(opening, high) / np.fmax(close, last)
        below = np.fmin(close, last) / np.minimum(opening, low)
    return np.asarray(np.maximum(above, below))


def _brief_jumps(
    judged: _Judged, usable: Flags, before: Positions, split: Flags, max_return: float
) -> Flags:
    """Return which bars are at a level that their stock left again: only stocks
    that leap are looked at.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        leap = np.abs(np.log(judged.price / judged.price[before])) >= np.log(FACTOR)
    found = np.zeros(len(before), dtype=bool)
    for code in np.unique(judged.code[leap & usable & (before >= 0)]):
        mine = np.flatnonzero((judged.code == code) & usable)
        mine = mine[np.argsort(judged.session[mine], kind="stable")]
        found[mine] = brief_jumps(judged.price[mine], split[mine], max_return)
    return found


def _values(shown: pd.DataFrame, reasons: list[str]) -> Iterator[str]:
    """Yield what was wrong with each rejected bar; `shown` holds them with what
    they were judged by.
    """
    for reason, row in zip(reasons, shown.to_dict("records"), strict=True):
        match reason:
            case "null_price" | "non_positive_price":
                yield _show(
                    row,
                    [name for name in (*PRICES, row["judged_by"]) if not 0 < row[name] < np.inf],
                )
            case "high_below_low":
                yield _show(row, ["high", "low"])
            case "outside_range" | "unexplained_range" | "duplicate_session":
                yield _show(row, PRICES)
            case "impossible_amount":
                yield _show(row, ["volume", "dividend", "split"])
            case "stale_day":
                yield f"{_show(row, ['close', 'volume'])}, as in {row['share']:.1%} of the market"
            case "brief_jump":
                yield (
                    f"{_show(row, [row['judged_by']])} after {row['last']:.7g}, which "
                    "later bars "
                    "came back to"
                )
            case "unexplained_return":
                yield (
                    f"{_show(row, [row['judged_by']])} after {row['last']:.7g} "
                    f"({row['change']:+.1%})"
                )
            case _:
                yield f"session={row['session']:%Y-%m-%d}"


def _show(row: Mapping[Hashable, Any], columns: Iterable[str]) -> str:
    return " ".join(f"{name}={row[name]:.7g}" for name in dict.fromkeys(columns))
