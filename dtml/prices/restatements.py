"""Find the histories that a source has restated since they were stored."""

import pandas as pd

RESTATED = 1e-6  # relative; restated prices differ by far more, unchanged ones not at all


def restated_symbols(stored: pd.DataFrame, fresh: pd.DataFrame) -> list[str]:
    """Return the symbols, sorted, whose past the source has restated since `stored`: to be fetched again as a whole.

    Both are bars frames; only their common sessions can tell, so a fetch should reach back over some stored ones. A
    dividend changes adj_close / close on every earlier session; a split scales close itself, which shows on the oldest
    common session (a correction of the last close does not reach that far).
    """
    both = stored.merge(fresh, on=["symbol", "session"], suffixes=("", "_fresh"))
    both = both.sort_values(["symbol", "session"])
    adjusted_anew = _differs(both["adj_close"] / both["close"], both["adj_close_fresh"] / both["close_fresh"])
    scaled = _differs(both["close"], both["close_fresh"]) & ~both.duplicated("symbol")
    return sorted(both.loc[adjusted_anew | scaled, "symbol"].unique())


def _differs(old: pd.Series, new: pd.Series) -> pd.Series:
    """Return where two values differ by more than rounding; a value missing on one side alone differs."""
    return ~(((new / old - 1).abs() <= RESTATED) | (old.isna() & new.isna()))
