"""The report of a benchmark: a verdict, a table in Markdown and one self-contained HTML page.

`scores` and `seed_scores` have the columns of db's tables `benchmark_score` and `benchmark_seed`,
`benchmark` those of a row of `benchmark`, whose config may hold words on the data, as `data`.
Missing values, NaN or None, are printed as "-".
"""

import json
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from dtml.baselines.naive_rules import MODEL, NAIVE_RULES, best_at
from dtml.evaluation.family import compared
from dtml.evaluation.metrics import told_apart
from dtml.evaluation.survivorship import read_survivorship
from dtml.pages.charts import Chart, calibration, colour, environment, script
from dtml.pages.figures import (
    NO_INTERVAL,
    Row,
    day,
    in_print,
    in_print_with_std,
    markdown_table,
    named,
    percent,
    quoted,
    records,
    with_interval,
    with_std,
)
from dtml.pages.survivorship import survivorship_words

PROTOCOL_WORDS = {"published": "the published labels", "all": "all stock-days"}
LABELS = {
    "published": "only returns of +0.55 % or more (a rise) and of -0.5 % or less (a fall)",
    "all": "every return counts: a rise is a return above 0",
}
COLUMNS = (
    "model",
    "ACC, mean ± sd (published)",
    "ACC ensemble [95 %]",
    "gain over rule [95 %]",
    "MCC, mean ± sd (published)",
    "MCC ensemble [95 %]",
    "within-day AUC [95 %]",
    "same direction",
)


def verdict(benchmark: Row, scores: pd.DataFrame) -> str:
    """Say in one sentence whether DTML's ensemble beats the strongest naive rule in each protocol.

    The p-value of the paired gain in ACC, adjusted for all pairs of a predictor and a rule,
    decides; where the store has no p-value, the gain's own interval. Protocols in which DTML has no
    score are left out. Where DTML is not among the predictors, the sentence says so.
    """
    rows = {row["protocol"]: row for row in score_rows(scores) if row["predictor"] == MODEL}
    if not rows:
        return f"DTML is not among the predictors on {benchmark['market']}."
    clauses = [
        f"on {words} DTML {_compared(rows[name])}"
        for name, words in PROTOCOL_WORDS.items()
        if name in rows
    ]
    days = max(row["days"] for row in rows.values())
    return (
        "Against the naive rule that is strongest in hindsight, "
        f"over {days} test days of {benchmark['market']}: {'; '.join(clauses)}."
    )


def on_data(benchmark: Row) -> str:
    """Say how the data compare with the paper's; empty where nothing is known."""
    return "; ".join(benchmark["config"].get("data", ()))


def survivorship(benchmark: Row) -> str:
    """Say whether the list names survivors alone; empty for a benchmark of an earlier version."""
    counts = read_survivorship(benchmark["config"].get("list"))
    return "" if counts is None else survivorship_words(counts)


def on_reading(benchmark: Row, number: int) -> str:
    """Say that this is benchmark `number` of its data set in the store; empty for the first."""
    if number <= 1:
        return ""
    return (
        f"benchmark {number} of {benchmark['market']} in this store: "
        f"its test span was read {number} times"
    )


def _mark(row: Row) -> str:
    marks = {"beats": " ▲", "is beaten by": " ▼"}
    return marks.get(compared(row["acc_gain"], row.get("acc_gain_p")) or "", "")


def _compared(row: Row) -> str:
    """Say whether a predictor beats the strongest rule: by the p-value among all, if stored."""
    rule = quoted(row["acc_rule"])
    gain = f"(ACC gain {with_interval(row, 'acc_gain', signed=True)})"
    verb = compared(row["acc_gain"], row.get("acc_gain_p"))
    words = verb or told_apart(row["acc_gain_low"], row["acc_gain_high"])
    if words:
        return f"{words} {rule} {gain}"
    return f"{NO_INTERVAL} {rule} {gain}"


def score_rows(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `scores` in their order, but models before naive rules.

    `acc_rule` and `mcc_rule` are the rules with the highest ACC and MCC of a row's protocol, None
    without a rule. Earlier versions stored gains over the rule chosen on the training span; where
    another was stronger on the test days, gains are over that one, and without an interval.
    """
    rows = sorted(records(scores), key=lambda row: bool(row["is_rule"]))
    for protocol, measure in product(PROTOCOL_WORDS, ("acc", "mcc")):
        of_protocol = [row for row in rows if row["protocol"] == protocol]
        rules = [row for row in of_protocol if row["is_rule"]]
        strongest = best_at(pd.DataFrame(rules, columns=list(scores)), measure)
        for row in of_protocol:
            row[f"{measure}_rule"] = None if strongest is None else strongest["predictor"]
            if strongest is not None and not pd.isna(strongest[f"{measure}_gain"]):
                is_itself = row["predictor"] == strongest["predictor"]
                gain = np.nan if is_itself else row[measure] - strongest[measure]
                ends = dict.fromkeys(f"{measure}_gain{end}" for end in ("_low", "_high", "_p"))
                row.update({**ends, f"{measure}_gain": gain})
    return rows


def result_cells(row: Row, *, is_for_print: bool = True) -> tuple[tuple[str, str], ...]:
    """Return a row of results below `COLUMNS`.

    Each cell has two parts, for one line or two; the second may be empty. With `is_for_print`, for
    tables in Markdown, figures have the digits that papers print and predictors their names in the
    store; without it, both are written as on pages. A significant gain has the mark of `_mark`.
    """
    with_ends = in_print if is_for_print else with_interval
    with_deviation = in_print_with_std if is_for_print else with_std
    name = row["predictor"] if is_for_print else named(row["predictor"])
    is_strongest = row["predictor"] == row["acc_rule"]
    gain, gain_interval = _on_two_lines(with_ends(row, "acc_gain", signed=True))

    def over_seeds(measure: str) -> tuple[str, str]:
        """Return our mean over the seeds, and below it the published one in brackets."""
        own = with_deviation(row, f"{measure}_mean", f"{measure}_sd")
        published = with_deviation(row, f"published_{measure}", f"published_{measure}_sd")
        if own == published == "-":
            return own, ""
        return own, f"({published})"

    return (
        (name, "(strongest rule)" if is_strongest else ""),
        over_seeds("acc"),
        _on_two_lines(with_ends(row, "acc")),
        (f"{gain}{_mark(row)}", gain_interval),
        over_seeds("mcc"),
        _on_two_lines(with_ends(row, "mcc")),
        _on_two_lines(with_ends(row, "auc")),
        (percent(row["same_direction"]), ""),
    )


def _on_two_lines(text: str) -> tuple[str, str]:
    """Return a figure and its interval, which may be empty."""
    value, bracket, ends = text.partition(" [")
    return value, f"{bracket}{ends}".strip()


def sample(row: Row) -> str:
    """Say how much was scored: 252 days, 7,398 stock-days, 3,788 of them rises."""
    return f"{row['days']:,} days, {row['n']:,} stock-days, {row['rises']:,} of them rises"


def readme_table(benchmark: Row, scores: pd.DataFrame) -> str:
    """Return the results in Markdown: a title and a table for each protocol.

    A protocol without scores is left out. Words on the data follow, if any.
    """
    days_and_stocks = (
        f"{day(benchmark['test_first'])} to {day(benchmark['test_last'])}, "
        f"{benchmark['stocks']} stocks"
    )
    blocks = []
    for protocol, words in PROTOCOL_WORDS.items():
        rows = [row for row in score_rows(scores) if row["protocol"] == protocol]
        if rows:
            scored = sample(rows[0])
            title = f"**{benchmark['market']}, {words}**: {days_and_stocks}, {scored}."
            table = []
            for row in rows:
                cells = result_cells(row)
                table.append([" ".join(cell).strip() for cell in cells])
            blocks.append(markdown_table(title, COLUMNS, table))
    if on_data(benchmark):
        blocks.append(f"The data: {on_data(benchmark)}.\n")
    return "\n".join(blocks)


def forest(rows: list[dict[str, Any]], words: str) -> Chart:
    """Return the chart of the ensemble ACC of one protocol's predictors.

    It shows their intervals and published figures. `words` name the protocol in the title.
    """
    drawn_rows = []
    for row in rows:
        accuracy = with_interval(row, "acc")
        drawn_rows.append(
            row
            | {
                "colour": colour(row["predictor"]),
                "predictor": named(row["predictor"]),
                "said": accuracy,
            }
        )
    columns = ["predictor", "acc", "acc_low", "acc_high", "published_acc", "colour", "said"]
    values = {
        "order": [row["predictor"] for row in drawn_rows],
        "strongest_rule": named(rows[0]["acc_rule"]),
    }
    return Chart(
        title=f"Ensemble ACC with 95 % intervals, {words}",
        words="; ".join(f"{row['predictor']} {row['said']}" for row in drawn_rows),
        file="forest",
        data={"rows": pd.DataFrame(drawn_rows)[columns]},
        values=values,
    )


def seeds_chart(seed_scores: pd.DataFrame) -> Chart:
    """Return the test ACC of every configuration and seed as dots.

    Those kept on validation are filled.
    """
    rows = seed_scores[["predictor", "acc", "configuration", "seed", "kept"]].astype(
        {"kept": bool, "acc": float}
    )
    rows["predictor"] = [named(predictor) for predictor in rows["predictor"]]
    order = {"order": list(dict.fromkeys(rows["predictor"]))}
    words = "A dot is one configuration and seed; the table has the range."
    return Chart("Test ACC of every seed", words, "seeds", {"rows": rows}, order)


def strips(seed_scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each predictor's seeds: their range, and the configuration kept on validation."""
    return [
        {"predictor": name, **_figures_of_seeds(rows)}
        for name, rows in seed_scores.groupby("predictor", sort=False)
    ]


def _figures_of_seeds(rows: pd.DataFrame) -> dict[str, Any]:
    """Return one predictor's seeds in figures.

    `configurations` and `seeds` count what was trained, `over_all` is the lowest, the median and
    the highest test ACC of it. `settings` are those of the configuration that was kept, "-" where
    none was; `kept` has the lowest and the highest of each figure of its seeds, NaN where none was.
    """
    kept_rows = rows[rows["kept"].astype(bool)]
    settings = "-"
    if len(kept_rows):  # all are seeds of one configuration
        items = kept_rows["settings"].iloc[0].items()
        settings = ", ".join(f"{name} {value}" for name, value in items)
    accuracies = rows["acc"]
    figures = ("acc", "validation_acc", "best_epoch")
    return {
        "configurations": rows["configuration"].nunique(),
        "seeds": len(rows),
        # Lowest, median and highest.
        "over_all": (accuracies.min(), accuracies.median(), accuracies.max()),
        "settings": settings,
        "kept": {name: _ends(kept_rows[name]) for name in figures},
    }


def _ends(values: "pd.Series[float]") -> tuple[float, float]:
    """Return the lowest and the highest value, NaN without any."""
    numbers = pd.to_numeric(values).astype(float)
    return float(numbers.min()), float(numbers.max())


def benchmark_page(
    *,
    benchmark: Row,
    scores: pd.DataFrame,
    seed_scores: pd.DataFrame,
    curves: Mapping[str, pd.DataFrame] | None = None,
    number: int = 1,
    served: bool = False,
) -> str:
    """Render a benchmark as one HTML file without requests.

    It is the `number`-th of its data set in the store. `curves` maps a predictor to rows `bin_low,
    bin_high, mean_probability, share_risen, n`. A page `served` by the dashboard links back, and
    loads the script instead of containing it.
    """
    protocols = {}
    for name in PROTOCOL_WORDS:
        rows = [row for row in score_rows(scores) if row["protocol"] == name]
        if rows:
            protocols[name] = rows
    forests = {name: forest(rows, PROTOCOL_WORDS[name]) for name, rows in protocols.items()}
    # A bin without a mean or a share has no point.
    known_curves = {
        name: curve.dropna(subset=["mean_probability", "share_risen"])
        for name, curve in (curves or {}).items()
    }
    _fewest_seeds, most_seeds = _ends(scores["seeds"])
    return _template().render(
        served=served,
        benchmark=benchmark,
        verdict=verdict(benchmark, scores),
        on_reading=on_reading(benchmark, number),
        protocols=protocols,
        forests=forests,
        strips=strips(seed_scores),
        seeds_chart=seeds_chart(seed_scores) if len(seed_scores) else None,
        curves=calibration(known_curves),
        seeds=most_seeds,
        config=json.dumps(benchmark["config"], indent=2, ensure_ascii=False, default=str),
    )


@cache
def _template() -> jinja2.Template:
    templates = environment(sample, on_data, survivorship)
    templates.globals.update(
        words=PROTOCOL_WORDS,
        labels=LABELS,
        rules=NAIVE_RULES,
        model=MODEL,
        live=True,
        script=script,
    )
    return templates.get_template("benchmark.html")
