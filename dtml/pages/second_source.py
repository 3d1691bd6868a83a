"""Say in words where the stored bars and those of a second source differ."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from dtml.pages.figures import counted, day, signed_percent
from dtml.prices.disagreement import BAR, SCALE

# From this share of the symbols on, bars that one source lacks in a session are a lost session.
LOST = 0.5
NAMED = 3  # symbols or bars that a sentence names
LISTED = 5  # lost sessions, or factors between prices, that have a sentence of their own
SIDES = {"first": "the store", "second": "the second source"}
# A factor between prices is that of a unit if it is so near to 100 or to .01, as pounds to pence.
UNIT = 0.05
PLURALS = {"split": "splits", "dividend": "dividends"}


def difference_words(rows: pd.DataFrame, symbols: int) -> list[str]:
    """Return a sentence for each kind of difference, the gravest first.

    `rows` are those of the view price_disagreement that are not settled; `symbols` is the number of
    symbols that were compared. A session that one source lacks for at least half of them, and for
    two at least, is one sentence, and the bars that it lacks are in no other; only the newest
    `LISTED` such sessions of each source are named.
    """
    return [
        *_lost_sessions(rows, symbols),
        *_scales(rows),
        *_events(rows, "split"),
        *_single_bars(rows, symbols),
        *_events(rows, "dividend"),
        *_values(rows),
    ]


def grave_words(rows: pd.DataFrame, symbols: int) -> list[str]:
    """Return the sentences about lost sessions, prices of another unit or level, and splits.

    Arguments are as in `difference_words`. The other differences are often rounding or news that
    one source has a day later.
    """
    return [*_lost_sessions(rows, symbols), *_scales(rows), *_events(rows, "split")]


def comparison_words(comparison: Mapping[str, Any]) -> str:
    """Say what was compared, from a row of the view comparison_log."""
    source = comparison["source"]
    symbols = comparison["symbols"]
    failure = comparison["failure"]
    if failure is not None and not symbols:
        return f"{source} could not be compared: {failure}"
    words = f"{comparison['bars']:,} bars of {symbols:,} symbols compared with {source}"
    lacking = len(comparison["failures"])
    if lacking:
        others = "1 other" if lacking == 1 else f"{lacking:,} others"
        status = comparison["failures"][0]["status"]
        words = f"{words}, which has no answer for {others} ({status})"
    return words if failure is None else f"{words}; then it ended: {failure}"


def _lost_sessions(rows: pd.DataFrame, symbols: int) -> Iterator[str]:
    """Yield a sentence for each of the newest sessions that a source lost, and one for the rest."""
    for side, bars in _lacking(rows):
        lost = _lost(bars, symbols).sort_index(ascending=False)
        other_side = "second" if side == "first" else "first"
        for session, count in lost.head(LISTED).items():
            whom = f"any of {count:,} symbols"
            if count < symbols:
                whom = f"{count:,} of {symbols:,} symbols"
            yield (
                f"{SIDES[side]} has no bar of {day(session)} for {whom}, {SIDES[other_side]} "
                "has them"
            )
        more = len(lost) - LISTED
        if more > 0:
            yield f"{SIDES[side]} lacks {counted(more, 'earlier session')} in the same way"


def _lacking(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each of `SIDES` with the rows of the bars that it lacks and the other side has."""
    bars = rows[rows["field"] == BAR]
    for side in SIDES:
        yield side, bars[bars[f"{side}_value"].isna()]


def _lost(bars: pd.DataFrame, symbols: int) -> "pd.Series[int]":
    """Return the number of symbols without a bar, by session, of the sessions that are lost.

    Those lack a bar for at least two symbols, and for the share `LOST` of all `symbols`. `bars` are
    the rows of the bars that one source lacks.
    """
    counts = bars["session"].value_counts().sort_index()
    return counts[counts >= max(2, LOST * symbols)]


def _single_bars(rows: pd.DataFrame, symbols: int) -> Iterator[str]:
    for side, bars in _lacking(rows):
        single = bars[~bars["session"].isin(_lost(bars, symbols).index)]
        if len(single):
            other_side = "second" if side == "first" else "first"
            yield (
                f"{SIDES[side]} lacks {counted(len(single), 'bar')} that {SIDES[other_side]} has: "
                f"{_named([f'{row.symbol} {day(row.session)}' for row in single.itertuples()])}"
            )


def _scales(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each of the commonest factors by which all prices of bars differ.

    One more sentence counts the bars with another factor.
    """
    scaled = rows[rows["field"] == SCALE]
    ratio = 1 + scaled["difference"]
    # Rounding of prices moves the factor of one unit or split a little from bar to bar, so that
    # bars are grouped by two digits of it.
    factors = ratio.map(lambda value: f"{value:.2g}")
    commonest = factors.value_counts().index[:LISTED]
    for factor in commonest:
        bars = scaled[factors == factor]
        number = ratio[bars.index].median()
        is_unit = min(abs(number / 100 - 1), abs(number * 100 - 1)) < UNIT
        guess = "another unit, such as pence" if is_unit else "a split that one of them lacks"
        yield (
            f"all prices of the second source are {number:.4g} times those of the store for "
            f"{_named(list(bars['symbol'].unique()))}, {_span(bars)}: {guess}?"
        )
    others = scaled[~factors.isin(commonest)]
    if len(others):
        symbols = counted(others["symbol"].nunique(), "symbol")
        yield f"all prices differ by another factor in {counted(len(others), 'bar')} of {symbols}"


def _events(rows: pd.DataFrame, field: str) -> Iterator[str]:
    """Yield a sentence for each side that alone has some splits or dividends, and one for others.

    The others are those that both have, with different amounts. `field` is 'split' or 'dividend'.
    """
    events = rows[rows["field"] == field]
    for side, other_side in (("first", "second"), ("second", "first")):
        lacking = events[events[f"{side}_value"].isna()]
        if len(lacking):
            named = [
                f"{row['symbol']} {row[f'{other_side}_value']:.4g} on {day(row['session'])}"
                for row in lacking.to_dict("records")
            ]
            yield f"{PLURALS[field]} that only {SIDES[other_side]} has: {_named(named)}"
    both = events.dropna(subset=["first_value", "second_value"])
    if len(both):
        yield _values_of(both, field)


def _values(rows: pd.DataFrame) -> Iterator[str]:
    others = rows[~rows["field"].isin([BAR, SCALE, *PLURALS])]
    for field, values in others.groupby("field", sort=True):
        yield _values_of(values, str(field))


def _values_of(rows: pd.DataFrame, what: str) -> str:
    """Return a sentence about values that both have, with the one that differs most."""
    # A volume of 0 has no relative difference.
    sizes = rows["difference"].astype(float).abs().fillna(float("inf"))
    most = rows.iloc[int(sizes.to_numpy().argmax())]
    change = "" if pd.isna(most["difference"]) else f" ({signed_percent(most['difference'])})"
    symbols = rows["symbol"].nunique()
    return (
        f"{what} differs in {counted(len(rows), 'bar')} of {counted(symbols, 'symbol')}, most in "
        f"{most['symbol']} on {day(most['session'])}: {most['first_value']:.7g} in the store, "
        f"{most['second_value']:.7g} in the second source{change}"
    )


def _named(names: list[str]) -> str:
    """Return the first `NAMED` names, and how many more there are."""
    shown = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _span(rows: pd.DataFrame) -> str:
    first = day(rows["session"].min())
    last = day(rows["session"].max())
    return first if first == last else f"{first} to {last}"
