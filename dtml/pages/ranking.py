"""The report of a ranking: how well the stocks of a day were ranked.

It also gives the returns after costs.
"""

import calendar
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
import numpy as np
import pandas as pd

from dtml.backtest.turnover import EQUAL, VERSIONS
from dtml.evaluation.family import BEATS_NOT_ALL, beside_strongest_rule, compared
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart
from dtml.evaluation.ranking import Estimate
from dtml.evaluation.survivorship import read_survivorship
from dtml.evaluation.tear_sheet import Answers, TearSheet, answers
from dtml.markets.definition import BASIS_POINT
from dtml.pages.charts import Chart, Form, Panel, cells, environment, over_sessions, script
from dtml.pages.figures import (
    NO_INTERVAL,
    Row,
    basis_points,
    between,
    count,
    counted,
    day,
    figure,
    markdown,
    named,
    percent,
    quoted,
    records,
    signed_percent,
    with_interval,
)
from dtml.pages.night import LEG_WORDS
from dtml.pages.survivorship import survivorship_words

FIGURES = ("rank_ic", "rank_icir", "ic", "icir")
_PUBLISHED_COLUMNS = ("model", "rank IC [95 %]", "rank ICIR [95 %]", "IC [95 %]", "ICIR [95 %]")


@dataclass(frozen=True)
class PublishedTable:
    """A table with our models, rules and the published models, the lowest rank IC first.

    `cells` are below `columns`; `differences` say what differs from the published task.
    """

    sentence: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    differences: tuple[str, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any], table: Mapping[str, Any], days: int) -> "PublishedTable":
        """Return the table of a stored ranking, from its `table` in the column `config`.

        `columns` of `table` has the figures of each of our models and rules, `published` those of
        each published model; `trained` has the first and the last close of our training.
        """
        first, last = table["trained"]
        sentence = (
            f"{days} closes from {row['first']} to {row['last']}, each ranked by the return from "
            f"the next close to the one after; ours are trained once, on closes from {first} to "
            f"{last}. Published figures have no interval."
        )
        rows = sorted(
            [*table["columns"], *table["published"]], key=lambda each: float(each["rank_ic"])
        )
        return cls(
            sentence=sentence,
            columns=_PUBLISHED_COLUMNS,
            cells=tuple(_cells(each) for each in rows),
            differences=tuple(table["differences"]),
        )

    @property
    def markdown(self) -> str:
        """Return the table in Markdown, with its sentence and the differences."""
        lines = [
            markdown(self.columns),
            markdown("---" for _ in self.columns),
            *(markdown(cells) for cells in self.cells),
        ]
        differences = [f"- {each}" for each in self.differences]
        return "\n".join([self.sentence, "", *lines, "", *differences])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    source = row.get("source")
    name = f"{row['model']} (published: {source})" if source else str(row["model"])
    return (name, *(_cell(row, figure_name) for figure_name in FIGURES))


def _cell(row: Mapping[str, Any], name: str) -> str:
    if pd.isna(row.get(f"{name}_low")):
        return figure(row[name], 4)
    return with_interval(row, name, 4)


BARS = 31  # of a histogram
BEFORE, AFTER = "before costs", "after costs"


def cumulative_chart(sheet: TearSheet) -> Chart | None:
    """Return the sum of the daily rank ICs of the ranking and of any rule, with their bands.

    None where fewer than two days have a rank IC.
    """
    lines: dict[str, pd.Series[float]] = {}
    bands: dict[str, pd.DataFrame] = {}
    names = [name for name in (sheet.predictor, sheet.rule) if name is not None]
    for name in names:
        of_name = sheet.cumulative[sheet.cumulative["predictor"] == name]
        by_session = of_name.set_index("session")
        lines[name] = by_session["total"]
        # The ends are known on some days only: the edge of a band is straight between these.
        ends = by_session[["low", "high"]].interpolate(limit_area="inside").dropna()
        if len(ends):
            bands[name] = ends
    panel = Panel(title="sum of daily rank ICs", lines=lines, base=0.0, bands=bands, height=230)
    return over_sessions("Cumulative rank IC", [panel])


def months_chart(sheet: TearSheet) -> Chart | None:
    """Return a map of the mean rank IC of each month, a row for each year; None without a month."""
    months = sheet.months
    if months.empty:
        return None
    names = dict(enumerate(calendar.month_abbr))
    values = {(row["year"], row["month"]): row["rank_ic"] for row in records(months)}
    rows = []
    for year in sorted({year for year, _ in values}):
        rows += [
            {"x": names[month], "y": str(year), "value": values.get((year, month), np.nan)}
            for month in range(1, 13)
        ]
    words = [
        f"{names[row['month']]} {row['year']} {figure(row['rank_ic'], 3)}"
        for row in records(months)
    ]
    return cells(
        "Mean rank IC of each month",
        "; ".join(words),
        pd.DataFrame(rows),
        (44, 24),  # width and height of a cell, in pixels
        "ratio",
        is_signed=True,
        is_written=True,
    )


def groups_chart(sheet: TearSheet) -> Chart | None:
    """Return the mean excess return of each score group, the highest scores first.

    None where no group has any.
    """
    names = {1: "1, worst", 10: "10, best"}
    groups = sheet.groups.sort_values("group", ascending=False)
    rows = groups.assign(name=[names.get(group, str(group)) for group in groups["group"]])
    ends = ["excess", "excess_low", "excess_high"]
    rows[ends] = rows[ends] / BASIS_POINT
    return _estimates(
        "Mean return of ten score groups",
        rows.dropna(subset="excess"),
        "excess",
        "score group",
        "above the mean of all stocks, bp a day",
        form="price",
    )


def spread_chart(sheet: TearSheet) -> Chart | None:
    """Return the spread of the best and the worst tenth, added up, before and after costs.

    None where fewer than two days have a spread.
    """
    by_session = sheet.spread.set_index("session")
    lines = {AFTER: by_session["net_total"], BEFORE: by_session["gross_total"]}
    panel = Panel(title="best less worst tenth, added up", lines=lines, form="percent", base=0.0)
    return over_sessions("Cumulative spread", [panel], dashed=[BEFORE])


def distribution_chart(sheet: TearSheet) -> Chart | None:
    """Return how often the daily rank IC had which size; None without a day."""
    daily = sheet.daily["rank_ic"].to_numpy(dtype=float)
    if not len(daily):
        return None
    bar_count = min(BARS, max(5, len(daily) // 4))  # fewer bars for few days
    counts, edges = np.histogram(daily, bins=bar_count)
    rows = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "sessions": counts})
    low, middle, high = np.quantile(daily, [0.05, 0.5, 0.95])
    words = (
        f"{len(daily)} days: median {figure(middle, 3)}, nine in ten from {figure(low, 3)} to "
        f"{figure(high, 3)}"
    )
    return Chart(
        title="Distribution of the daily rank IC",
        words=words,
        file="histogram",
        data={"rows": rows},
        values={"title": "rank IC of a day", "form": "ratio"},
    )


def autocorrelation_chart(sheet: TearSheet) -> Chart | None:
    """Return the correlation of the rankings of two days, by the days between them."""
    return _estimates(
        "Rank autocorrelation",
        _by_horizon(sheet),
        "autocorrelation",
        "days apart",
        "correlation of the two rankings",
    )


def replaced_chart(sheet: TearSheet) -> Chart | None:
    """Return the share of the best tenth that is replaced, by the days between two rankings."""
    return _estimates(
        "Turnover of the best tenth",
        _by_horizon(sheet),
        "replaced",
        "days apart",
        "share replaced",
        form="percent",
    )


def legs_chart(sheet: TearSheet) -> Chart | None:
    """Return the rank IC by holding period."""
    rows = sheet.legs.assign(name=sheet.legs["leg"].astype(str).str.replace("_", " "))
    return _estimates("Rank IC by holding period", rows, "rank_ic", "holding period", "rank IC")


def sectors_chart(sheet: TearSheet) -> Chart | None:
    """Return the rank IC within each sector; None where no stock has a sector."""
    rows = sheet.sectors.assign(name=sheet.sectors["sector"])
    rows = rows.dropna(subset="rank_ic").sort_values("rank_ic", ascending=False)
    return _estimates("Rank IC by sector", rows, "rank_ic", "sector", "rank IC")


def coverage_chart(sheet: TearSheet) -> Chart | None:
    """Return the shares of each day's constituents that were ranked, and that have an outcome."""
    by_session = sheet.coverage.set_index("session")
    lines = {
        "ranked": by_session["ranked_share"].astype(float),
        "with an outcome": by_session["scored_share"].astype(float),
    }
    panel = Panel(title="share of constituents", lines=lines, form="percent", height=120)
    return over_sessions("Coverage of constituents", [panel])


def _by_horizon(sheet: TearSheet) -> pd.DataFrame:
    return sheet.horizons.assign(name=sheet.horizons["horizon"].astype(str))


def _estimates(
    title: str,
    rows: pd.DataFrame,
    figure_name: str,
    names: str,
    axis: str,
    *,
    form: Form = "ratio",
) -> Chart | None:
    """Return a bar for each row, with its interval where it has one; None without a row.

    `rows` have `name` and the figure with its ends. In words, `names` says what the names are, such
    as sectors, and `axis` what the figure is.
    """
    if rows.empty:
        return None
    bars = pd.DataFrame(
        {
            "name": rows["name"],
            "value": rows[figure_name],
            "low": rows[f"{figure_name}_low"],
            "high": rows[f"{figure_name}_high"],
        }
    )
    words = []
    for bar in records(bars):
        if form == "percent":
            said = percent(bar["value"])
        else:
            digits = 3 if form == "ratio" else 1
            ends = between(bar["low"], bar["high"], digits)
            said = f"{figure(bar['value'], digits)} {ends}".strip()
        words.append(f"{bar['name']}: {said}")
    return Chart(
        title=title,
        words="; ".join(words),
        file="estimates",
        data={"rows": bars},
        values={"title": axis, "names": names, "form": form, "order": list(bars["name"])},
    )


def charts_of(sheet: TearSheet) -> Sequence[tuple[str, Chart | None]]:
    """Return the charts of a sheet in the order of its page, each with the name of its table."""
    return (
        ("cumulative", cumulative_chart(sheet)),
        ("months", months_chart(sheet)),
        ("groups", groups_chart(sheet)),
        ("spread", spread_chart(sheet)),
        ("distribution", distribution_chart(sheet)),
        ("autocorrelation", autocorrelation_chart(sheet)),
        ("replaced", replaced_chart(sheet)),
        ("legs", legs_chart(sheet)),
        ("sectors", sectors_chart(sheet)),
        ("coverage", coverage_chart(sheet)),
    )


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
    leg = _leg_words(sheet.leg)
    spread_leg = _leg_words(sheet.spread_leg)
    few = f"No interval below {MINIMUM_DAYS} {unit}."
    lines = "Lines are 95 % intervals from resampled days."
    notes = {
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
    found_answers = [
        _order(found, too_early),
        _steadiness(found, too_early),
        _trade(found, too_early),
    ]
    if strongest is not None:
        found_answers.append(_beside_rules(strongest, too_early))
    return found_answers


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


def _ratio(estimate: Estimate) -> str:
    ends = between(estimate.low, estimate.high)
    return f"{figure(estimate.value, 3)} {ends}".strip()


def _leg_words(leg: str) -> str:
    return {str(name): words for name, words in LEG_WORDS.items()}.get(leg, leg)


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


# Settled beforehand: the best of the models on the days that are scored is partly luck.
HEADLINE = "blend"
# The marks of a difference that is significant among all pairs of predictors.
AHEAD = " ▲"
BEHIND = " ▼"
LEGEND = (
    "▲ and ▼ mark differences that are significant where all pairs are compared at once: the "
    "probability that chance marks any is at most 5 %. Brackets are 95 % intervals of each alone."
)
COLUMNS = (
    "predictor",
    "rank IC [95 %]",
    "t",
    "over the strongest rule",
    "over the ridge",
    "AUC",
    "ACC",
    "decile spread a day",
)
NET_COLUMNS = (
    "way to trade",
    "nights",
    "band",
    "net a year",
    "Sharpe [95 %]",
    "over equal parts [95 %]",
    "turnover a day",
    "break-even, bp",
)


@dataclass(frozen=True)
class Ranking:
    """A ranking as stored: its row, scores, paired differences, and portfolios after costs.

    They have the columns of db's tables of rankings. `sheet` is its tear sheet, None where the file
    beside its page is missing.
    """

    row: Mapping[str, Any]
    scores: pd.DataFrame
    differences: pd.DataFrame
    portfolios: pd.DataFrame
    sheet: TearSheet | None = None

    @property
    def days(self) -> int:
        """Return the number of days on which the blend was scored."""
        # The blend is always among the predictors, once.
        (blend,) = [row for row in whole_scores(self) if row["predictor"] == HEADLINE]
        return int(blend["days"])

    @property
    def strongest(self) -> dict[str, Any] | None:
        """Return the rule (`other`) that is strongest beside the blend on the days scored."""
        rules = self.scores.loc[self.scores["is_rule"].astype(bool), "predictor"]
        of_blend = self.differences["predictor"] == HEADLINE
        return beside_strongest_rule(
            self.differences[of_blend & self.differences["other"].isin(rules)]
        )


def sentence(ranking: Ranking) -> str:
    """Say what was ranked; the list counts constituents without a price too."""
    row = ranking.row
    counts = read_survivorship(row["config"].get("list"))
    of_names = "stocks" if counts is None else f"of {counts.names} constituents"
    return (
        f"{row['stocks']} {of_names} ranked on {counted(ranking.days, 'day')}, closes from "
        f"{row['first']} to {row['last']}, {row['leg']}; "
        f"{counted(row['folds'], 'fold')} in {row['seconds']:.0f} s; "
        f"the best rule on the days before is {quoted(row['best_rule'])}"
    )


def verdict(ranking: Ranking) -> str:
    """Say in one sentence whether the blend beats the rules: the strongest on the days scored."""
    strongest = ranking.strongest
    if strongest is None:
        return f"Ranking the stocks of {ranking.days} days, the {HEADLINE} has no rule beside it."
    return (
        f"Ranking the stocks of {ranking.days} days, the {HEADLINE} "
        f"{strongest['verb'] or NO_INTERVAL} {strongest_words(strongest)}: "
        f"rank IC difference {with_interval(strongest, 'gain', signed=True)}."
    )


def survivorship(ranking: Ranking) -> str:
    """Say whom the list of constituents names, and what share of its days has no price.

    Empty for a ranking of an earlier version, which did not count them.
    """
    counts = read_survivorship(ranking.row["config"].get("list"))
    return "" if counts is None else survivorship_words(counts)


def published_table(ranking: Ranking) -> PublishedTable | None:
    """Return our figures beside published ones; None where the walk was made without any."""
    table = ranking.row["config"].get("table")
    return None if table is None else PublishedTable.of(ranking.row, table, ranking.days)


def net_sentence(ranking: Ranking) -> str:
    """Say in one sentence what the ranking earns after costs; empty where nothing was chosen.

    The way to trade is the one that validation days chose, the last of `VERSIONS`.
    """
    rows = {row["version"]: row for row in net_rows(ranking)}
    chosen_version = VERSIONS[-1]
    if chosen_version not in rows:
        return ""
    chosen = rows[chosen_version]
    equal_return = signed_percent(rows[EQUAL]["annual_return"], 1)
    nights = f"{chosen['smooth']} nights" if chosen["smooth"] > 1 else "one night"
    words = told_apart(chosen["index_gain_low"], chosen["index_gain_high"]) or NO_INTERVAL
    return (
        f"After costs, traded in the way that validation days chose (the ranking of {nights}, "
        f"band {chosen['band']:g}), it earns {signed_percent(chosen['annual_return'], 1)} a year "
        f"and {words} equal parts of all stocks, which pay no costs here and earn {equal_return}: "
        f"Sharpe ratio difference {with_interval(chosen, 'index_gain', 2, signed=True)}."
    )


def order_cells(ranking: Ranking) -> Iterator[tuple[str, ...]]:
    """Yield a row for each predictor below `COLUMNS`, the worst first."""
    strongest = ranking.strongest
    rule = None if strongest is None else strongest["other"]
    for row in whole_scores(ranking):
        name = row["predictor"]
        yield (
            f"{named(name)} (strongest rule)" if name == rule else named(name),
            with_interval(row, "rank_ic"),
            figure(row["t"], 1),
            _gain_cell(ranking, name, rule),
            _gain_cell(ranking, name, "ridge"),
            with_interval(row, "auc"),
            with_interval(row, "acc"),
            signed_percent(row["decile_spread"], 2),
        )


def _gain_cell(ranking: Ranking, name: str, other: str | None) -> str:
    """Return a predictor's gain over another, with its interval; empty over itself and over none.

    A gain that is significant among all pairs has the mark `AHEAD`, or `BEHIND` if it is a loss.
    """
    if other is None or name == other:
        return ""
    differences = ranking.differences
    is_pair = (differences["predictor"] == name) & (differences["other"] == other)
    row = records(differences[is_pair])[0]
    verb = compared(row["gain"], row.get("gain_p")) or ""
    mark = {"beats": AHEAD, "is beaten by": BEHIND}.get(verb, "")
    return f"{with_interval(row, 'gain', signed=True)}{mark}"


def net_cells(ranking: Ranking) -> Iterator[tuple[str, ...]]:
    """Yield the row of each way to trade, with a cell below each heading of `NET_COLUMNS`."""
    for row in net_rows(ranking):
        annual_return = signed_percent(row["annual_return"], 1)
        sharpe = with_interval(row, "sharpe", 2)
        turnover = percent(row["turnover"])
        if row["version"] == EQUAL:
            yield (f"{EQUAL} of all, free", "", "", annual_return, sharpe, "", turnover, "")
        else:
            break_even = basis_points(row["break_even"]) if row["break_even"] > 0 else "none"
            yield (
                row["version"],
                str(row["smooth"]),
                f"{row['band']:g}",
                annual_return,
                sharpe,
                with_interval(row, "index_gain", 2, signed=True),
                turnover,
                break_even,
            )


def markdown_report(ranking: Ranking) -> str:
    """Return what was ranked, the tables of predictors and of ways to trade, and the verdicts."""
    order = _markdown_table(COLUMNS, order_cells(ranking))
    after_costs = _markdown_table(NET_COLUMNS, net_cells(ranking))
    verdicts = f"{verdict(ranking)} {net_sentence(ranking)}".strip()
    return "\n\n".join([sentence(ranking), order, LEGEND, after_costs, verdicts])


def _markdown_table(names: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    rule = markdown("---" for _ in names)
    body = [markdown(row) for row in rows]
    return "\n".join([markdown(names), rule, *body])


def whole_scores(ranking: Ranking) -> list[dict[str, Any]]:
    """Return the scores over all days on the trained leg, the worst first.

    Before these come predictors that could be scored on no day.
    """
    scores = ranking.scores
    is_on_leg = scores["leg"] == ranking.row["leg"]
    is_whole = scores["slice"] == "all"
    return records(scores[is_on_leg & is_whole].sort_values("rank_ic", na_position="first"))


def net_rows(ranking: Ranking) -> list[dict[str, Any]]:
    """Return the portfolios of the scored days, in the order of `VERSIONS`, then equal parts."""
    rows = ranking.portfolios[ranking.portfolios["span"] == "test"]
    places = {version: place for place, version in enumerate((*VERSIONS, EQUAL))}
    return records(rows.sort_values("version", key=lambda names: names.map(places)))


def frontier(ranking: Ranking) -> Chart:
    """Return the chart of the net return a year against the turnover.

    It shows all ways to trade on validation days, and on the other days the chosen ones and equal
    parts of all stocks.
    """
    columns = ["span", "version", "smooth", "band", "annual_return", "turnover"]
    words = (
        "Net return a year against the share of equity traded a day; "
        "the table has the figures of those chosen."
    )
    return Chart(
        title="Net return against turnover",
        words=words,
        file="frontier",
        data={"rows": ranking.portfolios[columns]},
    )


def ranking_page(
    ranking: Ranking,
    *,
    served: bool = False,
    sql: Mapping[str, str] | None = None,
    nights: str = "",
) -> str:
    """Render a ranking as one HTML file without requests; `served` by the dashboard, it links back.

    `sql` has the statements behind charts, by their names, to which a served page links. Without a
    stored sheet there are neither answers nor these charts. `nights` says how the nights of the
    market rank, and may be empty; a page with it must be served.

    The table of years has the scores of the blend and of the strongest rule. The chart of ways to
    trade is drawn if validation days chose among them.
    """
    scores = ranking.scores
    sheet: dict[str, Any] = {"answers": None}
    if ranking.sheet is not None:
        sheet = sheet_values(ranking.sheet, unit="days", strongest=ranking.strongest, sql=sql)
    rule = None if ranking.strongest is None else ranking.strongest["other"]
    is_shown = scores["predictor"].isin([HEADLINE, rule])
    by_year = scores[(scores["slice"] == "year") & is_shown]
    was_validated = (ranking.portfolios["span"] == "validation").any()
    return _template().render(
        served=served,
        ranking=ranking.row,
        verdict=verdict(ranking),
        net_sentence=net_sentence(ranking),
        sentence=sentence(ranking),
        legend=LEGEND,
        survivorship=survivorship(ranking),
        published=published_table(ranking),
        tables={
            "order": (COLUMNS, list(order_cells(ranking))[::-1]),  # on a page the best comes first
            "net": (NET_COLUMNS, list(net_cells(ranking))),
        },
        years=records(by_year.sort_values(["value", "predictor"])),
        chart=frontier(ranking) if was_validated else None,
        nights=nights,
        ranker=HEADLINE,
        **sheet,
    )


@cache
def _template() -> jinja2.Template:
    template = environment()
    template.globals.update(live=True, script=script, link=_link)
    return template.get_template("ranking.html")


def _link(segments: Sequence[str], query: Mapping[str, str]) -> str:
    """Return an address of the dashboard, which serves the page."""
    path = "/".join(quote(segment, safe="") for segment in segments)
    return f"/{path}?{urlencode(query)}"
