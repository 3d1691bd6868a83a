"""The checks of bars: each is accepted unchanged or rejected with one reason; none is repaired.

A bar is one row of the table that sources return (`BAR_COLUMNS`): prices in the market's currency,
NaN where the source has no value, `split` the ratio of a split effective that session (2.0 is two
new shares for one) and `dividend` the cash paid per share, both NaN on ordinary sessions.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.markets.definition import COLUMN_NAMES, Checks, Returns

# No stock of nine public sets (4.7 million bars) leaves its level so far and is back so soon: the
# nearest, ASPS in January 2015, fell to .61 of its price for three sessions.
FACTOR = 3.0  # by which every bar of a run is above both neighbours, or below both, at least
LONGEST = 5  # bars; a longer run is a level of its own

Prices = Float[ndarray, "bars"]


def brief_jumps(
    price: Prices, explained: Bool[ndarray, " bars"], max_return: float
) -> Bool[ndarray, " bars"]:
    """Return which bars of one symbol are a run away from its level, of `LONGEST` bars at most.

    `price` is above 0, in the order of time; `explained` marks bars whose move a recorded split
    explains. The bars before and after a run agree with each other: they differ by at most
    `max_return`, a ratio. The newest bar is never marked, as no later bar has come back.
    """
    level = np.log(price)
    is_leap = np.abs(np.diff(level)) >= np.log(FACTOR)
    unexplained_leaps = np.flatnonzero(is_leap & ~explained[1:]) + 1
    marked = np.zeros(len(price), dtype=bool)
    for first in unexplained_leaps:
        if marked[first - 1]:
            continue  # within an earlier run, or the bar after it, which came back
        end = _first_bar_back(level, int(first), max_return)
        # A split in the run, or on the bar that comes back, explains it.
        is_explained = explained[first : end + 1].any()
        marked[first:end] = not is_explained  # no bar where none came back
    return marked


def _first_bar_back(level: Prices, first: int, max_return: float) -> int:
    """Return the position of the first bar that is back at the level of the bar before `first`.

    It is `first` itself where none comes back in time, or where the run ends at a third level.
    `level` is the logarithm of the price.
    """
    level_before = level[first - 1]
    direction = np.sign(level[first] - level_before)
    next_bars = level[first : first + LONGEST + 1]
    distance = (next_bars - level_before) * direction  # above 0 on the side of the leap
    near_bars = np.flatnonzero(distance < np.log(FACTOR))
    if not len(near_bars):
        return first
    # The run ends at the first near bar. If that bar is at a third level, there is no run.
    end = first + int(near_bars[0])
    came_back = abs(np.exp(level[end] - level_before) - 1) <= max_return
    run = level[first:end]
    far_from_end = np.abs(run - level[end]) >= np.log(FACTOR)
    if came_back and far_from_end.all():
        return end
    return first


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

Flags = Bool[ndarray, "bars"]
Values = Float[ndarray, "bars"]
Positions = Int[ndarray, "bars"]


@dataclass(frozen=True)
class Checked:
    """Checked bars in two frames; every bar is in exactly one of them, in the original order.

    `accepted` has `BAR_COLUMNS`; `rejected` has symbol, session, reason (one of `REASONS`) and
    value, a text that shows what was wrong.
    """

    accepted: pd.DataFrame
    rejected: pd.DataFrame


def bars_frame(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table` in the common shape of bars: `BAR_COLUMNS`, str, datetime64[ns] and float64.

    Sessions are naive. Columns that the table lacks become NaN, other columns are left out. Some
    sources write a dividend of 0 and a split of 0 or 1 on ordinary sessions: they become NaN.
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
    `checks` has the bounds `max_return` and `stale_share`. `returns` names the price that returns
    are taken from; a symbol without any adjusted close is judged by its close. The first bar of a
    symbol has nothing to be compared with. `market_size` is the number of stocks that a session
    should have, for a table that holds only some of them: a single halted stock is then no stale
    day. Raises ValueError when columns are not those of bars.
    """
    if tuple(bars.columns) != BAR_COLUMNS:
        raise ValueError(
            f"bars: expected columns {', '.join(BAR_COLUMNS)}; got "
            f"{', '.join(map(str, bars.columns))}"
        )
    rows = bars.reset_index(drop=True)  # below, the label of a row is its position
    judged = _Judged.of(rows, returns)
    faults = _calendar_faults(judged.session, sessions, closed_until)
    faults["duplicate_session"] = _duplicates(rows)
    faults |= _price_faults(rows, judged)

    misplaced = np.logical_or.reduce([faults[reason] for reason in MISPLACED])
    # The bars with which the next bar of their symbol is compared.
    usable = ~misplaced & (judged.price > 0) & (judged.close > 0)
    before = _row_before(judged, usable)
    split = rows["split"].to_numpy(np.float64)
    is_split = _is_explained_by_split(judged, before, split, checks.max_return)
    brief_jump = _brief_jumps(judged, usable, before, is_split, checks.max_return)
    if brief_jump.any():  # the bar after a jump is compared with the one before it
        before = _row_before(judged, usable & ~brief_jump)
        is_split = _is_explained_by_split(judged, before, split, checks.max_return)

    is_stock_symbol = judged.symbols != index_symbol  # [symbols]
    is_stock = is_stock_symbol[judged.code]  # [bars]
    is_repeated = before >= 0
    for name in (*PRICES, "volume"):
        value = rows[name].to_numpy(np.float64)
        is_repeated &= (value == value[before]) | (np.isnan(value) & np.isnan(value[before]))
    volume = rows["volume"].to_numpy()
    has_range = (rows["high"] > rows["low"]).to_numpy()
    is_idle = (before >= 0) & (judged.close == judged.close[before]) & (volume == 0)
    is_there = is_stock & ~misplaced
    share = _share_of_session(judged.session, is_idle, is_there, max(market_size, 1))
    fewest = max(market_size, FEWEST_TOGETHER)
    is_whole_market = _share_of_session(judged.session, is_repeated, is_there, fewest) == 1
    evidence = _Evidence(
        last=judged.price[before],
        change=_change(judged, before),
        share=np.where(is_whole_market, 1, share),
        extent=intraday_extent(rows, before),
    )
    # A misplaced decimal point is a factor of 10 but for the rounding of prices.
    faults["unexplained_range"] = evidence.extent >= WIDEST * (1 - ROUNDING)
    # In eleven public sets (4.9 million bars) none with a range and a volume above 0 repeats both,
    # and in six indices (28,000 bars) none with a range repeats its prices.
    faults["repeated_bar"] = is_repeated & has_range & ((volume > 0) | ~is_stock)
    is_again = is_stock & (is_idle | is_repeated)
    faults["stale_day"] = is_again & (evidence.share >= checks.stale_share)
    faults["brief_jump"] = brief_jump
    faults["unexplained_return"] = (np.abs(evidence.change) > checks.max_return) & ~is_split
    return _split_by_faults(rows, judged, faults, evidence)


@dataclass(frozen=True)
class _Judged:
    """The columns that checks share.

    Returns are taken from `price`, the adjusted close where `by_adjusted`; `code` is the position
    of a bar's symbol in `symbols`, the distinct ones. All but `symbols` have one value a bar.
    """

    code: Positions
    symbols: ndarray
    session: ndarray
    close: Values
    price: Values
    by_adjusted: Flags

    @staticmethod
    def of(rows: pd.DataFrame, returns: Returns) -> "_Judged":
        """Return the columns of a bars frame.

        The price of a symbol is its adjusted close, NaN where a bar lacks it; where returns are
        taken from the close, or no bar of the symbol has an adjusted close, it is the close.
        """
        code, symbols = pd.factorize(rows["symbol"])
        close = rows["close"].to_numpy(np.float64)
        adjusted = rows["adj_close"].to_numpy(np.float64)
        by_adjusted = np.zeros(len(rows), dtype=bool)
        if returns == "adj_close":
            codes_with_adjusted = np.unique(code[np.isfinite(adjusted)])
            by_adjusted = np.isin(code, codes_with_adjusted)
        return _Judged(
            code=code,
            symbols=np.asarray(symbols, dtype=object),
            session=rows["session"].to_numpy("datetime64[ns]"),
            close=close,
            price=np.where(by_adjusted, adjusted, close),
            by_adjusted=by_adjusted,
        )


@dataclass(frozen=True)
class _Evidence:
    """The values that a bar is judged by besides its own, one for each bar.

    `last` is the price of returns of the bar before, of no meaning where there is no such bar;
    `change` is the return from it, NaN where there is none; `share` is the share of the session's
    stocks that repeat an earlier bar without being traded; `extent` is that of `intraday_extent`.
    """

    last: Values
    change: Values
    share: Values
    extent: Values


def _calendar_faults(
    session: ndarray, sessions: pd.DatetimeIndex, closed_until: date
) -> dict[str, Flags]:
    """Return which bars have each fault of the date: by three of `MISPLACED`, a flag for each bar.

    The session under way is the first after `closed_until`, the last closed one: its bars are an
    `open_session`, all others after `closed_until` a `future_session`. A day that is none of
    `sessions` is `not_a_session`, and may have a second fault.
    """
    calendar_days = sessions.to_numpy("datetime64[ns]")
    closed = np.datetime64(closed_until, "ns")
    under_way = calendar_days[calendar_days > closed][:1]  # none where the sessions end before
    is_open = np.isin(session, under_way)
    return {
        "future_session": (session > closed) & ~is_open,
        "open_session": is_open,
        "not_a_session": ~np.isin(session, calendar_days),
    }


def _duplicates(rows: pd.DataFrame) -> Flags:
    """Return the rows that share symbol and session.

    All of them are marked where they differ, as any of them may be correct. Where they are equal in
    every column the first is a good bar, and only its repeats are marked.
    """
    is_shared = rows.duplicated(["symbol", "session"], keep=False).to_numpy()
    if not is_shared.any():
        return is_shared
    # A symbol and session whose rows are all equal keeps one row here, the first.
    distinct = rows[is_shared].drop_duplicates()
    is_single = ~distinct.duplicated(["symbol", "session"], keep=False)
    good_rows = distinct.index[is_single]
    return np.asarray(is_shared & ~rows.index.isin(good_rows))


def _price_faults(rows: pd.DataFrame, judged: _Judged) -> dict[str, Flags]:
    """Return which bars have each fault that their own prices and amounts show.

    The flags, one for each bar, are by the name of the fault in `REASONS`. An infinite price is a
    `null_price`.
    """
    opening = rows["open"].to_numpy(np.float64)
    high = rows["high"].to_numpy(np.float64)
    low = rows["low"].to_numpy(np.float64)
    close = rows["close"].to_numpy(np.float64)
    needed = (opening, high, low, close, judged.price)
    amounts = rows[["volume", "dividend", "split"]].to_numpy(np.float64)
    floor = low * (1 - ROUNDING)
    ceiling = high * (1 + ROUNDING)
    open_is_outside = (opening < floor) | (opening > ceiling)
    close_is_outside = (close < floor) | (close > ceiling)
    is_impossible = (amounts < 0) | np.isinf(amounts)
    return {
        "null_price": np.logical_or.reduce([~np.isfinite(price) for price in needed]),
        "non_positive_price": np.logical_or.reduce([price <= 0 for price in needed]),
        "high_below_low": high < low,
        "outside_range": open_is_outside | close_is_outside,
        "impossible_amount": is_impossible.any(axis=1),
    }


def _row_before(judged: _Judged, usable: Flags) -> Positions:
    """Return the position of the same symbol's last usable row before each row, -1 without one.

    A row rejected for its open, high or low is still usable, as the next session is compared with
    its close. As an index, -1 reads the last row: callers discard the values of such rows.
    """
    order = np.lexsort((judged.session, judged.code))  # by symbol, then by session
    symbol = judged.code[order]
    # By sorted row: the position of the last usable row of its symbol up to it. It may be the row
    # itself, so the one before it is that of the sorted row above (`shift`).
    last = pd.Series(order).where(usable[order]).groupby(symbol).ffill()
    before = np.full(len(order), -1)
    before[order] = last.groupby(symbol).shift().fillna(-1).astype(int)
    return before


def intraday_extent(rows: pd.DataFrame, before: Positions) -> Values:
    """Return how far open, high and low of each bar are from its close and the close before.

    The distance is a factor of 1 or more. `before` is the position of the bar before each, -1 where
    there is none. A price at or between the two closes has a distance of 1, so that a crash or a
    first day is not wide. NaN where the open, high or low is missing. Of no meaning where the close
    is missing or a price is not above 0: an earlier one of `REASONS` rejects such a bar.
    """
    opening = rows["open"].to_numpy(np.float64)
    high = rows["high"].to_numpy(np.float64)
    low = rows["low"].to_numpy(np.float64)
    close = rows["close"].to_numpy(np.float64)
    last = np.where(before >= 0, close[before], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        # `fmax` and `fmin` leave out the close before where there is none.
        above = np.maximum(opening, high) / np.fmax(close, last)
        below = np.fmin(close, last) / np.minimum(opening, low)
    return np.asarray(np.maximum(above, below))


def _brief_jumps(
    judged: _Judged, usable: Flags, before: Positions, is_split: Flags, max_return: float
) -> Flags:
    """Return which bars are at a level that their symbol, a stock or the index, soon left again.

    Only symbols are examined whose price changes by a factor of `FACTOR` or more from one usable
    bar to the next: no other can have such bars.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_change = np.log(judged.price / judged.price[before])
    is_leap = np.abs(log_change) >= np.log(FACTOR)
    marked = np.zeros(len(before), dtype=bool)
    is_leap &= usable & (before >= 0)
    for code in np.unique(judged.code[is_leap]):
        of_symbol = np.flatnonzero((judged.code == code) & usable)
        in_time = np.argsort(judged.session[of_symbol], kind="stable")
        of_symbol = of_symbol[in_time]
        marked[of_symbol] = brief_jumps(judged.price[of_symbol], is_split[of_symbol], max_return)
    return marked


def _is_explained_by_split(
    judged: _Judged, before: Positions, split: Values, max_return: float
) -> Flags:
    """Return which bars have an ordinary return once it is multiplied by their recorded split.

    That is the return of a split by which the bars before were not divided. One by which they were
    has an ordinary return anyway.
    """
    return np.asarray(np.abs((_change(judged, before) + 1) * split - 1) <= max_return)


def _share_of_session(session: ndarray, marked: Flags, is_there: Flags, fewest: int) -> Values:
    """Return the share of each session's bars `is_there` that are marked, of `fewest` at least."""
    flags = pd.DataFrame({"marked": marked & is_there, "there": is_there})
    counts = flags.groupby(session).transform("sum")
    return np.asarray(counts["marked"] / counts["there"].clip(lower=fewest))


def _change(judged: _Judged, before: Positions) -> Values:
    """Return the return of each bar from the bar before, a ratio minus 1; NaN without one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        change = judged.price / judged.price[before] - 1
    return np.where(before >= 0, change, np.nan)


def _split_by_faults(
    rows: pd.DataFrame, judged: _Judged, faults: dict[str, Flags], evidence: _Evidence
) -> Checked:
    """Return the bars without a fault, and the others with the first reason that applies.

    `faults` says for each of `REASONS` which bars have it.
    """
    by_reason = np.stack([faults[reason] for reason in REASONS])  # [reasons bars]
    rejected_rows = np.flatnonzero(by_reason.any(axis=0))
    reasons = [REASONS[first] for first in by_reason[:, rejected_rows].argmax(axis=0)]
    shown = rows.iloc[rejected_rows].assign(
        judged_by=np.where(judged.by_adjusted[rejected_rows], "adj_close", "close"),
        last=evidence.last[rejected_rows],
        change=evidence.change[rejected_rows],
        share=evidence.share[rejected_rows],
    )
    records = shown.to_dict("records")
    values = [_value(reason, row) for reason, row in zip(reasons, records, strict=True)]
    placed = shown[["symbol", "session"]].reset_index(drop=True)
    return Checked(
        accepted=rows.drop(rejected_rows).reset_index(drop=True),
        rejected=placed.assign(
            reason=pd.Series(reasons, dtype=str),
            value=pd.Series(values, dtype=str),
        ),
    )


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
