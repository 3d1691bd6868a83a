"""Say in words where the stored bars and those of a second source differ."""

from collections.abc import Iterator

import pandas as pd

from dtml.pages.figures import Row, day, records
from dtml.pages.rendering import said
from dtml.prices.disagreement import BAR, SCALE

# From this share of the symbols on, bars that one source lacks in a session are a lost session.
LOST = 0.5
LISTED = 5  # lost sessions, or factors between prices, that have a sentence of their own
EVENTS = ("split", "dividend")


def difference_words(rows: pd.DataFrame, symbols: int) -> list[str]:
    """Return a sentence for each kind of difference, the gravest first.

    `rows` are those of the view price_disagreement that are not settled; `symbols` is the number of
    symbols that were compared. A session that one source lacks for at least half of them, and for
    two at least, is one sentence, and the bars that it lacks are in no other; only the newest
    `LISTED` such sessions of each source are named.
    """
    _, single_bars = _bars(rows, symbols)
    others = rows[~rows["field"].isin([BAR, SCALE, *EVENTS])]
    return [
        *grave_words(rows, symbols),
        *single_bars,
        *_events(rows, "dividend"),
        *(_values(values, str(field)) for field, values in others.groupby("field", sort=True)),
    ]


def grave_words(rows: pd.DataFrame, symbols: int) -> list[str]:
    """Return the sentences about lost sessions, prices of another unit or level, and splits.

    Arguments are as in `difference_words`. The other differences are often rounding or news that
    one source has a day later.
    """
    lost_sessions, _ = _bars(rows, symbols)
    return [*lost_sessions, *_scales(rows), *_events(rows, "split")]


def comparison_words(comparison: Row) -> str:
    """Say what was compared, from a row of the view comparison_log."""
    return said("comparison", comparison)


def _lacking(rows: pd.DataFrame, field: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the side that lacks what the other has, with those rows."""
    of_field = rows[rows["field"] == field]
    for side in ("first", "second"):
        yield side, of_field[of_field[f"{side}_value"].isna()]


def _bars(rows: pd.DataFrame, symbols: int) -> tuple[list[str], list[str]]:
    """Return the sentences about sessions that are lost, and those about single bars."""
    lost_sessions = []
    single_bars = []
    for side, bars in _lacking(rows, BAR):
        counts = bars["session"].value_counts().sort_index(ascending=False)
        lost = counts[counts >= max(2, LOST * symbols)]
        for session, count in lost.head(LISTED).items():
            lost_sessions.append(said("lost_session", side, session, count, symbols))
        if len(lost) > LISTED:
            lost_sessions.append(said("lost_earlier", side, len(lost) - LISTED))
        single = records(bars[~bars["session"].isin(lost.index)])
        if single:
            names = [f"{row['symbol']} {day(row['session'])}" for row in single]
            single_bars.append(said("single_bars", side, names))
    return lost_sessions, single_bars


def _scales(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each of the commonest factors by which all prices of bars differ.

    One more sentence counts the bars with another factor.
    """
    scaled = rows[rows["field"] == SCALE]
    ratio = 1 + scaled["difference"]
    # Rounding of prices moves the factor of one unit or split a little from bar to bar, so that
    # bars are grouped by two digits of it.
    factors = ratio.map("{:.2g}".format)
    commonest = factors.value_counts().index[:LISTED]
    for factor in commonest:
        bars = scaled[factors == factor]
        days = bars["session"].agg(["min", "max"])
        yield said("scale", ratio[bars.index].median(), list(bars["symbol"].unique()), *days)
    others = scaled[~factors.isin(commonest)]
    if len(others):
        yield said("other_scales", len(others), others["symbol"].nunique())


def _events(rows: pd.DataFrame, field: str) -> Iterator[str]:
    """Yield a sentence for each side that alone has some splits or dividends, and one for others.

    The others are those that both have, with different amounts.
    """
    for side, lacking in _lacking(rows, field):
        value = "second_value" if side == "first" else "first_value"
        if len(lacking):
            names = [
                f"{row['symbol']} {row[value]:.4g} on {day(row['session'])}"
                for row in records(lacking)
            ]
            yield said("events", field, side, names)
    both = rows[rows["field"] == field].dropna(subset=["first_value", "second_value"])
    if len(both):
        yield _values(both, field)


def _values(rows: pd.DataFrame, field: str) -> str:
    """Say how often values that both have differ, with the one that differs most."""
    # A volume of 0 has no relative difference.
    sizes = rows["difference"].astype(float).abs().fillna(float("inf"))
    most = records(rows)[int(sizes.to_numpy().argmax())]
    return said("values", field, len(rows), rows["symbol"].nunique(), most)
