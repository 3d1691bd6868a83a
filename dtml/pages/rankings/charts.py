"""The charts of a ranking's tear sheet, drawn from the tables of `dtml.evaluation.tear_sheet`."""

import calendar
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dtml.evaluation.tear_sheet import TearSheet
from dtml.markets.definition import BASIS_POINT
from dtml.pages.charts import Chart, Form, Panel, cells, over_sessions
from dtml.pages.figures import between, figure, percent, records

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
    return Chart(
        title=title,
        words=_in_words(bars, form),
        file="estimates",
        data={"rows": bars},
        values={"title": axis, "names": names, "form": form, "order": list(bars["name"])},
    )


def _in_words(bars: pd.DataFrame, form: Form) -> str:
    """Return the name, the value and the interval of each bar."""
    words = []
    for bar in records(bars):
        if form == "percent":
            said = percent(bar["value"])
        else:
            digits = 3 if form == "ratio" else 1
            ends = between(bar["low"], bar["high"], digits)
            said = f"{figure(bar['value'], digits)} {ends}".strip()
        words.append(f"{bar['name']}: {said}")
    return "; ".join(words)


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
