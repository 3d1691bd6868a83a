"""Compare stored bars with those of a second source: what differs, and by how much.

Two honest sources never agree to the last digit; only what exceeds a tolerance is a disagreement:

- close: .1 %. Official closes and the last trade of all exchanges are hundredths of a percent
  apart.
- open, high, low: .5 %, by exchanges, auctions and odd lots; not where the close differs.
- Prices may differ by a cent more: sources round, also prices divided by later splits.
- volume: a factor of ten. Consolidated volume is often three to five times the listing exchange's;
  lots of 100 shares are a factor of 100. Not of an index, nor of few shares.
- adj_close: only its change against the close: a dividend a day later moves its whole past.
- dividend: 1 %, for rounding. split: .1 %. One that only one source has is a disagreement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dtml.prices.bars import BAR_COLUMNS

KEY = ["symbol", "session"]
BAR = "bar"  # only one of the two has it; the values are its close
CENT = 0.01
# By how much the larger value may exceed the smaller one: a share of it, and an amount.
TOLERANCES = {
    "open": (0.005, CENT),
    "high": (0.005, CENT),
    "low": (0.005, CENT),
    "close": (0.001, CENT),
    "adj_close": (0.001, 0.0),
    "volume": (9.0, 1_000.0),
    "dividend": (0.01, 0.001),
    "split": (0.001, 0.0),
}
EVENTS = ("dividend", "split")


@dataclass(frozen=True)
class Comparison:
    """What a comparison found, of `symbols` and of the number of `bars` that both have.

    `differing`: symbol, session, field, first_value, second_value, difference (second / first - 1).
    """

    differing: pd.DataFrame
    symbols: tuple[str, ...]
    bars: int


def compare(
    stored: pd.DataFrame,
    second: pd.DataFrame,
    *,
    sessions: pd.DatetimeIndex,
    fields: Sequence[str],
    index_symbol: str,
) -> Comparison:
    """Compare two bars frames on the exchange's `sessions`, in `fields`, but volumes of
    `index_symbol`.

    A symbol is compared from the later of its beginnings on, if both sources have it.
    """
    pairs = _pairs(stored, second, sessions)
    is_of_both = pairs["held"] == "both"
    closes = _values(pairs, "close")
    has_one_close = is_of_both & ~_differ(closes, *TOLERANCES["close"])
    found = [closes[~is_of_both].assign(field=BAR)]
    for field in fields:
        relative, amount = TOLERANCES[field]
        values = _values(pairs, field)
        allowed: float | pd.Series[float] = amount
        if field == "adj_close":
            # A change rests on two prices of its bar and two of the bar before, each rounded.
            allowed = 2 * (CENT / values + CENT / closes).sum(axis=1)
            ratios = (values / closes)[has_one_close]
            before = ratios.groupby(pairs["symbol"]).shift()
            values = (ratios / before).reindex(pairs.index)
        elif field in ("open", "high", "low") and "close" in fields:
            values = values[has_one_close].reindex(pairs.index)
        differs = _differ(values, relative, allowed)
        if field in EVENTS:
            differs |= values["first_value"].notna() != values["second_value"].notna()
        if field == "volume":
            differs &= pairs["symbol"] != index_symbol
        found.append(values[differs].assign(field=field))
    differing = pairs[KEY].join(pd.concat(found), how="inner")
    first = differing["first_value"]
    change = (differing["second_value"] / first - 1).where(first > 0)
    return Comparison(
        differing=differing.assign(difference=change).reset_index(drop=True),
        symbols=tuple(pairs["symbol"].unique()),
        bars=int(is_of_both.sum()),
    )


def _values(pairs: pd.DataFrame, field: str) -> pd.DataFrame:
    names = {f"{field}_first": "first_value", f"{field}_second": "second_value"}
    return pairs[list(names)].rename(columns=names)


def _differ(
    values: pd.DataFrame, relative: float, amount: "float | pd.Series[float]"
) -> "pd.Series[bool]":
    """Return where both values are known, and the larger exceeds the smaller by too much."""
    smaller = values.min(axis=1, skipna=False)
    larger = values.max(axis=1, skipna=False)
    return larger - smaller > relative * smaller + amount


def _pairs(stored: pd.DataFrame, second: pd.DataFrame, sessions: pd.DatetimeIndex) -> pd.DataFrame:
    """Return a row for each symbol and session of which a source has a close, sorted by both.

    `held` says who has it: 'both', 'left_only' (`stored`) or 'right_only' (`second`). The other
    columns of bars end in _first or _second. Only symbols of both sources are kept, from the later
    of their two beginnings on.
    """
    first_bars, second_bars = (
        bars.loc[
            (bars["close"] > 0) & bars["session"].isin(sessions), list(BAR_COLUMNS)
        ].drop_duplicates(KEY, keep="last")
        for bars in (stored, second)
    )
    pairs = first_bars.merge(
        second_bars, on=KEY, how="outer", suffixes=("_first", "_second"), indicator="held"
    )
    # A symbol that only one source has begins at NaT in the other, and no bar of it is compared.
    is_compared = pd.Series(True, index=pairs.index)
    for side in ("first", "second"):
        known = pairs["session"].where(pairs[f"close_{side}"].notna())
        is_compared &= pairs["session"] >= known.groupby(pairs["symbol"]).transform("min")
    return pairs[is_compared].sort_values(KEY, ignore_index=True)
