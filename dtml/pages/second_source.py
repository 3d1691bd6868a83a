"""Say in a table and in words where the stored bars and those of a second source differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dtml.pages.figures import Row, records
from dtml.pages.rendering import said
from dtml.prices.disagreement import BAR

# From this share of the symbols on, bars that one source lacks in a session are a lost session.
LOST = 0.5
LISTED = 5  # lost sessions that have a row of their own, the newest
LEVEL = 0.1  # closes that differ by more are of another unit, or of another level


def differences(rows: pd.DataFrame, symbols: int) -> list[dict[str, Any]]:
    """Return a row for each kind of difference, the gravest first, with the one that is largest.

    `rows` are those of the view price_disagreement; `symbols` is the number of symbols compared. A
    session that one source lacks for at least half of them, and for two at least, has its own row.
    `lacks` is the source without a value: 'first' (the store), 'second' or ''. Lost sessions,
    splits and closes of another level are grave.
    """
    if rows.empty:
        return []
    lacks = np.select(
        [rows["first_value"].isna(), rows["second_value"].isna()], ["first", "second"], ""
    )
    # A value that only one has has no difference, and a volume of 0 no relative one.
    rows = rows.assign(lacks=lacks, size=rows["difference"].abs().fillna(np.inf))
    lacking = rows.groupby(["field", "lacks", "session"])["symbol"].transform("size")
    is_lost = (rows["field"] == BAR) & (lacking >= max(2, LOST * symbols))
    newest = rows.loc[is_lost, "session"].drop_duplicates().nlargest(LISTED)
    rows["lost"] = rows["session"].where(is_lost & rows["session"].isin(newest))
    largest = rows.sort_values("size", ascending=False, kind="stable")
    groups = largest.groupby(["field", "lacks", "lost"], dropna=False)
    kinds = groups.head(1).assign(
        bars=groups["symbol"].transform("size"), stocks=groups["symbol"].transform("nunique")
    )
    is_far = (kinds["field"] == "close") & (kinds["size"] > LEVEL)
    kinds["grave"] = kinds["lost"].notna() | (kinds["field"] == "split") | is_far
    return records(
        kinds.assign(compared=symbols).sort_values(
            ["grave", "lost", "field"], ascending=[False, False, True]
        )
    )


def difference_words(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each row of `differences`."""
    return [said("differing", row) for row in rows]


def comparison_words(comparison: Row) -> str:
    """Say what was compared, from a row of the view comparison_log."""
    return said("comparison", comparison)
