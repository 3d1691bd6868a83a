"""Write figures, dates and names in one way on pages, in reports, in charts and on the console.

A share (an accuracy, a probability, a coverage, a return) is a percentage with one decimal, a
coefficient (MCC, rank IC, AUC, a loss) has three decimals, a ratio (Sharpe, beta) two. Only
differences have a plus sign. Whole numbers have no decimals. Dates are ISO 8601. Rules have names
in words. CSV, JSON, Parquet, SQL and the Markdown of backtests and benchmarks keep the values and
the names of the store.

A missing value, NaN or None, is "-".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # commands that only ask the store load no pandas
    import pandas as pd

Row = Mapping[str, Any]  # a row of scores
Kind = Literal["share", "points", "coefficient", "ratio"]

# The kinds of columns by name, without the beginnings and endings that `kind_of` removes; those of
# no set, such as mcc, rank_ic and brier, are coefficients.
SHARES = frozenset(
    (
        "acc",
        "all_acc",
        "best_acc",
        "calibrated",
        "coverage",
        "decided",
        "decided_acc",
        "level",
        "lowest",
        "highest",
        "max_drawdown",
        "probability",
        "probability_std",
        "rising_share",
        "same_direction",
        "turnover",
        "up_acc",
        "validation_acc",
        "volatility",
        "weight",
    )
)
POINTS = frozenset(("acc_gain",))  # differences of shares
RATIOS = frozenset(
    ("beta", "calmar", "deflated_sharpe", "expected_best", "index_gain", "sharpe", "sortino")
)
DIGITS: Mapping[Kind, int] = {"share": 1, "points": 1, "coefficient": 3, "ratio": 2}

# The names of predictors and portfolios in words, by their names in the store.
NAMES: Mapping[str, str] = {
    "dtml": "DTML",
    "lstm": "LSTM",
    "alstm": "ALSTM",
    "adv_alstm": "Adv-ALSTM",
    "stocknet": "StockNet",
    "logistic_regression": "logistic regression",
    "gradient_boosting": "gradient boosting",
    "always_up": "every stock rises",
    "index_reversal": "the index fell, so all rise",
    "index_below_mean20": "the index is below its mean, so all rise",
    "day_losers": "the day's losers",
    "five_day_losers": "five days' losers",
    "low_volatility": "low volatility",
    "volume_shock": "volume shock",
    "intraday_reversal": "intraday losers",
    "equal weight": "equal parts",
}
NO_INTERVAL = "cannot be compared (there is no interval) with"  # where no verb compares
RELATIVE = "_relative"  # ends the name of a ranker that learns relative returns


def named(name: Any) -> str:
    """Return a predictor, a rule or a portfolio in words, such as "every stock rises".

    Names without words, such as those of portfolios and of own models, are returned unchanged. A
    network that learns relative returns is named after the network.
    """
    if name is None or _is_missing(name):
        return "-"
    known = str(name).removesuffix(RELATIVE)
    ending = ", relative" if str(name).endswith(RELATIVE) else ""
    return f"{NAMES.get(known, known)}{ending}"


def quoted(name: Any) -> str:
    """Return the name of a rule for a sentence: in words, between quotation marks."""
    return f'"{named(name)}"'


def kind_of(name: str) -> Kind:
    """Return the kind of a column of figures, which decides how its values are written."""
    for prefix in ("running_", "rolling_", "published_"):
        name = name.removeprefix(prefix)
    for suffix in ("_rule", "_mean"):
        name = name.removesuffix(suffix)
    if name in SHARES:
        return "share"
    if name in POINTS:
        return "points"
    if name in RATIOS:
        return "ratio"
    return "coefficient"


def _is_missing(value: Any) -> bool:
    return value is None or bool(value != value)  # noqa: PLR0124 - NaN and NaT differ from themselves


def figure(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """Return a number as .574, -.012 or, signed, +.021.

    A negative number that rounds to 0 keeps its sign: [-.000, .017] includes 0.
    """
    if value is None or _is_missing(value):
        return "-"
    size = f"{abs(value):.{digits}f}"
    return _sign(value, signed=signed) + (size[1:] if size.startswith("0.") else size)


def written(row: Row, name: str) -> str:
    """Return the figure in a column of a row as its kind is written: 53.5 %, .021 or 1.25."""
    kind = kind_of(name)
    if kind == "share":
        return percent(row[name])
    if kind == "points":
        return points(row[name])
    return figure(row[name], DIGITS[kind])


def interval(row: Row, name: str, digits: int | None = None, *, signed: bool = False) -> str:
    """Return the 95 % interval of a figure, such as [.512, .561] or [51.2, 56.1] %.

    It is empty where there is none.
    """
    ends = _ends(row, name, digits, signed=signed)
    # The blanks do not break: no unit begins a line.
    unit = {"share": "\u00a0%", "points": "\u00a0points"}.get(kind_of(name), "")
    return f"{ends}{unit}" if ends else ""


def between(low: float, high: float, digits: int = 3, *, signed: bool = False) -> str:
    """Return an interval, such as [.512, .561]; empty where an end is missing."""
    if _is_missing(low) or _is_missing(high):
        return ""
    return f"[{figure(low, digits, signed=signed)}, {figure(high, digits, signed=signed)}]"


def with_interval(row: Row, name: str, digits: int | None = None, *, signed: bool = False) -> str:
    """Return a figure and its interval as the kind of the column is written.

    Examples are 53.5 % [51.2, 56.1], .021 [.008, .034] and +1.4 points [-7.1, +10.2]. `digits` are
    those of coefficients and ratios. A share that is `signed` is a difference of shares.
    """
    kind = kind_of(name)
    if kind in ("coefficient", "ratio"):
        value = figure(row[name], _digits(name, digits), signed=signed)
    elif signed or kind == "points":
        value = points(row[name])
    else:
        value = percent(row[name])
    return f"{value} {_ends(row, name, digits, signed=signed)}".strip()


def _ends(row: Row, name: str, digits: int | None, *, signed: bool) -> str:
    """Return the interval of a figure without a unit, and empty where there is none."""
    low = row[f"{name}_low"]
    high = row[f"{name}_high"]
    kind = kind_of(name)
    if kind in ("coefficient", "ratio"):
        return between(low, high, _digits(name, digits), signed=signed)
    if _is_missing(low) or _is_missing(high):
        return ""
    has_sign = signed or kind == "points"
    return f"[{_hundredfold(low, has_sign=has_sign)}, {_hundredfold(high, has_sign=has_sign)}]"


def _digits(name: str, digits: int | None) -> int:
    return DIGITS[kind_of(name)] if digits is None else digits


def _hundredfold(share: float, *, has_sign: bool = False) -> str:
    """Return a share times 100 with one decimal; if it rounds to 0 it keeps its sign."""
    return f"{_sign(share, signed=has_sign)}{100 * abs(share):.1f}"


def _sign(value: float, *, signed: bool) -> str:
    if value < 0:
        return "-"
    return "+" if signed and value > 0 else ""


def with_std(row: Row, mean: str, deviation: str) -> str:
    """Return a mean and its standard deviation, 57.4 % ± 1.9; a single seed has none."""
    value = written(row, mean)
    if _is_missing(row[deviation]):
        return value
    if kind_of(mean) == "share":
        return f"{value} ± {_hundredfold(row[deviation])}"
    return f"{value} ± {figure(row[deviation])}"


def in_print(row: Row, name: str, *, signed: bool = False) -> str:
    """Return a figure and its interval as papers print them: .5353 [.512, .561].

    It is for tables in Markdown, whose figures are compared with published ones.
    """
    value = figure(row[name], 4, signed=signed)
    ends = between(row[f"{name}_low"], row[f"{name}_high"], signed=signed)
    return f"{value} {ends}".strip()


def in_print_with_std(row: Row, mean: str, deviation: str) -> str:
    """Return a mean and its standard deviation as papers print them: .5744 ± .0194."""
    if _is_missing(row[deviation]):
        return figure(row[mean], 4)
    return f"{figure(row[mean], 4)} ± {figure(row[deviation], 4)}"


def percent(value: float | None) -> str:
    """Return a share as 97.3 %."""
    if value is None or _is_missing(value):
        return "-"
    return f"{_hundredfold(value)} %"


def points(value: float | None) -> str:
    """Return a difference of two shares as +1.4 points."""
    if value is None or _is_missing(value):
        return "-"
    return f"{_hundredfold(value, has_sign=True)} points"


def signed_percent(value: float | None, digits: int = 1) -> str:
    """Return a change as +54.0 %."""
    if value is None or _is_missing(value):
        return "-"
    return f"{100 * value:+.{digits}f} %"


def whole_percent(value: float | None) -> str:
    """Return a round share, such as a level, as 80 %."""
    if value is None or _is_missing(value):
        return "-"
    return f"{100 * value:.0f} %"


def basis_points(value: float | None) -> str:
    """Return a cost as 12.3 bp."""
    if value is None or _is_missing(value):
        return "-"
    return f"{value:.1f} bp"


def count(value: float | None) -> str:
    """Return a whole number as 7,398."""
    if value is None or _is_missing(value):
        return "-"
    return f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as 1 text, 2 texts."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def number(value: float, *, is_whole: bool = False) -> str:
    """Return a number of any table, such as the answer of a query, with four decimals: .5744.

    A whole number other than 0 has none, such as 7,398, and neither has any number of a column of
    whole numbers (`is_whole`).
    """
    if is_whole or (float(value).is_integer() and abs(value) >= 1):
        return count(value)
    return figure(float(value), 4)


def are_whole(values: "pd.Series[Any]") -> bool:
    """Return whether a column holds only whole numbers, missing ones apart."""
    from pandas.api.types import is_numeric_dtype

    known = values.dropna()
    if known.empty or not is_numeric_dtype(known):
        return False
    return bool((known.astype(float) % 1 == 0).all())


def day(value: Any) -> str:
    """Return a date as 2016-12-30, from a date, a timestamp or words."""
    if value is None or _is_missing(value):
        return "-"
    return f"{value:%Y-%m-%d}" if hasattr(value, "strftime") else str(value)


def moment(value: Any) -> str:
    """Return a time as 2026-01-20 08:12 UTC, in its own time zone if it has another; words stay."""
    if not hasattr(value, "hour"):
        return str(value)
    text: str = value.isoformat(sep=" ", timespec="minutes")
    return f"{text.removesuffix('+00:00')} UTC" if text.endswith("+00:00") else text


def duration(seconds: float | None) -> str:
    """Return seconds as 2 h 05 min, 3 min 20 s or 41 s."""
    if seconds is None or _is_missing(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s"
    return f"{rest} s"


def of_source(source: Any) -> str:
    """Say what a reader must know of a price source before any figure; empty for real prices.

    `source` is its name, or None where the store does not know it.
    """
    if source != "simulated":
        return ""
    return (
        "The prices are simulated, with patterns for a model to find: no figure here says how it "
        "would do in a real market."
    )


WORDS: tuple[Callable[..., str], ...] = (
    figure,
    interval,
    with_interval,
    with_std,
    written,
    named,
    quoted,
    percent,
    points,
    signed_percent,
    whole_percent,
    basis_points,
    count,
    counted,
    number,
    day,
    moment,
    duration,
    of_source,
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


def records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a frame, with unchanged values."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
