"""Format figures in the same way for the console and the pages.

A missing value, NaN or None, is "-".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

Row = Mapping[str, Any]  # a row of scores


def figure(value: float | None, digits: int = 4, *, signed: bool = False) -> str:
    """Return a number as .5744, -.0121 or, signed, +.0210.

    A number that rounds to 0 has a sign only when signed.
    """
    if value is None or pd.isna(value):
        return "-"
    size = f"{abs(value):.{digits}f}"
    rounds_to_0 = float(size) == 0
    sign = ""
    if value < 0 and (signed or not rounds_to_0):
        sign = "-"
    elif value > 0 and signed:
        sign = "+"
    if size.startswith("0."):
        size = size[1:]
    return sign + size


def interval(row: Row, name: str, digits: int = 3, *, signed: bool = False) -> str:
    """Return the 95 % interval of a figure, such as [.512, .561]; empty where there is none."""
    return between(row[f"{name}_low"], row[f"{name}_high"], digits, signed=signed)


def between(low: float, high: float, digits: int = 3, *, signed: bool = False) -> str:
    """Return an interval, such as [.512, .561]; empty where an end is missing."""
    if pd.isna(low) or pd.isna(high):
        return ""
    return f"[{figure(low, digits, signed=signed)}, {figure(high, digits, signed=signed)}]"


def with_interval(row: Row, name: str, digits: int = 4, *, signed: bool = False) -> str:
    """Return a figure and its interval, which has three digits at most: .5353 [.512, .561]."""
    value = figure(row[name], digits, signed=signed)
    ends = interval(row, name, min(digits, 3), signed=signed)
    return f"{value} {ends}".strip()


def with_std(row: Row, mean: str, deviation: str) -> str:
    """Return a mean and its standard deviation, .5744 ± .0194; a single seed has none."""
    if pd.isna(row[deviation]):
        return figure(row[mean])
    return f"{figure(row[mean])} ± {figure(row[deviation])}"


def percent(value: float | None) -> str:
    """Return a share as 97.3 %; a share that rounds to 0 has no sign."""
    if value is None or pd.isna(value):
        return "-"
    return f"{100 * value:.1f} %".replace("-0.0 ", "0.0 ")


def signed_percent(value: float, digits: int = 1) -> str:
    """Return a change as +54.0 %."""
    return f"{100 * value:+.{digits}f} %"


def whole_percent(value: float | None) -> str:
    """Return a share as 80 %."""
    if value is None or pd.isna(value):
        return "-"
    return f"{100 * value:.0f} %"


def basis_points(value: float | None) -> str:
    """Return a cost as 12.3 bp."""
    if pd.isna(value):
        return "-"
    return f"{value:.1f} bp"


def count(value: float | None) -> str:
    """Return a whole number as 7,398."""
    if value is None or pd.isna(value):
        return "-"
    return f"{value:,.0f}"


def number(value: float) -> str:
    """Return any number of a table: whole ones as 7,398, others with four digits, as .5744."""
    if float(value).is_integer() and abs(value) >= 1:
        return count(value)
    return figure(float(value))


def day(value: Any) -> str:
    """Return a date as 2016-12-30, from a date, a timestamp or words."""
    if value is None or value is pd.NaT:
        return "-"
    return f"{value:%Y-%m-%d}" if hasattr(value, "strftime") else str(value)


def moment(value: Any) -> str:
    """Return a time as 2026-01-20 08:12+00:00, from a time or words."""
    return value.isoformat(sep=" ", timespec="minutes") if hasattr(value, "hour") else str(value)


def duration(seconds: float | None) -> str:
    """Return seconds as 2 h 05 min, 3 min 20 s or 41 s."""
    if seconds is None or pd.isna(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s"
    return f"{rest} s"


WORDS: tuple[Callable[..., str], ...] = (
    figure,
    interval,
    with_interval,
    with_std,
    percent,
    whole_percent,
    basis_points,
    count,
    number,
    day,
    moment,
    duration,
)


def markdown(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def markdown_table(title: str, columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table below its title."""
    rule = markdown("---" for _ in columns)
    body = [markdown(row) for row in rows]
    lines = [title, "", markdown(columns), rule, *body]
    return "\n".join(lines) + "\n"


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame, with unchanged values."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
