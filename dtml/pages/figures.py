"""Write figures, dates and names in one way on pages, in reports, in charts and on the console.

`fmt` writes a value by its kind, `ci` a figure with its 95 % interval. A share (accuracy,
probability, return) is a percentage with one decimal, a coefficient (MCC, rank IC, AUC, loss) has
three decimals, a ratio (Sharpe, beta) two. Only differences have a plus sign. Missing is "-".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands that only ask the store load no pandas
    import pandas as pd

Row = dict[str, Any]  # of a table, by the names of its columns
Page = dict[str, Any]  # what a template shows, by the names that it has there

# The kinds of numbers: factor, decimals, unit, and whether they are differences, with a plus sign.
NUMBERS: Mapping[str, tuple[int, int, str, bool]] = {
    "percent": (100, 1, " %", False),
    "whole_percent": (100, 0, " %", False),
    "signed_percent": (100, 1, " %", True),
    "points": (100, 1, " points", True),
    "basis_points": (1, 1, " bp", False),
    "coefficient": (1, 3, "", False),
    "gain": (1, 3, "", True),
    "ratio": (1, 2, "", False),
    "ratio_gain": (1, 2, "", True),
    "t": (1, 1, "", False),
    "small_percent": (100, 2, " %", True),
    "bp": (10_000, 1, "", True),  # of returns, below a heading with the unit
    "bp_gain": (10_000, 1, " bp", True),
    "fine": (1, 4, "", False),
    "print": (1, 4, "", False),  # as papers do, in Markdown
    "print_gain": (1, 4, "", True),
}
# The kinds of columns; those that are not here, such as mcc, rank_ic and brier, are coefficients.
KINDS: Mapping[str, str] = {
    name: kind
    for kind, names in {
        "percent": "acc calibrated coverage decided decided_acc level lowest "
        "highest max_drawdown probability probability_std rising_share same_direction turnover "
        "up_acc validation_acc volatility weight annual_return annual_volatility hit_rate gross "
        "costs borrow value_at_risk expected_shortfall replaced depth",
        "points": "acc_gain",
        "gain": "gain mcc_gain model_gain rank_gain",
        "ratio": "beta calmar deflated_sharpe expected_best sharpe sortino calibration_slope",
        "ratio_gain": "index_gain",
        "t": "t",
        "basis_points": "break_even",
        "count": "days n nights sessions seeds configurations predictions stocks group half "
        "horizon number place",
        "day": "first last recovered as_of session target",
        "named": "predictor portfolio",
        "text": "symbol value year settings reason leg sector",
    }.items()
    for name in names.split()
}
WORDS = frozenset(("day", "moment", "duration", "named", "quoted", "text"))  # kinds of no numbers
ENDS = {"print": "coefficient", "print_gain": "gain"}  # the kinds of the ends of intervals

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
PROTOCOL_WORDS = {"published": "the published labels", "all": "all stock-days"}
LEG_WORDS = {
    "next_close": "from this close to the next",
    "overnight": "from this close to the next open",
    "intraday": "from the next open to its close",
    "open_to_open": "from the next open to the one after",
    "second_close": "from the next close to the one after",
    "five_days": "from the next open to the open five sessions on",
    "ten_days": "from the next open to the open ten sessions on",
    "twenty_days": "from the next open to the open twenty sessions on",
}
MARKS = {"beats": " ▲", "is beaten by": " ▼"}  # of what is significant among all pairs
VERDICTS = {"beats": "Proven", "is beaten by": "No", None: "Too early"}
NO_INTERVAL = "cannot be compared (there is no interval) with"  # where no verb compares
RELATIVE = "_relative"  # ends the name of a ranker that learns relative returns


def kind_of(column: str) -> str:
    """Return the kind of a column, which `column:kind` names; else its name alone decides."""
    names, _, kind = column.partition(":")
    name = names.partition("±")[0].removeprefix("published_")
    name = name.removesuffix("_rule").removesuffix("_mean")
    return kind or KINDS.get(name, "coefficient")


def side(column: str) -> str:
    """Return the class of a column's cells: numbers are on the right, prose may be broken."""
    kind = kind_of(column)
    return {"text": "wrap"}.get(kind, "" if kind in WORDS else "number")


def fmt(value: Any, kind: str = "coefficient", decimals: int | None = None) -> str:
    """Return a value as its kind is written, such as 53.5 %, .021, 1.25, 7,398 or 2016-12-30.

    A negative number that rounds to 0 keeps its sign: [-.000, .017].
    """
    if value is None or value != value:  # noqa: PLR0124 - NaN and NaT differ from themselves
        return "-"
    if kind not in NUMBERS:
        return OTHERS[kind](value)
    factor, usual, unit, is_signed = NUMBERS[kind]
    plus = "+" if is_signed and value > 0 else ""
    # Adding 0 makes 0 of -0.
    text = f"{factor * value + 0.0:{plus}.{usual if decimals is None else decimals}f}"
    return (text if unit or factor > 1 else re.sub(r"^([+-]?)0\.", r"\1.", text)) + unit


def between(low: Any, high: Any, kind: str = "coefficient") -> str:
    """Return an interval without a unit, such as [.512, .561]; empty where an end is missing."""
    ends = [fmt(end, kind).partition(" ")[0] for end in (low, high)]
    return "" if "-" in ends else f"[{', '.join(ends)}]"


def ci(row: Row, column: str) -> str:
    """Return a figure with its 95 % interval, such as 53.5 % [51.2, 56.1], where the row has one.

    `acc_mean±acc_sd`: 57.4 % ± 1.9.
    """
    kind = kind_of(column)
    name, _, deviation = column.partition(":")[0].partition("±")
    value = fmt(row[name], kind)
    if deviation:
        spread = fmt(row[deviation], kind).partition(" ")[0]
        return value if spread == "-" else f"{value} ± {spread}"
    low, high = (row.get(f"{name}_{end}") for end in ("low", "high"))
    return f"{value} {between(low, high, ENDS.get(kind, kind))}".strip()


def interval(row: Row, name: str) -> str:
    """Return the 95 % interval of a figure with its unit, [51.2, 56.1] %; empty without one."""
    ends = between(row[f"{name}_low"], row[f"{name}_high"], kind_of(name))
    unit = NUMBERS[kind_of(name)][2].replace(" ", "\u00a0")  # no unit begins a line
    return f"{ends}{unit}" if ends else ""


def named(name: Any) -> str:
    """Return a predictor, rule or portfolio in words, such as "every stock rises"."""
    if name is None or name != name:  # noqa: PLR0124 - NaN differs from itself
        return "-"
    known = str(name).removesuffix(RELATIVE)
    ending = ", relative" if str(name).endswith(RELATIVE) else ""
    return f"{NAMES.get(known, known)}{ending}"


def quoted(name: Any) -> str:
    """Return the name of a rule for a sentence: in words, between quotation marks."""
    return f'"{named(name)}"'


def proven(verb: str | None) -> str:
    """Return in a word what the verb of `told_apart` says: "Not proven" for all other verbs."""
    return VERDICTS.get(verb, "Not proven")


def _day(value: Any) -> str:
    return f"{value:%Y-%m-%d}" if hasattr(value, "strftime") else str(value)


def _moment(value: Any) -> str:
    """Return a time as 2026-01-20 08:12 UTC, in its own time zone if it has another; words stay."""
    if not hasattr(value, "hour"):
        return str(value)
    text: str = value.isoformat(sep=" ", timespec="minutes")
    return f"{text.removesuffix('+00:00')} UTC" if text.endswith("+00:00") else text


def _duration(seconds: float) -> str:
    """Return seconds as 2 h 05 min, 3 min 20 s or 41 s."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


OTHERS: Mapping[str, Callable[[Any], str]] = {
    "count": "{:,.0f}".format,
    "value": "{:,.7g}".format,
    "price": "{:,.2f}".format,
    "day": _day,
    "moment": _moment,
    "duration": _duration,
    "named": named,
    "quoted": quoted,
    "leg": lambda leg: LEG_WORDS.get(leg, leg),
    "text": str,
    "range": str,  # of numbers in words
}
# The kinds that Python writes most.
percent = partial(fmt, kind="percent")
signed_percent = partial(fmt, kind="signed_percent")
count = partial(fmt, kind="count")
day = partial(fmt, kind="day")
duration = partial(fmt, kind="duration")


def figure(value: float | None, decimals: int = 3) -> str:
    """Return a number such as .574 or -.012."""
    return fmt(value, "coefficient", decimals)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as 1 text, 2 texts."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def number(value: float, *, is_whole: bool = False) -> str:
    """Return a number of any table with four decimals: .5744; whole ones without: 7,398."""
    has_decimals = not is_whole and (value % 1 != 0 or abs(value) < 1)
    return fmt(float(value), "print" if has_decimals else "count")


def are_whole(values: "pd.Series[Any]") -> bool:
    """Return whether a column holds only whole numbers, missing ones apart."""
    from pandas.api.types import is_numeric_dtype

    known = values.dropna()
    return bool(len(known) and is_numeric_dtype(known) and (known.astype(float) % 1 == 0).all())


def of_source(source: Any) -> str:
    """Say what a reader must know of a price source before any figure; empty for real prices."""
    if source != "simulated":
        return ""
    return (
        "The prices are simulated, with patterns for a model to find: no figure here says how it "
        "would do in a real market."
    )


# What templates write with, by the names of their filters.
FILTERS: Mapping[str, Callable[..., str]] = {
    **{kind: partial(fmt, kind=kind) for kind in (*NUMBERS, *OTHERS)},
    **{
        function.__name__: function
        for function in (ci, interval, side, figure, counted, number, of_source, proven)
    },
}


@dataclass(frozen=True)
class Table:
    """Rows, and the column below each heading as `ci` writes it: `column` or `column:kind`."""

    rows: Sequence[Row]
    columns: Mapping[str, str]

    @classmethod
    def of(cls, frame: "pd.DataFrame", columns: Mapping[str, str]) -> "Table":
        """Return a table of the rows of a frame."""
        return cls(records(frame), columns)

    @property
    def cells(self) -> list[list[str]]:
        """Return the texts of the rows."""
        return [[ci(row, column) for column in self.columns.values()] for row in self.rows]

    @property
    def frame(self) -> "pd.DataFrame":
        """Return the texts as a frame."""
        import pandas as pd

        return pd.DataFrame(self.cells, columns=list(self.columns))


def records(frame: "pd.DataFrame") -> list[Row]:
    """Return the rows of a frame, with unchanged values."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
