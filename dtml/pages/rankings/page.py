"""The report of a ranking: how well the stocks of a day were ranked.

It also gives the returns after costs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
import pandas as pd

from dtml.backtest.turnover import EQUAL, VERSIONS
from dtml.evaluation.family import beside_strongest_rule, compared
from dtml.evaluation.metrics import told_apart
from dtml.evaluation.survivorship import read_survivorship
from dtml.evaluation.tear_sheet import TearSheet
from dtml.pages.charts import Chart, environment, script
from dtml.pages.figures import (
    NO_INTERVAL,
    basis_points,
    counted,
    figure,
    markdown,
    named,
    percent,
    quoted,
    records,
    signed_percent,
    with_interval,
)
from dtml.pages.rankings.published_table import PublishedTable
from dtml.pages.rankings.sheet import sheet_values, strongest_words
from dtml.pages.survivorship import survivorship_words

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
    words = _compared(chosen["index_gain_low"], chosen["index_gain_high"])
    return (
        f"After costs, traded in the way that validation days chose (the ranking of {nights}, "
        f"band {chosen['band']:g}), it earns {signed_percent(chosen['annual_return'], 1)} a year "
        f"and {words} equal parts of all stocks, which pay no costs here and earn {equal_return}: "
        f"Sharpe ratio difference {with_interval(chosen, 'index_gain', 2, signed=True)}."
    )


def _compared(low: Any, high: Any) -> str:
    """Compare by the ends of the interval of a paired difference."""
    return told_apart(low, high) or NO_INTERVAL


def cells(ranking: Ranking) -> Iterator[tuple[str, ...]]:
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
    row = _gain(ranking, name, other)
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
    order = _markdown_table(COLUMNS, cells(ranking))
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
            "order": (COLUMNS, list(cells(ranking))[::-1]),  # on a page the best comes first
            "net": (NET_COLUMNS, list(net_cells(ranking))),
        },
        years=records(by_year.sort_values(["value", "predictor"])),
        chart=frontier(ranking) if was_validated else None,
        nights=nights,
        ranker=HEADLINE,
        **sheet,
    )


def _gain(ranking: Ranking, predictor: str, other: str) -> dict[str, Any]:
    """Return the paired difference in rank IC of a predictor and another."""
    differences = ranking.differences
    is_pair = (differences["predictor"] == predictor) & (differences["other"] == other)
    return records(differences[is_pair])[0]


@cache
def _template() -> jinja2.Template:
    template = environment()
    template.globals.update(live=True, script=script, link=_link)
    return template.get_template("ranking.html")


def _link(segments: Sequence[str], query: Mapping[str, str]) -> str:
    """Return an address of the dashboard, which serves the page."""
    path = "/".join(quote(segment, safe="") for segment in segments)
    return f"/{path}?{urlencode(query)}"
