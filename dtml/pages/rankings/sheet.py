"""The tear sheet of a ranking in sentences, charts and tables, for its page and for a market's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pandas as pd

from dtml.evaluation.family import BEATS_NOT_ALL
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.evaluation.ranking import Estimate
from dtml.evaluation.tear_sheet import Answers, TearSheet, answers
from dtml.markets.definition import BASIS_POINT
from dtml.pages.charts import Chart
from dtml.pages.figures import (
    Row,
    between,
    count,
    day,
    figure,
    named,
    percent,
    quoted,
    records,
    with_interval,
)
from dtml.pages.night import LEG_WORDS
from dtml.pages.rankings.charts import charts_of

YES, NO, UNCLEAR, TOO_EARLY = "Yes", "No", "Not proven", "Too early"
# Columns of the daily tables that others give: sums so far, and gross less net.
DERIVED = ["total", "gross_total", "net_total", "cost"]
# The table that a chart draws, where it has another name than the chart.
TABLES = {"distribution": "cumulative", "autocorrelation": "horizons", "replaced": "horizons"}
HEADINGS = {
    "cumulative": "Cumulative rank IC",
    "months": "Rank IC by month",
    "groups": "Mean return of ten score groups",
    "spread": "Best less worst tenth, after costs",
    "distribution": "Distribution of the daily rank IC",
    "autocorrelation": "Rank autocorrelation",
    "replaced": "Turnover of the best tenth",
    "legs": "Rank IC by holding period",
    "sectors": "Rank IC by sector",
    "coverage": "Coverage of constituents",
}
# Why a chart may be missing.
EMPTY = {
    "cumulative": "It needs two days with an outcome.",
    "months": "It needs a day with an outcome.",
    "groups": "It needs a day with an outcome.",
    "spread": "It needs two days whose spread is known.",
    "distribution": "It needs a day with an outcome.",
    "autocorrelation": "It needs two ranked days.",
    "replaced": "It needs two ranked days.",
    "legs": "It needs a day with an outcome.",
    "sectors": "No stock has a sector: the market's file may name them.",
    "coverage": "It needs two ranked days.",
}


@dataclass(frozen=True)
class Answer:
    """A question that the sheet answers: in a word, and in figures without a full stop.

    `unit` says what the figures are, and follows them; a narrow page leaves it out.
    """

    question: str
    word: str
    figures: str
    unit: str = ""


@dataclass(frozen=True)
class Part:
    """A chart of the sheet, with what explains it.

    `chart` is None where there is nothing to draw, and `empty` then says why. `csv` is the address
    of its table as CSV, which needs no server. `sql` is the statement of its rows, None where the
    store does not have them.
    """

    name: str
    heading: str
    note: str
    chart: Chart | None
    empty: str
    csv: str
    sql: str | None


@dataclass(frozen=True)
class Table:
    """A table of the sheet as cells in words."""

    name: str
    heading: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    csv: str


def sheet_values(
    sheet: TearSheet,
    *,
    unit: str,
    strongest: Row | None = None,
    sql: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what a page shows of a tear sheet: `answers`, `parts_of_sheet` and `sheet_tables`.

    They are lists of `Answer`, of `Part` (the charts) and of `Table`. `basis` says what the answers
    are about. `unit` is "nights" or "days". `strongest` is the strongest rule, as
    `beside_strongest_rule` returns it with its name as `other`. `sql` has the statement of each
    chart's rows, by the chart's name.
    """
    statements = sql or {}
    notes = _notes(sheet, unit)
    found = answers(sheet)
    parts = []
    for name, chart in charts_of(sheet):
        table = sheet.tables[TABLES.get(name, name)]
        if name == "distribution" and chart is not None:
            # The counts drawn; the daily figures are in the CSV of the chart "cumulative".
            table = chart.data["rows"]
        parts.append(
            Part(
                name=name,
                heading=HEADINGS[name],
                note=notes[name],
                chart=chart,
                empty=EMPTY[name],
                csv=csv_address(table),
                sql=statements.get(name),
            )
        )
    return {
        "answers": sheet_answers(found, unit, strongest),
        "basis": _basis(sheet, found, unit),
        "parts_of_sheet": parts,
        "sheet_tables": _tables(sheet),
    }


def csv_address(table: pd.DataFrame) -> str:
    """Return an address that is the table as CSV itself, so that a page alone can offer it.

    It makes the page heavier, so figures have five digits, and columns that follow from others
    (DERIVED) are left out.
    """
    rows = table.drop(columns=DERIVED, errors="ignore")
    text = rows.to_csv(index=False, float_format="%.5g", date_format="%Y-%m-%d")
    return f"data:text/csv;charset=utf-8,{quote(text, safe=',:-._ ')}".replace(" ", "%20")


def sheet_answers(found: Answers, unit: str, strongest: Row | None = None) -> list[Answer]:
    """Return the answers of a tear sheet to its questions, from its figures `found`.

    They are whether there is an order, whether it is steady, whether it can be traded, and (only if
    there is a strongest rule) whether it beats the rules. `strongest` is as in `sheet_values`.
    """
    too_early = f"no interval below {MINIMUM_DAYS} {unit}; {found.days} so far"
    order = _order(found, too_early)
    steadiness = _steadiness(found, too_early)
    trade = _trade(found, too_early)
    if strongest is None:
        return [order, steadiness, trade]
    return [order, steadiness, trade, _beside_rules(strongest, too_early)]


def _basis(sheet: TearSheet, found: Answers, unit: str) -> str:
    """Say in a few sentences what the answers of `sheet_answers` are about."""
    sentences = [f"By {named(sheet.predictor)}, over {count(found.days)} {unit}."]
    if sheet.rule is not None:
        of_rule = sheet.cumulative[sheet.cumulative["predictor"] == sheet.rule]
        rank_ic = figure(of_rule["rank_ic"].mean(), 3)
        sentences.append(f"The rule beside it is {quoted(sheet.rule)}, rank IC {rank_ic}.")
    if found.halves:
        first, second = (figure(half.value, 3) for half in found.halves)
        sentences.append(f"Steady: rank IC {first} in the first half, {second} in the second.")
    if not pd.isna(found.gross.value):
        costs = "before" if pd.isna(found.net.value) else "after"
        sentences.append(
            f"Tradable: the daily return of the best less the worst tenth, {costs} costs."
        )
    return " ".join(sentences)


def _verdict(estimate: Estimate) -> str | None:
    """Return whether a figure is above 0, by its interval; None without one."""
    if pd.isna(estimate.low):
        return None
    if estimate.low > 0:
        return YES
    return NO if estimate.high < 0 else UNCLEAR


def _order(found: Answers, too_early: str) -> Answer:
    """Return whether the rank IC is above 0, by its interval; it is too early without one."""
    question = "An order?"
    rank_ic = f"rank IC {_ratio(found.rank_ic)}"
    verdict = _verdict(found.rank_ic)
    if verdict is None:
        return Answer(question, TOO_EARLY, f"{rank_ic}; {too_early}")
    return Answer(question, verdict, rank_ic)


def _beside_rules(strongest: Row, too_early: str) -> Answer:
    """Return whether the rank IC is above that of the strongest rule; too early if unknown."""
    difference = with_interval(strongest, "gain", signed=True)
    if strongest["verb"] is None:
        return Answer("Beats rules?", TOO_EARLY, f"{difference}; {too_early}")
    word = {"beats": YES, "is beaten by": NO}.get(strongest["verb"], UNCLEAR)
    unit = f"above {strongest_words(strongest)}"
    if strongest["verb"] == BEATS_NOT_ALL:
        unit += ", but not proven above every rule"
    return Answer("Beats rules?", word, difference, unit=unit)


def strongest_words(strongest: Row) -> str:
    """Name the strongest rule, and say how it was chosen and how all rules are allowed for."""
    p = strongest.get("gain_p")
    rules = f"{strongest['rules']} rules"
    how = ""
    if not pd.isna(p):
        how = f" (adjusted p {figure(p, 4)})"
    elif strongest["verb"] is not None and strongest["rules"] > 1:
        how = f" (interval widened for {rules})"
    return f"{quoted(strongest['other'])}, in hindsight the strongest of {rules}{how}"


def _steadiness(found: Answers, too_early: str) -> Answer:
    """Return whether the rank IC is above 0 in both halves, each by its own interval.

    It is too early where a half has no interval. Otherwise the answer is No where the rank IC of a
    half is not above 0, whatever its interval, and `UNCLEAR` where both are above 0 but not surely.
    """
    question = "Steady?"
    if not found.halves:
        return Answer(question, TOO_EARLY, too_early)
    verdicts = [_verdict(half) for half in found.halves]
    is_above = [half.value > 0 for half in found.halves]
    word = UNCLEAR
    if None in verdicts:
        word = TOO_EARLY
    elif verdicts == [YES, YES]:
        word = YES
    elif not all(is_above):
        word = NO
    months = f"{found.positive_months} of {found.months} months above 0"
    return Answer(question, word, months)


def _trade(found: Answers, too_early: str) -> Answer:
    """Return whether the best tenth earns more than the worst after costs, by the interval.

    It is too early where no spread is known or the net spread has no interval; the answer is
    `UNCLEAR` where costs are unknown.
    """
    question = "Tradable?"
    gross = f"{found.gross.value / BASIS_POINT:+.1f} bp before costs"
    if pd.isna(found.gross.value):
        return Answer(question, TOO_EARLY, too_early)
    if pd.isna(found.net.value):
        return Answer(
            question,
            UNCLEAR,
            f"{gross}; the costs of the market are unknown",
        )
    ends = between(found.net.low / BASIS_POINT, found.net.high / BASIS_POINT, 1, signed=True)
    net = f"{found.net.value / BASIS_POINT:+.1f} bp {ends}".strip()
    word = _verdict(found.net) or TOO_EARLY
    return Answer(question, word, net, unit="a day after costs")


def _ratio(estimate: Estimate) -> str:
    ends = between(estimate.low, estimate.high)
    return f"{figure(estimate.value, 3)} {ends}".strip()


def _notes(sheet: TearSheet, unit: str) -> dict[str, str]:
    """Return the words that explain each chart, by the chart's name."""
    leg = _leg_words(sheet.leg)
    spread_leg = _leg_words(sheet.spread_leg)
    few = f"No interval below {MINIMUM_DAYS} {unit}."
    lines = "Lines are 95 % intervals from resampled days."
    return {
        "cumulative": (
            f"The daily rank ICs added up, for the return {leg}. A line that rises evenly is a "
            "steady order. The band is the 95 % interval of the mean so far, times the "
            f"{unit} so far. {few}"
        ),
        "months": "The mean rank IC of each month: green above 0, red below.",
        "groups": (
            "Each day's stocks are cut into ten groups by score. Bars are their mean returns "
            f"{leg}, less that of all stocks ranked. {lines} {few}"
        ),
        "spread": (
            "Long the best tenth and short the worst, in equal parts, for the return "
            f"{spread_leg}, traded every day at the costs in the market's file. Daily returns are "
            "added up, not compounded."
        ),
        "distribution": "How many days had a rank IC of that size.",
        "autocorrelation": (
            "How much of the ranking is left after so many ranked days: 1 is the same ranking. "
            f"{lines}"
        ),
        "replaced": (
            "The share of the best tenth that was not in the best tenth so many ranked days "
            f"before. {lines}"
        ),
        "legs": f"The rank IC of the same ranking for other returns. {lines} {few}",
        "sectors": f"The rank IC among the stocks of one sector. {lines} {few}",
        "coverage": (
            "The share of each day's constituents that has a place in the ranking, and that also "
            "has an outcome."
        ),
    }


def _leg_words(leg: str) -> str:
    return {str(name): words for name, words in LEG_WORDS.items()}.get(leg, leg)


def _tables(sheet: TearSheet) -> list[Table]:
    """Return the tables that are printed on the page; the others are offered as CSV alone."""
    return [
        _table(
            "groups",
            sheet.groups.sort_values("group", ascending=False),
            {
                "score group, 10 is best": lambda row: count(row["group"]),
                "days": lambda row: count(row["days"]),
                "mean return a day, bp": lambda row: _bp(row["mean_return"]),
                "above all stocks, bp [95 %]": _excess,
            },
        ),
        _table(
            "halves",
            sheet.halves,
            {
                "half": lambda row: count(row["half"]),
                "first day": lambda row: day(row["first"]),
                "last day": lambda row: day(row["last"]),
                "days": lambda row: count(row["days"]),
                "rank IC [95 %]": lambda row: with_interval(row, "rank_ic", 3),
            },
        ),
        _table(
            "horizons",
            sheet.horizons,
            {
                "days apart": lambda row: count(row["horizon"]),
                "pairs of days": lambda row: count(row["days"]),
                "autocorrelation [95 %]": lambda row: with_interval(row, "autocorrelation", 3),
                "best tenth replaced": lambda row: percent(row["replaced"]),
            },
        ),
        _table(
            "legs",
            sheet.legs,
            {
                "holding period": lambda row: str(row["leg"]).replace("_", " "),
                "days": lambda row: count(row["days"]),
                "rank IC [95 %]": lambda row: with_interval(row, "rank_ic", 3),
                "t": lambda row: figure(row["t"], 1),
            },
        ),
        _table(
            "sectors",
            sheet.sectors,
            {
                "sector": lambda row: str(row["sector"]),
                "days": lambda row: count(row["days"]),
                "stock-days": lambda row: count(row["n"]),
                "rank IC [95 %]": lambda row: with_interval(row, "rank_ic", 3),
            },
        ),
    ]


def _table(name: str, frame: pd.DataFrame, columns: Mapping[str, Any]) -> Table:
    """Return a table whose columns are functions of a row, by their headings."""
    rows = [tuple(write(row) for write in columns.values()) for row in records(frame)]
    heading = {"halves": "Both halves of the days", "horizons": "By days apart"}.get(name)
    return Table(
        name=name,
        heading=heading or HEADINGS[name],
        columns=tuple(columns),
        rows=rows,
        csv=csv_address(frame),
    )


def _bp(value: float) -> str:
    return "-" if pd.isna(value) else f"{value / BASIS_POINT:+.1f}"


def _excess(row: Mapping[str, Any]) -> str:
    low = row["excess_low"] / BASIS_POINT
    high = row["excess_high"] / BASIS_POINT
    return f"{_bp(row['excess'])} {between(low, high, 1, signed=True)}".strip()
