"""The page of two models side by side: how they were made, and how they did on common
stock-days.
"""

import json
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db.connection.frames import head
from db.rows import markets, predictions, runs
from dtml.errors import UsageError
from dtml.evaluation.bootstrap import Statistic, difference
from dtml.evaluation.metrics import accuracy, mcc, measured
from dtml.pages.charts import Chart, probability_axis
from dtml.pages.figures import figure, records
from flows.dashboard.market import STOCKS, NotThereError

RUNS = 500  # in the list to choose from
DAYS = 365  # calendar days, the last ones in common, that are compared
RESAMPLES = 2000
COUNTED = ("rises", "false_rises", "false_falls", "falls")
STATISTICS: Mapping[str, Statistic] = {"acc": accuracy, "mcc": mcc}
MADE = ("kind", "model", "train_first", "train_last", "seeds", "slope", "intercept", "code_version")
RECEIPT = (*MADE, "data_watermark", "checkpoint_hash", "created_at")


def compare_page(
    conn: Connection, market: str | None, a: str | None, b: str | None
) -> dict[str, Any]:
    """Return a list of a market's runs to choose from, and what two of them
    have in common and what not.
    """
    one, two = (None if name is None else run_of(conn, name) for name in (a, None if b == a else b))
    if one is not None and two is not None and one["market"] != two["market"]:
        raise UsageError(
            f"{a} is a run of {one['market']} and {b} of {two['market']}: compare runs of "
            "one market"
        )
    chosen = market or next((run["market"] for run in (one, two) if run is not None), None)
    stored = markets.all_markets(conn)
    if chosen is not None and chosen not in stored:
        raise NotThereError(f"no market {chosen!r} in the store")
    listed = [] if chosen is None else records(head(conn, runs.models(chosen), RUNS))
    common = {"market": chosen, "markets": stored, "runs": listed, "a": one, "b": two}
    common |= {"losses": losses_chart([run for run in (one, two) if run is not None])}
    common |= {"made": [] if one is None or two is not None else records(settings(one, one))}
    if one is None or two is None:
        return common | {"pair": None}
    spans = [runs.predicted_span(conn, run["run_id"]) for run in (one, two)]
    pair = {"settings": records(settings(one, two)), "spans": spans}
    shared = shared_span(conn, one["run_id"], two["run_id"])
    if shared is None:
        return common | {"pair": pair | {"shared": None}}
    directions = last_directions(conn, one["run_id"], two["run_id"], shared)
    scored = scores(days(conn, one["run_id"], two["run_id"], shared))
    axis = probability_axis(directions[["a_probability", "b_probability"]].to_numpy().ravel())
    pair |= {"shared": shared, "scores": scored, "directions": records(directions), "axis": axis}
    return common | {"pair": pair | {"days": DAYS}}


def run_of(conn: Connection, run_id: str) -> dict[str, Any]:
    """Return a trained model; raise NotThereError for a name that is not stored."""
    found = runs.model(conn, run_id)
    if found is None:
        raise NotThereError(f"no run {run_id!r} in the store: `dtml runs` lists them")
    return found


def losses_chart(shown: list[dict[str, Any]]) -> Chart | None:
    """Return the mean loss over the seeds by epoch, in training and in
    validation; None where none was kept.
    """
    rows = [
        {"run": run["run_id"], "loss": which, "epoch": epoch["number"], "value": epoch[name]}
        for run in shown
        for seed in run["losses"] or ()
        for epoch in seed.get("epochs", ())
        for which, name in (("training", "loss"), ("validation", "validation_loss"))
    ]
    if not rows:
        return None
    mean = (
        pd.DataFrame(rows)
        .groupby(["run", "loss", "epoch"], sort=False)["value"]
        .mean()
        .reset_index()
    )
    last = mean.drop_duplicates(["run", "loss"], keep="last").to_dict("records")
    words = "; ".join(
        f"{each['run']}, {each['loss']}: {figure(each['value'])} at the end" for each in last
    )
    names = {"runs": mean["run"].unique().tolist()}
    return Chart("Losses by epoch, mean over the seeds", words, "losses", {"rows": mean}, names)


def settings(one: Mapping[str, Any], two: Mapping[str, Any]) -> pd.DataFrame:
    """Return each fact of two models and each setting of their configs:
    setting, a, b, same; differing ones first.
    """
    facts = [{name: run[name] for name in RECEIPT} | flat(run["config"]) for run in (one, two)]
    both = [name for name in facts[0] if name in facts[1]]
    rows = [
        (name, *(said(fact.get(name)) for fact in facts))
        for name in dict.fromkeys([*both, *facts[0], *facts[1]])
    ]
    table = pd.DataFrame(rows, columns=["setting", "a", "b"])
    table["same"] = table["a"] == table["b"]
    return table.sort_values("same", kind="stable", ignore_index=True)


def flat(config: object, under: str = "config") -> dict[str, Any]:
    """Return the leaves of a nested config by their dotted names; lists stay whole."""
    if not isinstance(config, Mapping):
        return {under: config}
    return {
        name: leaf
        for key, value in config.items()
        for name, leaf in flat(value, f"{under}.{key}").items()
    }


def said(value: Any) -> str:
    """Return a value of a config in words; "-" for what is missing."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, default=str).strip('"')
    )


def shared_span(conn: Connection, a: str, b: str) -> tuple[date, date] | None:
    """Return the sessions that may hold common predictions, the last `DAYS` of
    the calendar; None without any.
    """
    spans = [runs.predicted_span(conn, run_id) for run_id in (a, b)]
    if spans[0] is None or spans[1] is None:
        return None
    first, last = max(spans[0][0], spans[1][0]), min(spans[0][1], spans[1][1])
    return None if first > last else (max(first, last - timedelta(days=DAYS)), last)


def days(conn: Connection, a: str, b: str, shared: tuple[date, date]) -> pd.DataFrame:
    """Count common stock-days by session: the columns of `db.rows.predictions.common_days`."""
    return head(conn, predictions.common_days(a, b, *shared), DAYS + 1)


def last_directions(conn: Connection, a: str, b: str, shared: tuple[date, date]) -> pd.DataFrame:
    """Return what both said of the last common session, the largest difference
    first; no rows without one.
    """
    newest = head(conn, predictions.common_days(a, b, *shared), 1)
    target = shared[1] if newest.empty else newest["target"].iloc[0].date()
    directions = head(conn, predictions.common_directions(a, b, target), STOCKS)
    apart = (directions["a_probability"] - directions["b_probability"]).abs()
    return directions.assign(apart=apart).sort_values(["apart", "symbol"], ascending=[False, True])


def scores(counts: pd.DataFrame) -> dict[str, Any]:
    """Score both on common stock-days, from counts of days: n, scored, days, same (share of equal
    directions), rows.

    `rows` has one for a, one for b and one for a less b: acc, mcc with their day-resampled 95 %
    intervals, which are missing (NaN) with too few days; there are no rows without an outcome.
    """
    n, settled = int(counts["n"].sum()), counts[counts["scored"] > 0]
    found: dict[str, Any] = {"n": n, "scored": int(settled["scored"].sum()), "days": len(settled)}
    found |= {"same": counts["same"].sum() / n if n else np.nan, "rows": []}
    if settled.empty:
        return found
    sums = np.stack(
        [settled[[f"{run}_{kind}" for kind in COUNTED]].to_numpy(dtype=float) for run in "ab"],
        axis=1,
    )
    both = sums.reshape(len(sums), 1, -1)
    rows = [_row(name, sums[:, [place]], STATISTICS) for place, name in enumerate("ab")]
    rows.append(
        _row("a less b", both, {name: difference(each) for name, each in STATISTICS.items()})
    )
    return found | {"rows": rows}


def _row(name: str, sums: np.ndarray, statistics: Mapping[str, Statistic]) -> dict[str, Any]:
    found = [
        measured(measure, sums, statistic, RESAMPLES) for measure, statistic in statistics.items()
    ]
    return {"run": name} | {
        figure: float(value[0]) for each in found for figure, value in each.items()
    }
