"""The checks of bars: each is accepted unchanged or rejected with one reason; none is repaired.

A bar is a row of `BAR_COLUMNS`: prices in the market's currency, NaN missing; `split` the ratio
effective that session (2.0 is two new shares for one) and `dividend` the cash per share, NaN on
ordinary sessions.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy import ndarray

from dtml.markets.definition import COLUMN_NAMES, Checks, Returns

# No stock of nine public sets (4.7 million bars) leaves its level so far and is back so soon: the
# nearest, ASPS in January 2015, fell to .61 of its price for three sessions.
LEAP = np.log(3.0)  # log: every bar of a run is as far above both neighbours, or below both
LONGEST = 5  # bars; a longer run is a level of its own


def _brief_jumps(
    level: Float[ndarray, " bars"], explained: Bool[ndarray, " bars"], max_return: float
) -> Bool[ndarray, " bars"]:
    """Return which bars of one symbol are a run away from its level, of `LONGEST` bars at most.

    `level` is the log price; a split explains the `explained`. Bars before and after a run differ
    by at most `max_return`; the newest is never marked.
    """
    is_leap = np.abs(np.diff(level)) >= LEAP
    marked = np.zeros(len(level), dtype=bool)
    for first in np.flatnonzero(is_leap & ~explained[1:]) + 1:
        if marked[first - 1]:
            continue  # within an earlier run, or the bar after it, which came back
        before = level[first - 1]
        next_bars = level[first : first + LONGEST + 1]
        distance = (next_bars - before) * np.sign(level[first] - before)  # above 0: away
        near_bars = np.flatnonzero(distance < LEAP)
        if not len(near_bars):
            continue
        # The run ends at the first near bar. If that bar is at a third level, there is no run.
        end = first + near_bars[0]
        came_back = abs(np.exp(level[end] - before) - 1) <= max_return
        is_far_from_end = (np.abs(level[first:end] - level[end]) >= LEAP).all()
        # A split in the run, or on the bar that comes back, explains it.
        marked[first:end] = came_back and is_far_from_end and not explained[first : end + 1].any()
    return marked


BAR_COLUMNS = ("symbol", "session", *COLUMN_NAMES[2:])
PRICES = ("open", "high", "low", "close")
MISPLACED = ("future_session", "open_session", "not_a_session", "duplicate_session")
REASONS = (  # a bar with several faults is rejected for the first of these
    *MISPLACED,
    "null_price",
    "non_positive_price",
    "high_below_low",
    "outside_range",
    "unexplained_range",
    "impossible_amount",
    "repeated_bar",
    "stale_day",
    "brief_jump",
    "unexplained_return",
)
HINDSIGHT = ("brief_jump",)  # shown only by a later bar: the bar may have been accepted before
ROUNDING = 1e-3  # adjusted prices of real sources are up to 0.06 % outside [low, high] by rounding
# A factor: nine public sets reach 9.2 (KBWD on 2015-08-24), a misplaced decimal point 10 or more.
WIDEST = 10
# Stocks that must all repeat their bars where one alone may do so, as with closes alone: one close
# in thirty is that of the session before.
FEWEST_TOGETHER = 5


@dataclass(frozen=True)
class Checked:
    """Bars `accepted` (`BAR_COLUMNS`) or `rejected`: symbol, session, reason, value."""

    accepted: pd.DataFrame
    rejected: pd.DataFrame


def bars_frame(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table` in the common shape of bars: `BAR_COLUMNS`, str, naive datetime64[ns],
    float64.

    Missing columns are NaN; so are a dividend of 0 and a split of 0 or 1.
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

    `sessions` of the exchange span the bars; `closed_until` is its last closed one. `returns` names
    the price that returns are taken from; a symbol without adjusted closes is judged by its close.
    `market_size` stocks should be in a session: of a part of a market, one halt is no stale day.
    """
    rows = bars.reset_index(drop=True)  # below, the label of a row is its position
    session, close, volume = rows["session"], rows["close"], rows["volume"]
    has_adjusted = np.isfinite(rows["adj_close"]).groupby(rows["symbol"]).transform("any")
    by_adjusted = has_adjusted.astype(bool) & (returns == "adj_close")
    rows["price"] = price = rows["adj_close"].where(by_adjusted, close)
    is_open = session.isin(sessions[sessions > pd.Timestamp(closed_until)][:1])
    misplaced = {
        "future_session": (session > pd.Timestamp(closed_until)) & ~is_open,
        "open_session": is_open,
        "not_a_session": ~session.isin(sessions),
        "duplicate_session": _duplicates(bars.reset_index(drop=True)),
    }
    is_misplaced = np.logical_or.reduce(list(misplaced.values()))
    # The bars with which the next bar of their symbol is compared. One that is rejected for its
    # open, high or low is among them.
    usable = ~is_misplaced & (price > 0) & (close > 0)
    last = _last_bars(rows, usable)
    is_split = _is_split(rows, last, checks.max_return)
    brief_jump = pd.Series(False, index=rows.index)
    level = np.log(price.where(usable))
    leaping = rows.loc[(level - np.log(last["price"])).abs() >= LEAP, "symbol"].unique()
    for _, of_symbol in rows[usable & rows["symbol"].isin(leaping)].groupby("symbol"):
        in_time = of_symbol.sort_values("session", kind="stable").index
        brief_jump[in_time] = _brief_jumps(
            level[in_time].to_numpy(), is_split[in_time].to_numpy(), checks.max_return
        )
    if brief_jump.any():  # the bar after a jump is compared with the one before it
        last = _last_bars(rows, usable & ~brief_jump)
        is_split = _is_split(rows, last, checks.max_return)
    change = price / last["price"] - 1
    named = [*PRICES, "volume"]
    is_same = (rows[named] == last[named]) | (rows[named].isna() & last[named].isna())
    is_repeated = is_same.all(axis=1) & last["close"].notna()
    is_idle = (close == last["close"]) & (volume == 0)
    is_stock = rows["symbol"] != index_symbol
    is_there = is_stock & ~is_misplaced
    share = _share_of_session(session, is_idle, is_there, max(market_size, 1))
    fewest = max(market_size, FEWEST_TOGETHER)
    share = share.mask(_share_of_session(session, is_repeated, is_there, fewest) == 1, 1.0)
    opening, high, low = rows["open"], rows["high"], rows["low"]
    floor, ceiling = low * (1 - ROUNDING), high * (1 + ROUNDING)
    # How far a bar goes beyond its close and the close before, a factor.
    above = np.maximum(opening, high) / np.fmax(close, last["close"])
    below = np.fmin(close, last["close"]) / np.minimum(opening, low)
    amounts = rows[["volume", "dividend", "split"]]
    needed = rows[[*PRICES, "price"]]
    faults = {
        **misplaced,
        "null_price": ~np.isfinite(needed).all(axis=1),
        "non_positive_price": (needed <= 0).any(axis=1),
        "high_below_low": high < low,
        "outside_range": ~(opening.between(floor, ceiling) & close.between(floor, ceiling)),
        # A misplaced decimal point is a factor of 10 but for the rounding of prices.
        "unexplained_range": np.maximum(above, below) >= WIDEST * (1 - ROUNDING),
        "impossible_amount": ((amounts < 0) | np.isinf(amounts)).any(axis=1),
        # In eleven public sets (4.9 million bars) none with a range and a volume above 0 repeats
        # both, and in six indices (28,000 bars) none with a range repeats its prices.
        "repeated_bar": is_repeated & (high > low) & ((volume > 0) | ~is_stock),
        "stale_day": is_stock & (is_idle | is_repeated) & (share >= checks.stale_share),
        "brief_jump": brief_jump,
        "unexplained_return": (change.abs() > checks.max_return) & ~is_split,
    }
    is_at_fault = np.stack([faults[reason] for reason in REASONS])  # [reasons bars]
    places = np.flatnonzero(is_at_fault.any(axis=0))
    reasons = [REASONS[first] for first in is_at_fault[:, places].argmax(axis=0)]
    judged_by = np.where(by_adjusted[places], "adj_close", "close")
    shown = rows.iloc[places].assign(
        judged_by=judged_by,
        last=last["price"].iloc[places],
        change=change.iloc[places],
        share=share.iloc[places],
    )
    records = shown.to_dict("records")
    values = [_value(reason, row) for reason, row in zip(reasons, records, strict=True)]
    rejected = rows.loc[places, ["symbol", "session"]].reset_index(drop=True)
    return Checked(
        accepted=bars.reset_index(drop=True).drop(places).reset_index(drop=True),
        rejected=rejected.assign(
            reason=pd.Series(reasons, dtype=str), value=pd.Series(values, dtype=str)
        ),
    )


def _duplicates(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return the rows that share symbol and session: all where they differ, else the repeats."""
    is_shared = rows.duplicated(["symbol", "session"], keep=False)
    # A symbol and session whose rows are all equal keeps one row here, the first.
    distinct = rows[is_shared].drop_duplicates()
    good_rows = distinct.index[~distinct.duplicated(["symbol", "session"], keep=False)]
    return is_shared & ~rows.index.isin(good_rows)


def _last_bars(rows: pd.DataFrame, usable: "pd.Series[bool]") -> pd.DataFrame:
    """Return the last usable bar of the same symbol before each row; NaN without one."""
    in_time = rows.sort_values("session", kind="stable")
    place = pd.Series(in_time.index, index=in_time.index).where(usable[in_time.index])
    of_symbol = in_time["symbol"]
    before = place.groupby(of_symbol).ffill().groupby(of_symbol).shift()
    places = before.reindex(rows.index).fillna(-1).astype(int)
    return rows[[*PRICES, "volume", "price"]].reindex(places).set_axis(rows.index)


def _is_split(rows: pd.DataFrame, last: pd.DataFrame, max_return: float) -> "pd.Series[bool]":
    """Return which bars have an ordinary return once it is multiplied by their recorded split."""
    return (rows["price"] / last["price"] * rows["split"] - 1).abs() <= max_return


def _share_of_session(
    session: "pd.Series[pd.Timestamp]",
    marked: "pd.Series[bool]",
    is_there: "pd.Series[bool]",
    fewest: int,
) -> "pd.Series[float]":
    """Return the share of each session's bars `is_there` that are marked, of `fewest` at least."""
    flags = pd.DataFrame({"marked": marked & is_there, "there": is_there})
    counts = flags.groupby(session).transform("sum")
    return counts["marked"] / counts["there"].clip(lower=fewest)


def _value(reason: str, row: Mapping[Hashable, Any]) -> str:
    """Return what was wrong with a rejected bar; `row` holds the bar and its evidence."""
    match reason:
        case "null_price" | "non_positive_price":
            prices = (*PRICES, row["judged_by"])
            bad_prices = [name for name in prices if not 0 < row[name] < np.inf]
            value = _show(row, bad_prices)
        case "high_below_low":
            value = _show(row, ["high", "low"])
        case "outside_range" | "unexplained_range" | "duplicate_session":
            value = _show(row, PRICES)
        case "impossible_amount":
            value = _show(row, ["volume", "dividend", "split"])
        case "repeated_bar":
            value = f"{_show(row, [*PRICES, 'volume'])}, all as in the bar before"
        case "stale_day":
            value = f"{_show(row, ['close', 'volume'])}, as in {row['share']:.1%} of the market"
        case "brief_jump":
            price = _show(row, [row["judged_by"]])
            value = f"{price} after {row['last']:.7g}, which later bars came back to"
        case "unexplained_return":
            price = _show(row, [row["judged_by"]])
            value = f"{price} after {row['last']:.7g} ({row['change']:+.1%})"
            if row["split"] > 0:
                value += f", which the recorded split of {row['split']:.4g} does not explain"
        case _:  # the other reasons are faults of the date
            value = f"session={row['session']:%Y-%m-%d}"
    return value


def _show(row: Mapping[Hashable, Any], columns: Iterable[str]) -> str:
    distinct = dict.fromkeys(columns)
    return " ".join(f"{name}={row[name]:.7g}" for name in distinct)
