"""The report of a benchmark: a verdict, a table in Markdown and one self-contained HTML page.

`scores`, `seed_scores` and `benchmark` are rows of `benchmark_score`, `benchmark_seed` and
`benchmark`, whose config may hold words on the `data`.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dtml.baselines.naive_rules import MODEL, best_at
from dtml.evaluation.family import compared
from dtml.pages.charts import Chart, calibration, colour
from dtml.pages.figures import MARKS, PROTOCOL_WORDS, Row, Table, ci, fmt, named, records
from dtml.pages.rendering import apart, markdown, page, said
from dtml.pages.survivorship import of_study

SEEDS = "{0}_mean±{0}_sd"
PUBLISHED = "published_{0}±published_{0}_sd"
BRIEF_RESULTS = {  # in Markdown and on the console
    "model": "name:text",
    "ACC, mean ± sd (published)": "acc_seeds:text",
    "ACC ensemble [95 %]": "acc",
    "gain over rule [95 %]": "gain:text",
    "MCC, mean ± sd (published)": "mcc_seeds:text",
    "MCC ensemble [95 %]": "mcc",
    "within-day AUC [95 %]": "auc",
    "same direction": "same_direction",
}


def score_rows(scores: pd.DataFrame) -> dict[str, list[Row]]:
    """Return the rows of `scores` by protocol, models before naive rules.

    `acc_rule` and `mcc_rule` are the rules with the highest ACC and MCC, or None. `verb` compares a
    predictor with `acc_rule`, by the adjusted p-value of the gain in ACC, else by its interval.
    """
    rows: dict[str, list[Row]] = {}
    for protocol in PROTOCOL_WORDS:
        of_protocol = scores[scores["protocol"] == protocol].sort_values("is_rule", kind="stable")
        rules = of_protocol[of_protocol["is_rule"].astype(bool)]
        strongest = {f"{of}_rule": best_at(rules, of) for of in ("acc", "mcc")}
        best = {of: None if rule is None else rule["predictor"] for of, rule in strongest.items()}
        for row in records(of_protocol):
            significant = compared(row["acc_gain"], row.get("acc_gain_p"))
            name = named(row["predictor"])
            is_strongest = row["predictor"] == best["acc_rule"]
            rows.setdefault(protocol, []).append(
                row
                | best
                | {
                    "verb": significant or apart(row, "acc_gain"),
                    "mark": MARKS.get(significant or "", ""),
                    "name": f"{name} (strongest rule)" if is_strongest else name,
                }
            )
    return rows


def verdict(benchmark: Row, scores: pd.DataFrame) -> str:
    """Say whether DTML's ensemble beats the strongest naive rule in each protocol."""
    rows = [row for rows in score_rows(scores).values() for row in rows]
    return said("benchmark_verdict", benchmark, [r for r in rows if r["predictor"] == MODEL])


def on_data(benchmark: Row) -> str:
    """Say how the data compare with the paper's; empty where nothing is known."""
    return "; ".join(benchmark["config"].get("data", ()))


def brief_results(rows: list[Row], *, is_for_print: bool = True) -> Table:
    """Return the table of a protocol's results, the published figures beside ours.

    Printed, with papers' digits and the names of the store.
    """
    kind = ":print" if is_for_print else ""
    written = []
    for row in rows:
        gain, bracket, ends = ci(row, f"acc_gain{kind and ':print_gain'}").partition(" [")
        cells = {"gain": f"{gain}{row['mark']}{bracket}{ends}"}
        for measure in ("acc", "mcc"):
            own = ci(row, f"{SEEDS.format(measure)}{kind}")
            published = ci(row, f"{PUBLISHED.format(measure)}{kind}")
            both = f"{own} ({published})"
            cells[f"{measure}_seeds"] = own if own == published == "-" else both
        if is_for_print:
            cells["name"] = row["name"].replace(named(row["predictor"]), row["predictor"], 1)
        written.append(row | cells)
    figures = dict.fromkeys(("acc", "mcc", "auc"), kind)
    return Table(
        written, {head: name + figures.get(name, "") for head, name in BRIEF_RESULTS.items()}
    )


def readme_table(benchmark: Row, scores: pd.DataFrame) -> str:
    """Return the results in Markdown: a titled table for each protocol, then words on the data."""
    results = {protocol: brief_results(rows) for protocol, rows in score_rows(scores).items()}
    return markdown("benchmark", benchmark, results, on_data(benchmark))


def forest(rows: list[Row], words: str) -> Chart:
    """Return the chart of one protocol's ensemble ACC, with intervals and published figures."""
    frame = pd.DataFrame(rows)
    frame["colour"] = frame["predictor"].map(colour)
    frame["predictor"] = frame["predictor"].map(named)
    frame["said"] = [ci(row, "acc") for row in rows]
    columns = ["predictor", "acc", "acc_low", "acc_high", "published_acc", "colour", "said"]
    return Chart(
        title=f"Ensemble ACC with 95 % intervals, {words}",
        words="; ".join(frame["predictor"] + " " + frame["said"]),
        file="forest",
        data={"rows": frame[columns]},
        values={
            "order": frame["predictor"].to_list(),
            "strongest_rule": named(rows[0]["acc_rule"]),
        },
    )


def seeds_chart(seed_scores: pd.DataFrame) -> Chart:
    """Return the test ACC of every seed as dots, those kept on validation filled."""
    rows = seed_scores[["predictor", "acc", "configuration", "seed", "kept"]].astype(
        {"kept": bool, "acc": float}
    )
    rows["predictor"] = rows["predictor"].map(named)
    order = {"order": list(rows["predictor"].unique())}
    words = "A dot is one configuration and seed; the table has the range."
    return Chart("Test ACC of every seed", words, "seeds", {"rows": rows}, order)


def seed_ranges(seed_scores: pd.DataFrame) -> list[Row]:
    """Return each predictor's test ACC over all seeds, and from lowest to highest of those kept."""
    ranges = []
    for name, rows in seed_scores.groupby("predictor", sort=False):
        kept = rows[rows["kept"].astype(bool)]  # all are seeds of one configuration
        settings = kept["settings"].iloc[0].items() if len(kept) else ()
        ranges.append(
            {
                "predictor": name,
                "configurations": rows["configuration"].nunique(),
                "seeds": len(rows),
                "lowest": rows["acc"].min(),
                "median": rows["acc"].median(),
                "highest": rows["acc"].max(),
                "settings": ", ".join(f"{key} {value}" for key, value in settings) or "-",
                "kept_validation_acc": _range(kept["validation_acc"], "percent"),
                "kept_acc": _range(kept["acc"], "percent"),
                "kept_best_epoch": _range(kept["best_epoch"], "count"),
            }
        )
    return ranges


def _range(values: "pd.Series[Any]", kind: str) -> str:
    numbers = values.astype(float)
    return " to ".join(dict.fromkeys(fmt(end, kind) for end in (numbers.min(), numbers.max())))


def benchmark_page(
    *,
    benchmark: Row,
    scores: pd.DataFrame,
    seed_scores: pd.DataFrame,
    curves: Mapping[str, pd.DataFrame] | None = None,
    number: int = 1,
    served: bool = False,
) -> str:
    """Render a benchmark, the `number`-th of its data set, as one HTML file without requests.

    `curves` by predictor: `bin_low, bin_high, mean_probability, share_risen, n`. A page `served` by
    the dashboard links back and loads its script.
    """
    # A bin without a mean or a share has no point.
    points = {
        name: curve.dropna(subset=["mean_probability", "share_risen"])
        for name, curve in (curves or {}).items()
    }
    return page(
        "benchmark.html",
        *(forest, seeds_chart, seed_ranges, on_data, of_study),
        served=served,
        live=True,
        benchmark=benchmark,
        scores=scores,
        seed_scores=seed_scores,
        number=number,
        by_protocol=score_rows(scores),
        curves=calibration(points),
    )
