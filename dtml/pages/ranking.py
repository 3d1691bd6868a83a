"""The report of a ranking: how well a day's stocks were ranked, and what it earns after costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pandas as pd

from dtml.backtest.turnover import EQUAL, VERSIONS
from dtml.evaluation.family import beside_strongest_rule, compared
from dtml.evaluation.metrics import Estimate, told_apart
from dtml.evaluation.tear_sheet import Answers, TearSheet, answers
from dtml.markets.definition import BASIS_POINT
from dtml.pages.charts import Chart, Panel, histogram, months_map, over_sessions
from dtml.pages.figures import MARKS, Page, Row, Table, ci, fmt, named, proven, records
from dtml.pages.rendering import markdown, page, said
from dtml.pages.survivorship import of_study

HEADLINE = "blend"  # settled beforehand: the best model on the days scored is partly luck
ORDER = {
    "predictor": "name:text",
    "rank IC [95 %]": "rank_ic",
    "t": "t",
    "after all rules [95 %]": "residual_ic",
    "upper half": "upper",
    "lower half": "lower",
    "over the strongest rule": "over_rule:range",
    "over the ridge": "over_ridge:range",
    "AUC": "auc",
    "ACC": "acc",
    "decile spread a day": "spread:small_percent",
}
NET = {
    "way to trade": "way:text",
    "nights": "nights:range",
    "band": "band:range",
    "net a year": "annual_return:signed_percent",
    "Sharpe [95 %]": "sharpe",
    "over equal parts [95 %]": "over_equal:range",
    "turnover a day": "turnover",
    "break-even, bp": "cost:range",
}
PUBLISHED = {
    "model": "name:text",
    "rank IC [95 %]": "rank_ic:fine",
    "rank ICIR [95 %]": "rank_icir:fine",
    "IC [95 %]": "ic:fine",
    "ICIR [95 %]": "icir:fine",
}
AXES = {"group": "score group", "horizon": "days apart", "leg": "holding period"}
OUTER = {1: "1, worst", 10: "10, best"}  # groups
BARS = 31  # of a histogram
# Columns of the daily tables that others give: sums so far, and gross less net.
DERIVED = ["total", "gross_total", "net_total", "cost"]


def sheet_charts(sheet: TearSheet) -> dict[str, Chart | None]:
    """Return the charts of lines, months and single days, by name.

    A chart is None without data, that of a line with fewer than two days that have a value.
    """
    lines: dict[str, pd.Series[float]] = {}
    bands: dict[str, pd.DataFrame] = {}
    for name in filter(None, (sheet.predictor, sheet.rule)):
        rows = sheet.cumulative[sheet.cumulative["predictor"] == name].set_index("session")
        lines[name] = rows["total"]
        # The ends are known on some days only: the edge of a band is straight between these.
        band = rows[["low", "high"]].interpolate(limit_area="inside").dropna()
        if len(band):
            bands[name] = band
    spread = sheet.spread.set_index("session")
    totals = {"after costs": spread["net_total"], "before costs": spread["gross_total"]}
    coverage = sheet.coverage.set_index("session").astype(float)
    shares = {"ranked": coverage["ranked_share"], "with an outcome": coverage["scored_share"]}
    daily = sheet.daily["rank_ic"]
    panels = {
        "cumulative": Panel("sum of daily rank ICs", lines, base=0.0, bands=bands, height=230),
        "spread": Panel("best less worst tenth, added up", totals, form="percent", base=0.0),
        "coverage": Panel("share of constituents", shares, form="percent", height=120),
    }
    charts = {
        name: over_sessions(panel.title, [panel], dashed=["before costs"])
        for name, panel in panels.items()
    }
    if len(daily):
        bars = min(BARS, max(5, len(daily) // 4))  # fewer bars for few days
        title = "Distribution of the daily rank IC"
        charts["distribution"] = histogram(title, "rank IC of a day", daily, bars, "coefficient")
        title = "Mean rank IC of each month"
        years = sheet.months[["year", "month"]].itertuples(index=False)
        months = [f"{year}-{month:02d}" for year, month in years]
        values = sheet.months["rank_ic"].set_axis(months)
        charts["months"] = months_map(title, values, "coefficient")
    return charts


def estimates(
    title: str, rows: pd.DataFrame, column: str, names: str, axis: str, form: str = "coefficient"
) -> Chart | None:
    """Return a bar for each row, with its interval where it has one; None without a row.

    `column` is written `column:kind`; the ends of the interval are in `COLUMN_low, COLUMN_high`.
    `names` is the column that names the rows, and `axis` says what the figure is.
    """
    value = column.partition(":")[0]
    known = rows.dropna(subset=value)
    if known.empty:
        return None
    columns = [names, value, f"{value}_low", f"{value}_high"]
    bars = known[columns].set_axis(["name", "value", "low", "high"], axis=1).astype({"name": str})
    return Chart(
        title=title,
        words="; ".join(f"{row[names]}: {ci(row, column)}" for row in records(known)),
        file="estimates",
        data={"rows": bars},
        values={
            "title": axis,
            "names": AXES.get(names, names),
            "form": form,
            "order": list(bars["name"]),
        },
    )


def sheet_values(
    sheet: TearSheet,
    *,
    unit: str,
    strongest: Row | None = None,
    sql: Mapping[str, str] | None = None,
) -> Page:
    """Return what `ranking_sheet.html` shows of a tear sheet: `answers` in a word, and `sheet`.

    `unit` is "nights" or "days". `strongest` is the row of `beside_strongest_rule`, whose rule is
    in `other`. `sql` has the statement of each chart's rows, by the chart's name.
    """
    found = answers(sheet)
    of_rule = sheet.cumulative.loc[sheet.cumulative["predictor"] == sheet.rule, "rank_ic"]
    groups = sheet.groups.sort_values("group", ascending=False)
    ends = ["excess", "excess_low", "excess_high"]
    in_bp = groups.assign(group=groups["group"].map(lambda group: OUTER.get(group, str(group))))
    in_bp[ends] /= BASIS_POINT
    return {
        "answers": answer_words(found, strongest),
        "found": found,
        "sheet": sheet,
        "rule_ic": of_rule.mean(),
        "strongest": strongest,
        "unit": unit,
        "drawn": sheet_charts(sheet),
        "groups": groups,
        "in_bp": in_bp,
        "legs": sheet.legs.assign(leg=sheet.legs["leg"].str.replace("_", " ")),
        "statements": sql or {},
        "estimates": estimates,
        "csv_address": csv_address,
        "records": records,
    }


def csv_address(table: pd.DataFrame) -> str:
    """Return an address that is the table as CSV itself, five digits a figure, without DERIVED."""
    rows = table.drop(columns=DERIVED, errors="ignore")
    text = rows.to_csv(index=False, float_format="%.5g", date_format="%Y-%m-%d")
    return f"data:text/csv;charset=utf-8,{quote(text, safe=',:-._ ')}".replace(" ", "%20")


def answer_words(found: Answers, strongest: Row | None = None) -> dict[str, str]:
    """Return the answer to each question of a sheet in a word, by the intervals of its figures.

    - an order: the rank IC is above 0;
    - steady: it is in both halves, No where the rank IC of one is not above 0, whatever its
      interval;
    - tradable: the best tenth earns more than the worst after costs, not proven where these are
      unknown;
    - beats rules (with a strongest rule): the rank IC is above that of each rule.

    It is too early where there is no interval.
    """
    halves = {_verdict(half) for half in found.halves} or {None}
    steady: str | None = "differs"
    if None in halves:
        steady = None
    elif halves == {"beats"}:
        steady = "beats"
    elif not all(half.value > 0 for half in found.halves):
        steady = "is beaten by"
    costs_unknown = pd.isna(found.net.value) and not pd.isna(found.gross.value)
    verbs = {
        "Skill": _verdict(found.rank_ic),
        "Steady": steady,
        "Spread after costs": "differs" if costs_unknown else _verdict(found.net),
    }
    if strongest is not None:
        verbs["Beats the rules"] = strongest["verb"]
    return {question: proven(verb) for question, verb in verbs.items()}


def _verdict(estimate: Estimate) -> str | None:
    return told_apart(estimate.low, estimate.high)


@dataclass(frozen=True)
class Ranking:
    """A ranking as stored: its row, scores, paired differences, and portfolios after costs.

    `sheet` is its tear sheet, None without the file beside its page.
    """

    row: Row
    scores: pd.DataFrame
    differences: pd.DataFrame
    portfolios: pd.DataFrame
    sheet: TearSheet | None = None

    @property
    def headline(self) -> Row:
        """Return the scores of the blend over all days."""
        # It is always among the predictors, once.
        (blend,) = [row for row in whole_scores(self) if row["predictor"] == HEADLINE]
        return blend

    @property
    def days(self) -> int:
        """Return the number of days on which the blend was scored."""
        return int(self.headline["days"])

    @property
    def strongest(self) -> Row | None:
        """Return the rule (`other`) that is strongest beside the blend on the days scored."""
        rules = self.scores.loc[self.scores["is_rule"].astype(bool), "predictor"]
        of_blend = self.differences["predictor"] == HEADLINE
        return beside_strongest_rule(
            self.differences[of_blend & self.differences["other"].isin(rules)]
        )


def sentence(ranking: Ranking) -> str:
    """Say what was ranked; the list counts constituents without a price too."""
    return said("ranked", ranking.row, ranking.days)


def verdict(ranking: Ranking) -> str:
    """Say whether the blend beats the strongest rule, and what it earns, traded as validated."""
    words = said("walk_verdict", ranking.days, HEADLINE, ranking.strongest, ranking.headline)
    rows = net_rows(ranking)
    chosen = rows.get(VERSIONS[-1])
    if chosen is None:
        return words
    return f"{words} {said('after_costs', chosen, rows[EQUAL])}"


def published_table(ranking: Ranking) -> Table | None:
    """Return our figures and published ones, the lowest rank IC first; None without any."""
    table = ranking.row["config"].get("table")
    if table is None:
        return None
    rows = sorted([*table["columns"], *table["published"]], key=lambda row: float(row["rank_ic"]))
    named_rows = []
    for row in rows:
        source = f" (published: {row['source']})" if row.get("source") else ""
        named_rows.append({**row, "name": f"{row['model']}{source}"})
    return Table(named_rows, PUBLISHED)


def order_table(ranking: Ranking) -> Table:
    """Return the scores of each predictor, the worst first."""
    rule = (ranking.strongest or {}).get("other")
    rows = []
    for row in whole_scores(ranking):
        name = row["predictor"]
        gains = {
            "over_rule": _gain(ranking, name, rule),
            "over_ridge": _gain(ranking, name, "ridge"),
        }
        ending = " (strongest rule)" if name == rule else ""
        without_intervals = {
            "spread": row["decile_spread"],
            "upper": row["upper_ic"],
            "lower": row["lower_ic"],
        }
        rows.append({**row, **gains, **without_intervals, "name": f"{named(name)}{ending}"})
    return Table(rows, ORDER)


def _gain(ranking: Ranking, name: str, other: str | None) -> str:
    """Return a predictor's gain over another with its mark; empty over itself and over none."""
    differences = ranking.differences
    is_pair = (differences["predictor"] == name) & (differences["other"] == other)
    for row in records(differences[is_pair]):
        return ci(row, "gain") + MARKS.get(compared(row["gain"], row.get("gain_p")) or "", "")
    return ""


def net_table(ranking: Ranking) -> Table:
    """Return the returns after costs of each way to trade, and of equal parts of all stocks."""
    rows = []
    for version, row in net_rows(ranking).items():
        cells = dict.fromkeys(("nights", "band", "over_equal", "cost"), "")
        if version != EQUAL:
            cost = fmt(row["break_even"], "basis_points") if row["break_even"] > 0 else "none"
            cells = {
                "nights": str(row["smooth"]),
                "band": f"{row['band']:g}",
                "over_equal": ci(row, "index_gain"),
                "cost": cost,
            }
        way = f"{EQUAL} of all, free" if version == EQUAL else version
        rows.append({**row, **cells, "way": way})
    return Table(rows, NET)


def markdown_report(ranking: Ranking) -> str:
    """Return what was ranked, the tables of predictors and of ways to trade, and the verdicts."""
    order, net = order_table(ranking), net_table(ranking)
    return markdown("ranking", sentence(ranking), order, net, verdict(ranking))


def whole_scores(ranking: Ranking) -> list[Row]:
    """Return the scores over all days on the trained leg, the missing first, then the worst."""
    scores = ranking.scores
    is_whole = (scores["leg"] == ranking.row["leg"]) & (scores["slice"] == "all")
    return records(scores[is_whole].sort_values("rank_ic", na_position="first"))


def net_rows(ranking: Ranking) -> dict[str, Row]:
    """Return the portfolios of the scored days by version: `VERSIONS`, then equal parts."""
    rows = records(ranking.portfolios[ranking.portfolios["span"] == "test"])
    by_version = {row["version"]: row for row in rows}
    return {name: by_version[name] for name in (*VERSIONS, EQUAL) if name in by_version}


def frontier(portfolios: pd.DataFrame) -> Chart | None:
    """Return the chart of net return a year against turnover; None where nothing was validated.

    Of all ways on validation days, and of the chosen ones and equal parts on the others.
    """
    if not (portfolios["span"] == "validation").any():
        return None
    columns = ["span", "version", "smooth", "band", "annual_return", "turnover"]
    words = (
        "Net return a year against the share of equity traded a day; "
        "the table has the figures of those chosen."
    )
    data = {"rows": portfolios[columns]}
    return Chart("Net return against turnover", words, "frontier", data)


def ranking_page(
    ranking: Ranking,
    *,
    served: bool = False,
    sql: Mapping[str, str] | None = None,
    skill_of_nights: Any = None,
) -> str:
    """Render a ranking as one HTML file without requests; `served` by the dashboard, it links back.

    `sql` has the statements behind charts, by their names, to which a served page links. It may
    also show the `skill_of_nights` of the market, whose `ranker` is scored by a row `score`.
    """
    scores = ranking.scores
    strongest = ranking.strongest
    is_shown = scores["predictor"].isin([HEADLINE, (strongest or {}).get("other")])
    by_year = scores[(scores["slice"] == "year") & is_shown].sort_values(["value", "predictor"])
    order = order_table(ranking)
    sheet: Page = {"answers": None}
    if ranking.sheet is not None:
        sheet = sheet_values(ranking.sheet, unit="days", strongest=strongest, sql=sql)
    return page(
        "ranking.html",
        served=served,
        live=True,
        ranking=ranking.row,
        days=ranking.days,
        verdict=verdict(ranking),
        sentence=sentence(ranking),
        survivorship=of_study(ranking.row),
        published=published_table(ranking),
        order=order,
        net=net_table(ranking),
        years=records(by_year),
        frontier=frontier(ranking.portfolios),
        nights=skill_of_nights,
        model=HEADLINE,
        **sheet,
    )
