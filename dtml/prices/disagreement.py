"""Compare stored bars with those of a second source: what differs, and by how much.

Two honest sources never agree to the last digit. Each field has a tolerance, and only what exceeds
it is a disagreement:

- close: .1 %. The official close of the listing exchange and the last trade of all exchanges are a
  few hundredths of a percent apart.
- open, high, low: .5 %. They depend on which exchanges, auctions and odd lots a source counts.
- Prices that differ by at most `ROUNDING` agree: sources round prices to cents, and so they round
  old prices that were divided by later splits.
- volume: a factor of ten. Consolidated volume is often three to five times that of the listing
  exchange alone; lots of 100 shares in place of shares are a factor of 100. An index has no volume
  of its own, and of few shares, rounding to lots decides.
- adj_close: only its change against the close from one session to the next, by .1 % and rounding.
  Its level says nothing: a dividend that one source takes out a day later moves its whole past.
- dividend: 1 %, for rounding. split: .1 %. One that only one source has is a disagreement.

Where all prices of a bar differ by one factor, this is one disagreement, `scale`: another unit,
such as pence, or a split by which only one source has divided its past.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dtml.prices.bars import BAR_COLUMNS, PRICES

KEY = ["symbol", "session"]
ROW = ["symbol", "session", "field", "first_value", "second_value", "difference"]
BAR = "bar"  # only one of the two has it; the values are its close
SCALE = "scale"  # the values are the closes
TOLERANCES = {
    "open": 0.005,
    "high": 0.005,
    "low": 0.005,
    "close": 0.001,
    "adj_close": 0.001,
    "dividend": 0.01,
    "split": 0.001,
}
# Two values rounded to cents may differ by one; the rest is the error of a difference of floats.
ROUNDING = 0.01 + 1e-6
VOLUME_FACTOR = 10
FEW_SHARES = 1_000  # a volume of no more is not compared
SAME = 1e-9  # relative; values that differ by less are the same value


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    `differing` has the columns of `ROW`: a row for each value that differs. `agreeing` has the same
    columns and `settled_by`: a row for each value that differed before and agrees now, and which
    side changed since: 'first', 'second' or 'both' (also where neither did: see `_settled`).
    `symbols` are those that were compared, and `bars` is the number of bars that both have.
    """

    differing: pd.DataFrame
    agreeing: pd.DataFrame
    symbols: tuple[str, ...]
    bars: int


@dataclass(frozen=True)
class _Field:
    """One field of all bars of both: its values, and whether they can be compared and differ."""

    first: "pd.Series[float]"
    second: "pd.Series[float]"
    difference: "pd.Series[float]"
    is_known: "pd.Series[bool]"
    differs: "pd.Series[bool]"


def compare(
    stored: pd.DataFrame,
    second: pd.DataFrame,
    *,
    before: pd.DataFrame,
    sessions: pd.DatetimeIndex,
    fields: Sequence[str],
    index_symbol: str,
) -> Comparison:
    """Compare two bars frames of the same symbols on these `sessions`, the exchange's own.

    `fields` are columns of bars; the volumes of `index_symbol` are not compared. Where one source
    lists a symbol later than the other, the symbol is compared from the later beginning on; it is
    not compared where only one source has it at all. `before` has the columns of `ROW`, with the
    values that differed before; those that can be compared now and agree are returned too.
    """
    pairs = _pairs(stored, second, sessions)
    # Prices of a bar that differs by one factor count as differing here; `_rows` leaves them out.
    prices = {name: _price(pairs, name) for name in PRICES}
    is_scaled = _is_scaled(prices)
    factor = (1 + prices["close"].difference).where(is_scaled, 1.0)
    everywhere = pd.Series(True, index=pairs.index)
    judged = {
        BAR: _Field(
            first=pairs["close_first"],
            second=pairs["close_second"],
            difference=pd.Series(np.nan, index=pairs.index),
            is_known=everywhere,
            differs=pairs["held"] != "both",
        )
    }
    if "close" in fields:
        judged[SCALE] = replace(prices["close"], differs=is_scaled)
    for name in fields:
        if name in prices:
            judged[name] = prices[name]
        elif name == "adj_close":
            judged[name] = _adjustment(pairs, prices["close"].differs & ~is_scaled)
        elif name == "volume":
            judged[name] = _volume(pairs, factor, index_symbol)
        else:
            # A dividend is in the unit of the prices, a split is a ratio.
            no_factor = pd.Series(1.0, index=factor.index)
            unit = factor if name == "dividend" else no_factor
            judged[name] = _event(pairs, name, unit)
    differing = [_rows(pairs, name, judged) for name in judged]
    agreeing = [
        _settled(pairs, judged[str(name)], rows)
        for name, rows in before.groupby("field")
        if name in judged
    ]
    return Comparison(
        differing=_joined(differing, ROW),
        agreeing=_joined(agreeing, [*ROW, "settled_by"]),
        symbols=tuple(pairs["symbol"].unique()),
        bars=int((pairs["held"] == "both").sum()),
    )


def _joined(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows of some frames; an empty frame with the columns where there are none."""
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return pd.DataFrame(columns=list(columns))
    return pd.concat(filled, ignore_index=True)[list(columns)]


def _pairs(stored: pd.DataFrame, second: pd.DataFrame, sessions: pd.DatetimeIndex) -> pd.DataFrame:
    """Return a row for each symbol and session of which a source has a close, sorted by both.

    `held` says who has the bar: 'both', or 'left_only' (the first source, `stored`), or
    'right_only' (the second). The other columns are those of bars with the ending _first or
    _second. A symbol's bars before the later of its two beginnings are left out, and all bars of a
    symbol that only one source has.
    """
    first_bars = _usable(stored, sessions)
    second_bars = _usable(second, sessions)
    begin_of_first = first_bars.groupby("symbol")["session"].min()
    begin_of_second = second_bars.groupby("symbol")["session"].min()
    # A symbol that only one source has is not in this frame: below it begins at NaT, and no bar of
    # it is compared.
    begins = begin_of_first.to_frame("first").join(begin_of_second.rename("second"), how="inner")
    begin = begins["first"].where(begins["first"] > begins["second"], begins["second"])
    pairs = first_bars.merge(
        second_bars, on=KEY, how="outer", suffixes=("_first", "_second"), indicator="held"
    )
    begin_of_bar = pd.to_datetime(pairs["symbol"].map(begin.to_dict()))
    is_compared = pairs["session"] >= begin_of_bar
    return pairs[is_compared].sort_values(KEY, ignore_index=True)


def _usable(bars: pd.DataFrame, sessions: pd.DatetimeIndex) -> pd.DataFrame:
    """Return the bars with a close on these sessions, one for each symbol and session."""
    is_usable = (bars["close"] > 0) & bars["session"].isin(sessions)
    usable = bars.loc[is_usable, list(BAR_COLUMNS)]
    return usable.drop_duplicates(KEY, keep="last")


def _price(pairs: pd.DataFrame, name: str) -> _Field:
    first = pairs[f"{name}_first"]
    second = pairs[f"{name}_second"]
    is_known = (first > 0) & (second > 0)
    difference = (second / first - 1).where(is_known)
    exceeds = difference.abs() > TOLERANCES[name]
    is_beyond_rounding = (second - first).abs() > ROUNDING
    return _Field(first, second, difference, is_known, is_known & exceeds & is_beyond_rounding)


def _is_scaled(prices: Mapping[str, _Field]) -> "pd.Series[bool]":
    """Return which bars differ by one factor in all their known prices.

    These are the close and at least two of open, high and low, whose factors may differ from that
    of the close by their tolerance and rounding, but by no more than a quarter of the distance of
    the close's factor from 1.
    """
    close = prices["close"]
    factor = 1 + close.difference
    is_scaled = close.differs
    known_prices = pd.Series(0, index=close.first.index)  # of open, high and low, by bar
    for name in ("open", "high", "low"):
        price = prices[name]
        away = ((1 + price.difference) / factor - 1).abs()
        lower_price = np.minimum(price.first, price.second)
        rounding = ROUNDING / lower_price
        allowed = np.minimum(TOLERANCES[name] + rounding, close.difference.abs() / 4)
        is_scaled = is_scaled & (~price.is_known | (away <= allowed))
        known_prices += price.is_known
    return is_scaled & (known_prices >= 2)


def _adjustment(pairs: pd.DataFrame, has_other_close: "pd.Series[bool]") -> _Field:
    """Compare the change of adj_close / close from the bar before that both have.

    A change of 1.01 is a dividend of about 1 % that was taken out of all earlier prices. Bars with
    `has_other_close` are left out, as they would be reported twice. It is false where all prices of
    a bar differ by one factor: such a bar is compared.
    """
    names = ("adj_close_first", "close_first", "adj_close_second", "close_second")
    both = pairs.loc[~has_other_close, ["symbol", *names]].dropna()
    first = _change(both, "first")
    second = _change(both, "second")
    # Each change rests on two prices of its bar and two of the bar before, each of them half a cent
    # off at most. A whole cent of the prices of this bar stands for both bars.
    rounding = sum(ROUNDING / both[name] for name in names)
    difference = second / first - 1
    differs = difference.abs() > TOLERANCES["adj_close"] + rounding
    aligned = pairs.index
    return _Field(
        first=first.reindex(aligned),
        second=second.reindex(aligned),
        difference=difference.reindex(aligned),
        is_known=difference.notna().reindex(aligned, fill_value=False),
        differs=differs.reindex(aligned, fill_value=False),
    )


def _change(both: pd.DataFrame, side: str) -> "pd.Series[float]":
    ratio = both[f"adj_close_{side}"] / both[f"close_{side}"]
    return ratio / ratio.groupby(both["symbol"]).shift()


def _volume(pairs: pd.DataFrame, factor: "pd.Series[float]", index_symbol: str) -> _Field:
    first = pairs["volume_first"]
    second = pairs["volume_second"]
    is_many = np.maximum(first, second) > FEW_SHARES
    is_known = first.notna() & second.notna() & (pairs["symbol"] != index_symbol)
    differs = _is_another_volume(first, second)
    # Where a split divides only one source's prices, it multiplies only that source's volume.
    differs &= _is_another_volume(first, second * factor)
    difference = (second / first - 1).replace([np.inf, -np.inf], np.nan)
    return _Field(first, second, difference, is_known, is_known & is_many & differs)


def _is_another_volume(first: "pd.Series[float]", second: "pd.Series[float]") -> "pd.Series[bool]":
    ratio = second / first  # NaN of two zeros, infinite of one
    return (ratio > VOLUME_FACTOR) | (ratio < 1 / VOLUME_FACTOR)


def _event(pairs: pd.DataFrame, name: str, unit: "pd.Series[float]") -> _Field:
    """Compare dividends or splits.

    `unit` is what an amount of the second is divided by to be in the unit of the first. Amounts
    that agree with or without this division do not differ. A bar that only one source has is
    compared if it has a dividend or split: a split that the other source does not record makes its
    bar look so wrong that it is rejected.
    """
    first = pairs[f"{name}_first"].where(pairs[f"{name}_first"] > 0)
    second = pairs[f"{name}_second"].where(pairs[f"{name}_second"] > 0)
    is_of_one_alone = first.notna() != second.notna()
    is_known = (pairs["held"] == "both") | is_of_one_alone
    difference = second / first - 1
    is_other = _is_another_amount(first, second, name)
    # Prices of another unit may come with dividends of either.
    is_other &= _is_another_amount(first, second / unit, name)
    return _Field(first, second, difference, is_known, is_of_one_alone | is_other)


def _is_another_amount(
    first: "pd.Series[float]", second: "pd.Series[float]", name: str
) -> "pd.Series[bool]":
    is_away = (second / first - 1).abs() > TOLERANCES[name]
    return is_away & ((second - first).abs() > ROUNDING / 10)


def _rows(pairs: pd.DataFrame, name: str, judged: Mapping[str, _Field]) -> pd.DataFrame:
    """Return the rows of a field that differs, in the shape of `ROW`.

    Prices that differ because the whole bar does are left out: the bar's `scale` has them.
    """
    field = judged[name]
    differs = field.differs
    if name in PRICES and SCALE in judged:
        differs = differs & ~judged[SCALE].differs
    rows = pairs[KEY].assign(
        field=name,
        first_value=field.first,
        second_value=field.second,
        difference=field.difference,
    )
    return rows[differs]


def _settled(pairs: pd.DataFrame, field: _Field, before: pd.DataFrame) -> pd.DataFrame:
    """Return the values of a field that differed `before` and agree now: `ROW` and `settled_by`.

    `before` has the rows of this one field, as in `compare`; the values returned are those of now.
    A bar that only one source had, and that neither has now, agrees too. `settled_by` is 'first' or
    'second' where only that source's value changed, else 'both'. It is 'both' also where neither
    changed: whether a value differs may depend on other values of its bar, as that of a volume
    depends on the factor between the closes.
    """
    now = pairs[KEY].assign(
        now_first=field.first,
        now_second=field.second,
        now_difference=field.difference,
        agrees=field.is_known & ~field.differs,
    )
    # The first session compared of each symbol.
    begin = pairs.groupby("symbol")["session"].min()
    rows = before.merge(now, on=KEY, how="left")
    # Missing where neither has the bar, or it is not compared now.
    agrees = rows["agrees"].eq(True)
    if before["field"].iloc[0] == BAR:
        # A bar that neither has any more is no disagreement.
        began = pd.to_datetime(rows["symbol"].map(begin.to_dict())) <= rows["session"]
        agrees |= rows["agrees"].isna() & began
    rows = rows[agrees]
    first_changed = _is_changed(rows["now_first"], rows["first_value"])
    second_changed = _is_changed(rows["now_second"], rows["second_value"])
    settled_by = np.select(
        [first_changed & ~second_changed, second_changed & ~first_changed],
        ["first", "second"],
        "both",
    )
    return rows[[*KEY, "field"]].assign(
        first_value=rows["now_first"],
        second_value=rows["now_second"],
        difference=rows["now_difference"],
        settled_by=settled_by,
    )


def _is_changed(now: "pd.Series[float]", then: "pd.Series[float]") -> "np.ndarray":
    is_same = np.isclose(now.astype(float), then.astype(float), rtol=SAME, atol=0, equal_nan=True)
    return ~is_same
