"""The report of a ranking: how well the stocks of a day were ordered, and what
is left of it after costs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
import pandas as pd

from dtml.backtest.turnover import EQUAL, VERSIONS
from dtml.evaluation.metrics import told_apart
from dtml.pages.charts import Chart, environment, script
from dtml.pages.figures import (
    basis_points,
    figure,
    markdown,
    percent,
    records,
    signed_percent,
    with_interval,
)

HEADLINE = (
    "blend"  # settled beforehand: the best of the models on the days that are scored is partly luck
)
COLUMNS = (
    *("predictor", "rank IC [95 %]", "t", "over the best rule", "over the ridge", "AUC", "ACC"),
    "decile spread a day",
)
LEFT_COLUMNS = (
    *(
        "way to trade",
        "nights",
        "band",
        "net a year",
        "Sharpe [95 %]",
        "over equal parts [95 %]",
        "turnover a day",
    ),
    "break-even, bp",
)


@dataclass(frozen=True)
class Ranking:
    """Hold a ranking as stored: its row, scores, paired differences, and portfolios after costs."""

    row: Mapping[str, Any]
    scores: pd.DataFrame
    differences: pd.DataFrame
    portfolios: pd.DataFrame


def sentence(found: Ranking) -> str:
    """Say what was ordered."""
    row = found.row
    return (
        f"{row['stocks']} stocks, closes from {row['first']} to {row['last']}, {row['leg']}; "
        f"{row['folds']} folds "
        f"in {row['seconds']:.0f} s; the best rule of the days before is {row['best_rule']}"
    )


def verdict(found: Ranking) -> str:
    """Say in one sentence whether the blend orders stocks better than the best
    rule of the days before.
    """
    (blend,) = (each for each in whole(found) if each["predictor"] == HEADLINE)
    rule = found.row["best_rule"]
    gain = _gain(found, HEADLINE, rule)
    compared = told_apart(gain["gain_low"], gain["gain_high"]) or "has no interval beside"
    said = f"rank IC {with_interval(gain, 'gain', signed=True)}"
    return f"Ordering the stocks of {blend['days']} days, the {HEADLINE} {compared} {rule}: {said}."


def left_words(found: Ranking) -> str:
    """Say in one sentence what is left after costs of the way to trade that
    validation days chose; maybe nothing.
    """
    rows = {each["version"]: each for each in left(found)}
    if VERSIONS[-1] not in rows:
        return ""
    chosen, equal = rows[VERSIONS[-1]], signed_percent(rows[EQUAL]["annual_return"], 1)
    nights = f"{chosen['smooth']} nights" if chosen["smooth"] > 1 else "one night"
    compared = (
        told_apart(chosen["index_gain_low"], chosen["index_gain_high"]) or "has no interval beside"
    )
    return (
        f"After costs, traded as validation days chose (the order of {nights}, band "
        f"{chosen['band']:g}), it earns "
        f"{signed_percent(chosen['annual_return'], 1)} a year and {compared} equal parts of all "
        "stocks, which earn "
        f"{equal}: Sharpe ratio {with_interval(chosen, 'index_gain', 2, signed=True)}."
    )


def cells(found: Ranking) -> Iterator[tuple[str, ...]]:
    """Yield a row a predictor below `COLUMNS`, the worst first."""
    rule = found.row["best_rule"]
    for each in whole(found):
        name = each["predictor"]
        gains = [
            "" if name == other else with_interval(_gain(found, name, other), "gain", signed=True)
            for other in (rule, "ridge")
        ]
        yield (
            f"{name} (best rule)" if name == rule else name,
            with_interval(each, "rank_ic"),
            figure(each["t"], 1),
            *gains,
            with_interval(each, "auc"),
            with_interval(each, "acc"),
            signed_percent(each["decile_spread"], 2),
        )


def left_cells(found: Ranking) -> Iterator[tuple[str, ...]]:
    """Yield a row a way to trade below `LEFT_COLUMNS`."""
    for each in left(found):
        is_model = each["version"] != EQUAL
        yield (
            each["version"] if is_model else f"{EQUAL} of all, free",
            *((str(each["smooth"]), f"{each['band']:g}") if is_model else ("", "")),
            signed_percent(each["annual_return"], 1),
            with_interval(each, "sharpe", 2),
            with_interval(each, "index_gain", 2, signed=True) if is_model else "",
            percent(each["turnover"]),
            (basis_points(each["break_even"]) if each["break_even"] > 0 else "none")
            if is_model
            else "",
        )


def markdown_tables(found: Ranking) -> str:
    """Return both tables in Markdown."""
    tables = ((COLUMNS, cells(found)), (LEFT_COLUMNS, left_cells(found)))
    blocks = (
        [markdown(names), markdown("---" for _ in names), *map(markdown, rows)]
        for names, rows in tables
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def whole(found: Ranking) -> list[dict[str, Any]]:
    """Return the scores over all days on the leg that the models were trained
    for, the worst first.
    """
    mine = found.scores[
        (found.scores["leg"] == found.row["leg"]) & (found.scores["slice"] == "all")
    ]
    return records(mine.sort_values("rank_ic"))


def left(found: Ranking) -> list[dict[str, Any]]:
    """Return the portfolios of the days that were scored, in the order of
    `VERSIONS`, then equal parts.
    """
    rows = found.portfolios[found.portfolios["span"] == "test"]
    order = {version: place for place, version in enumerate((*VERSIONS, EQUAL))}
    return records(rows.sort_values("version", key=lambda names: names.map(order)))


def frontier(found: Ranking) -> Chart:
    """Return net return a year against turnover: every way to trade on
    validation days, those chosen on the others.
    """
    rows = found.portfolios[["span", "version", "smooth", "band", "annual_return", "turnover"]]
    words = (
        "Net return a year against the share of equity traded a day; the table has the "
        "figures "
        "of those chosen."
    )
    return Chart("Net return against turnover", words, "frontier", {"rows": rows})


def ranking_page(found: Ranking, *, served: bool = False) -> str:
    """Render a ranking as one HTML file that requests nothing; `served` by the
    dashboard, it has a way back.
    """
    by_year = found.scores[
        (found.scores["slice"] == "year")
        & found.scores["predictor"].isin([HEADLINE, found.row["best_rule"]])
    ]
    return _template().render(
        served=served,
        ranking=found.row,
        verdict=verdict(found),
        left_words=left_words(found),
        sentence=sentence(found),
        tables={
            "order": (COLUMNS, list(cells(found))),
            "left": (LEFT_COLUMNS, list(left_cells(found))),
        },
        years=records(by_year.sort_values(["value", "predictor"])),
        chart=frontier(found) if (found.portfolios["span"] == "validation").any() else None,
    )


def _gain(found: Ranking, one: str, other: str) -> dict[str, Any]:
    both = (found.differences["predictor"] == one) & (found.differences["other"] == other)
    return records(found.differences[both])[0]


@cache
def _template() -> jinja2.Template:
    template = environment()
    template.globals.update(live=True, script=script)
    return template.get_template("ranking.html")
