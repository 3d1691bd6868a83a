"""The page of two models side by side.

It shows how they were made, and how they did on common stock-days.
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
from flows.dashboard.markets import STOCKS, NotThereError

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
    """Return a list of a market's runs to choose from, and what two of them have in common and what
    not.

    Raises NotThereError for a run or a market that is not stored, UsageError for runs of two
    markets.
    """
    if b == a:
        b = None
    one = None if a is None else run_of(conn, a)
    two = None if b is None else run_of(conn, b)
    if one is not None and two is not None and one["market"] != two["market"]:
        raise UsageError(
            f"{a} is a run of {one['market']} and {b} of {two['market']}: compare runs of "
            "one market"
        )
    chosen_runs = [run for run in (one, two) if run is not None]
    if not market:
        market = chosen_runs[0]["market"] if chosen_runs else None
    stored_markets = markets.all_markets(conn)
    if market is not None and market not in stored_markets:
        raise NotThereError(f"no market {market!r} in the store")

    return {
        "market": market,
        "markets": stored_markets,
        "runs": [] if market is None else records(head(conn, runs.models(market), RUNS)),
        "a": one,
        "b": two,
        "losses": losses_chart(chosen_runs),
        "made": [] if one is None or two is not None else records(settings(one, one)),
        "pair": None if one is None or two is None else _pair(conn, one, two),
    }


def _pair(conn: Connection, one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Return how two runs differ in their settings and on common stock-days."""
    a = one["run_id"]
    b = two["run_id"]
    shared = shared_span(conn, a, b)
    pair: dict[str, Any] = {
        "settings": records(settings(one, two)),
        "spans": [runs.predicted_span(conn, a), runs.predicted_span(conn, b)],
        "shared": shared,
    }
    if shared is None:
        return pair
    directions = last_directions(conn, a, b, shared)
    probabilities = directions[["a_probability", "b_probability"]].to_numpy().ravel()
    pair["scores"] = scores(days(conn, a, b, shared))
    pair["directions"] = records(directions)
    pair["axis"] = probability_axis(probabilities)
    pair["days"] = DAYS
    return pair


def run_of(conn: Connection, run_id: str) -> dict[str, Any]:
    """Return a trained model; raise NotThereError for a name that is not stored."""
    run = runs.model(conn, run_id)
    if run is None:
        raise NotThereError(f"no run {run_id!r} in the store: `dtml runs` lists them")
    return run


def losses_chart(shown: list[dict[str, Any]]) -> Chart | None:
    """Return the mean loss over the seeds by epoch, in training and in validation.

    None where none was kept.
    """
    rows = [row for run in shown for row in _loss_rows(run)]
    if not rows:
        return None
    by_epoch = pd.DataFrame(rows).groupby(["run", "loss", "epoch"], sort=False)
    mean = by_epoch["value"].mean().reset_index()
    last = mean.drop_duplicates(["run", "loss"], keep="last").to_dict("records")
    words = "; ".join(
        f"{row['run']}, {row['loss']}: {figure(row['value'])} at the end" for row in last
    )
    names = {"runs": mean["run"].unique().tolist()}
    return Chart("Losses by epoch, mean over the seeds", words, "losses", {"rows": mean}, names)


def _loss_rows(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the losses of each seed and epoch of a run: run, loss, epoch, value."""
    rows = []
    for seed in run["losses"] or ():
        for epoch in seed.get("epochs", ()):
            common = {"run": run["run_id"], "epoch": epoch["number"]}
            rows.append({**common, "loss": "training", "value": epoch["loss"]})
            rows.append({**common, "loss": "validation", "value": epoch["validation_loss"]})
    return rows


def settings(one: Mapping[str, Any], two: Mapping[str, Any]) -> pd.DataFrame:
    """Return each fact of two models and each setting of their configs: setting, a, b, same.

    Differing ones come first.
    """
    a = {name: one[name] for name in RECEIPT} | flat(one["config"])
    b = {name: two[name] for name in RECEIPT} | flat(two["config"])
    shared = [name for name in a if name in b]
    names = dict.fromkeys([*shared, *a, *b])
    rows = [(name, said(a.get(name)), said(b.get(name))) for name in names]
    table = pd.DataFrame(rows, columns=["setting", "a", "b"])
    table["same"] = table["a"] == table["b"]
    return table.sort_values("same", kind="stable", ignore_index=True)


def flat(config: object, under: str = "config") -> dict[str, Any]:
    """Return the leaves of a nested config by their dotted names; lists stay whole."""
    if not isinstance(config, Mapping):
        return {under: config}
    leaves = {}
    for key, value in config.items():
        leaves.update(flat(value, f"{under}.{key}"))
    return leaves


def said(value: Any) -> str:
    """Return a value of a config in words; "-" for what is missing."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str).strip('"')


def shared_span(conn: Connection, a: str, b: str) -> tuple[date, date] | None:
    """Return the sessions that may hold common predictions, the last `DAYS` of the calendar.

    None without any.
    """
    a_span = runs.predicted_span(conn, a)
    b_span = runs.predicted_span(conn, b)
    if a_span is None or b_span is None:
        return None
    first = max(a_span[0], b_span[0])
    last = min(a_span[1], b_span[1])
    if first > last:
        return None
    return max(first, last - timedelta(days=DAYS)), last


def days(conn: Connection, a: str, b: str, shared: tuple[date, date]) -> pd.DataFrame:
    """Count common stock-days by session: the columns of `db.rows.predictions.common_days`."""
    return head(conn, predictions.common_days(a, b, *shared), DAYS + 1)


def last_directions(conn: Connection, a: str, b: str, shared: tuple[date, date]) -> pd.DataFrame:
    """Return what both said of the last common session, the largest difference first.

    There are no rows without a common session.
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
    n = int(counts["n"].sum())
    settled = counts[counts["scored"] > 0]
    return {
        "n": n,
        "scored": int(settled["scored"].sum()),
        "days": len(settled),
        "same": counts["same"].sum() / n if n else np.nan,
        "rows": [] if settled.empty else _score_rows(settled),
    }


def _score_rows(settled: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the scores of a, of b and of a less b, from counts of days with an outcome."""
    counts_of_a = settled[[f"a_{kind}" for kind in COUNTED]].to_numpy(dtype=float)
    counts_of_b = settled[[f"b_{kind}" for kind in COUNTED]].to_numpy(dtype=float)
    counts = np.stack([counts_of_a, counts_of_b], axis=1)  # (days, models, 4)
    pairs = counts.reshape(len(counts), 1, -1)
    differences = {name: difference(statistic) for name, statistic in STATISTICS.items()}
    return [
        _score_row("a", counts[:, [0]], STATISTICS),
        _score_row("b", counts[:, [1]], STATISTICS),
        _score_row("a less b", pairs, differences),
    ]


def _score_row(name: str, sums: np.ndarray, statistics: Mapping[str, Statistic]) -> dict[str, Any]:
    """Return each statistic of one model, or of the pair, with the ends of its interval."""
    row: dict[str, Any] = {"run": name}
    for measure, statistic in statistics.items():
        for column, values in measured(measure, sums, statistic, RESAMPLES).items():
            row[column] = float(values[0])
    return row
