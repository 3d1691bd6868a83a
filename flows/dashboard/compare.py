"""The page of two models side by side: their settings, and their scores on common stock-days."""

import json
from collections.abc import Mapping
from datetime import date, timedelta
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db.connection.frames import frame
from db.read import read, read_row
from db.rows import markets, predictions, runs
from dtml.errors import UsageError
from dtml.evaluation.bootstrap import Statistic, difference
from dtml.evaluation.metrics import RESAMPLES, accuracy, mcc, measured, told_apart
from dtml.pages.charts import Chart, probability_axis
from dtml.pages.figures import counted, figure, percent, records, with_interval
from flows.dashboard.markets import STOCKS, NotThereError

RUNS = 500  # in the list to choose from
PAIRED = 8  # newest runs among which two are chosen
DAYS = 365  # calendar days, the last ones in common, that are compared
# The four counts of a day's directions, in the order that `accuracy` and `mcc` take them.
COUNTED = ("rises", "false_rises", "false_falls", "falls")
STATISTICS: Mapping[str, Statistic] = {"acc": accuracy, "mcc": mcc}
RECEIPT = (  # the columns of a run that say how it was trained
    "kind",
    "model",
    "train_first",
    "train_last",
    "seeds",
    "slope",
    "intercept",
    "code_version",
    "data_watermark",
    "checkpoint_hash",
    "created_at",
)


def compare_page(
    conn: Connection, market: str | None, a: str | None, b: str | None
) -> dict[str, Any]:
    """Return a market's runs to choose from, and how two of them, `a` and `b`, agree and differ.

    `pair` is their comparison (see `_pair`), None without both, and `answer` says which is better.
    With `a` alone, `made` has its settings, `answer` compares it with the rule that every stock
    rises, and `kept` says which weights it kept. `losses` is a chart of the losses of the runs
    shown. Without `market`, the market of the first run given is taken, else the only one of the
    store, if it has only one. Where no run is given, two of the market's newest runs are compared.
    Raises NotThereError for a run or a market that is not stored, UsageError for runs of two
    markets.
    """
    stored_markets = markets.all_markets(conn)
    if a is None and b is None:
        if not market and len(stored_markets) == 1:
            market = stored_markets[0]
        if market in stored_markets:
            a, b = _newest_pair(conn, market)
    first, second = _runs_of(conn, a, b)
    chosen_runs = [run for run in (first, second) if run is not None]
    if not market:
        market = None
        if chosen_runs:
            market = chosen_runs[0]["market"]
    if market is not None and market not in stored_markets:
        raise NotThereError(f"no market {market!r} in the store: /compare lists the stored ones")

    listed_runs = [] if market is None else records(_newest_runs(conn, market, RUNS))
    settings_of_first: list[dict[str, Any]] = []
    if first is not None and second is None:
        # `settings` takes two runs: given one twice, it has the same values in both columns, of
        # which the page shows one.
        settings_of_first = records(settings(first, first))
    pair = None
    answer = ""
    kept = ""
    if first is not None and second is not None:
        pair = _pair(conn, first, second)
        answer = better_run(pair)
    elif first is not None:
        answer = beside_always_up(conn, first["run_id"])
        kept = kept_weights(first)

    return {
        "market": market,
        "markets": stored_markets,
        "runs": listed_runs,
        "a": first,
        "b": second,
        "losses": losses_chart(chosen_runs),
        "made": settings_of_first,
        "answer": answer,
        "kept": kept,
        "pair": pair,
    }


def _newest_runs(conn: Connection, market: str, limit: int) -> pd.DataFrame:
    return read(
        conn,
        "run_log",
        columns="run_id, kind, train_last",
        market=market,
        order="-created_at, run_id",
        limit=limit,
    )


def _newest_pair(conn: Connection, market: str) -> tuple[str, str] | tuple[None, None]:
    """Return the two newest runs of a market whose spans of predicted days overlap.

    Only the newest `PAIRED` runs are searched. If no two of these overlap, the two newest are
    returned; without two runs, None and None.
    """
    newest = _newest_runs(conn, market, PAIRED)["run_id"].tolist()
    if len(newest) < 2:
        return None, None
    for first, second in combinations(newest, 2):
        if shared_span(conn, first, second) is not None:
            return first, second
    return newest[0], newest[1]


def _runs_of(
    conn: Connection, a: str | None, b: str | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    first = None
    second = None
    if a is not None:
        first = run_of(conn, a)
    if b is not None and b != a:
        second = run_of(conn, b)
    if first is not None and second is not None and first["market"] != second["market"]:
        raise UsageError(
            f"{a} is a run of {first['market']} and {b} of {second['market']}: "
            "compare runs of one market"
        )
    return first, second


def _pair(conn: Connection, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return how two runs differ in their settings and on the stock-days that both predicted.

    `spans` are the first and the last session that each predicted. `shared` is the time in common,
    cut to its last `days` calendar days: over it `scores` compares them, and `directions` has both
    predictions of its last session, on the scale `axis`. Where there is none, `shared` is None, and
    nothing is compared but the settings.
    """
    a = first["run_id"]
    b = second["run_id"]
    shared = shared_span(conn, a, b)
    facts: dict[str, Any] = {
        "settings": records(settings(first, second)),
        "spans": [runs.predicted_span(conn, a), runs.predicted_span(conn, b)],
        "shared": shared,
    }
    if shared is None:
        return facts

    directions = last_directions(conn, a, b, shared)
    # All probabilities of the chart, from which the ends of its axis follow.
    probabilities = directions[["a_probability", "b_probability"]].to_numpy().ravel()
    return {
        **facts,
        "scores": scores(counts_by_day(conn, a, b, shared)),
        "directions": records(directions),
        "axis": probability_axis(probabilities),
        "days": DAYS,  # the limit of `shared`, which the page states
    }


def better_run(pair: Mapping[str, Any]) -> str:
    """Say in one sentence which of two runs is better, from their comparison (see `_pair`).

    The interval of the difference of their MCCs decides.
    """
    if pair["shared"] is None or not pair["scores"]["n"]:
        return "Which run is better is not known: the two predicted no session in common."
    if not pair["scores"]["rows"]:
        return "Which run is better is not known yet: no session in common has an outcome."
    gain = pair["scores"]["rows"][-1]  # the difference comes after the two runs
    verdict = {
        "beats": "Run a is better than run b",
        "is beaten by": "Run b is better than run a",
    }.get(told_apart(gain["mcc_low"], gain["mcc_high"]) or "", "Neither run is shown to be better")
    return (
        f"{verdict}: the MCC of a minus that of b is {with_interval(gain, 'mcc', signed=True)}, "
        f"over {counted(pair['scores']['days'], 'day')} in common."
    )


def beside_always_up(conn: Connection, run_id: str) -> str:
    """Say whether a run is better than the rule that every stock rises, on what it predicted.

    The last DAYS calendar days that it predicted count. The rule's MCC is 0, so the interval of the
    run's MCC decides.
    """
    span = shared_span(conn, run_id, run_id)
    if span is None:
        return "Its quality is not known: it has predicted no session yet."
    counts = counts_by_day(conn, run_id, run_id, span)
    settled = counts[counts["scored"] > 0]
    if settled.empty:
        return "Its quality is not known yet: no session that it predicted has an outcome."
    # The rule calls every riser a riser, and every faller a riser.
    of_rule = settled.assign(
        b_rises=settled["a_rises"] + settled["a_false_falls"],
        b_false_rises=settled["a_false_rises"] + settled["a_falls"],
        b_false_falls=0,
        b_falls=0,
    )
    own, rule, _ = _score_rows(of_rule)
    comparison = told_apart(own["mcc_low"], own["mcc_high"])
    verdict = "Too early to compare with"
    if comparison is not None:
        verdict = {"beats": "Better than", "is beaten by": "Worse than"}.get(
            comparison, "Not shown to be better than"
        )
    return (
        f'{verdict} the rule "every stock rises": MCC {with_interval(own, "mcc")} against '
        f"{figure(rule['mcc'])}, ACC {percent(own['acc'])} against {percent(rule['acc'])}, over "
        f"{counted(len(settled), 'day')} after its training."
    )


def run_of(conn: Connection, run_id: str) -> dict[str, Any]:
    """Return a trained model; raise NotThereError for a name that is not stored."""
    run = read_row(conn, "run_log", run_id=run_id)
    if run is None:
        raise NotThereError(f"no run {run_id!r} in the store: /table/run_log lists all runs")
    return run


def losses_chart(chosen_runs: list[dict[str, Any]]) -> Chart | None:
    """Return a chart of each run's mean loss over its seeds by epoch, in training and validation.

    Seeds may end after different numbers of epochs: an epoch's mean is over the seeds that reached
    it. None if the runs have no stored losses.
    """
    names = [run["run_id"] for run in chosen_runs]
    if len(names) == 2:
        names = [f"a: {names[0]}", f"b: {names[1]}"]
    rows: list[dict[str, Any]] = []
    for name, run in zip(names, chosen_runs, strict=True):
        rows.extend(_loss_rows(name, run))
    if not rows:
        return None

    by_epoch = pd.DataFrame(rows).groupby(["run", "loss", "epoch"], sort=False)
    mean_losses = by_epoch["value"].mean().reset_index()
    # Groups keep the order of first appearance, and each seed begins at its first epoch: the last
    # group of a run and kind of loss is that of the last epoch that any seed reached.
    last_losses = mean_losses.drop_duplicates(["run", "loss"], keep="last")
    endings: list[str] = []
    for row in last_losses.to_dict("records"):
        last_loss = figure(row["value"])
        endings.append(f"{row['run']}, {row['loss']}: {last_loss} at the end")
    run_ids = mean_losses["run"].unique().tolist()
    return Chart(
        title="Losses by epoch, mean over the seeds",
        words="; ".join(endings),
        file="losses",
        data={"rows": mean_losses},
        values={"runs": run_ids},
    )


def kept_weights(run: Mapping[str, Any]) -> str:
    """Say in one sentence from which epochs a run kept its weights, and how good these were.

    Empty for a run without stored losses, or whose seeds kept no epoch.
    """
    seeds = [seed for seed in run["losses"] or () if seed.get("best_epoch")]
    if not seeds:
        return ""
    last = max(seed["epochs"][-1]["number"] for seed in seeds)
    first_kept = min(seed["best_epoch"] for seed in seeds)
    last_kept = max(seed["best_epoch"] for seed in seeds)
    epochs = f"epoch {last_kept}"
    if first_kept != last_kept:
        epochs = f"epochs {first_kept} to {last_kept}"
    kept = []
    for seed in seeds:
        kept += [epoch for epoch in seed["epochs"] if epoch["number"] == seed["best_epoch"]]
    loss = np.mean([epoch["validation_loss"] for epoch in kept])
    acc = np.mean([epoch["validation_acc"] for epoch in kept])
    return (
        f"Kept: the weights of {epochs} of {last}, with a validation loss of {figure(loss)} "
        f"and an ACC of {percent(acc)} on validation days"
        f"{f', means of {len(seeds)} seeds' if len(seeds) > 1 else ''}."
    )


def _loss_rows(name: str, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for seed in run["losses"] or ():
        for epoch in seed.get("epochs", ()):
            values = {"training": epoch["loss"], "validation": epoch["validation_loss"]}
            for loss, value in values.items():
                rows.append(
                    {
                        "run": name,
                        "epoch": epoch["number"],
                        "loss": loss,
                        "value": value,
                    }
                )
    return rows


def settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table of each fact and setting of two models: setting, a, b, same.

    `a` and `b` are values as text, "-" for a setting that a model lacks; `same` says whether they
    are equal. Rows that differ come first.
    """
    a = _facts_and_config(first)
    b = _facts_and_config(second)
    shared_names = [name for name in a if name in b]
    names = dict.fromkeys([*shared_names, *a, *b])  # each name once, in this order
    rows: list[dict[str, str]] = []
    for name in names:
        a_value = in_words(a.get(name))
        b_value = in_words(b.get(name))
        rows.append({"setting": name, "a": a_value, "b": b_value})
    table = pd.DataFrame(rows, columns=["setting", "a", "b"])
    table["same"] = table["a"] == table["b"]
    return table.sort_values("same", kind="stable", ignore_index=True)  # False comes before True


def _facts_and_config(run: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: run[name] for name in RECEIPT}
    return {**facts, **flat(run["config"])}


def flat(config: object, under: str = "config") -> dict[str, Any]:
    """Return the leaves of a nested config by their dotted names; lists stay whole."""
    if not isinstance(config, Mapping):
        return {under: config}
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves.update(flat(value, f"{under}.{key}"))
    return leaves


def in_words(value: Any) -> str:
    """Return a value of a config as text; "-" for a missing one."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    # JSON has no dates: they become texts in quotes, which are not shown.
    return json.dumps(value, ensure_ascii=False, default=str).strip('"')


def shared_span(conn: Connection, a: str, b: str) -> tuple[date, date] | None:
    """Return the first and the last day of the time for which two runs both have predictions.

    It is cut to its last DAYS calendar days. None if their spans do not overlap, or if one of the
    runs has predicted nothing.
    """
    a_span = runs.predicted_span(conn, a)
    b_span = runs.predicted_span(conn, b)
    if a_span is None or b_span is None:
        return None
    a_first, a_last = a_span
    b_first, b_last = b_span
    first = max(a_first, b_first)
    last = min(a_last, b_last)
    if first > last:
        return None
    first_compared = max(first, last - timedelta(days=DAYS))
    return first_compared, last


def counts_by_day(conn: Connection, a: str, b: str, shared: tuple[date, date]) -> pd.DataFrame:
    """Count common stock-days by session: the columns of `db.rows.predictions.common_days`.

    The oldest session comes first, as where nights are scored: intervals that resample the days
    are then the same.
    """
    # A span with both ends has one session more than days between them, at most.
    newest_first = frame(conn, predictions.common_days(a, b, *shared).limit(DAYS + 1))
    return newest_first.iloc[::-1].reset_index(drop=True)


def last_directions(conn: Connection, a: str, b: str, shared: tuple[date, date]) -> pd.DataFrame:
    """Return the predictions of both for the last common session, the largest difference first.

    There are no rows without a common session.
    """
    newest_day = frame(conn, predictions.common_days(a, b, *shared).limit(1))
    target = shared[1]  # without a common session, no row is of this day either
    if not newest_day.empty:
        target = newest_day["target"].iloc[0].date()
    directions = frame(conn, predictions.common_directions(a, b, target).limit(STOCKS))
    differences = directions["a_probability"] - directions["b_probability"]
    with_difference = directions.assign(apart=differences.abs())
    return with_difference.sort_values(["apart", "symbol"], ascending=[False, True])


def scores(counts: pd.DataFrame) -> dict[str, Any]:
    """Score both models on common stock-days, from the result of `counts_by_day`.

    Returns `n` (common stock-days), `scored` (those with an outcome), `days` (the days with an
    outcome), `same` (the share of stock-days with equal directions; NaN without a stock-day) and
    `rows`. `rows` has the scores of a, those of b, and those of a less those of b: acc and mcc with
    their 95 % intervals by a bootstrap of days, which are NaN with too few days. It is empty
    without an outcome.
    """
    n = int(counts["n"].sum())
    same_share = np.nan
    if n > 0:
        same_share = counts["same"].sum() / n
    settled_days = counts[counts["scored"] > 0]
    rows: list[dict[str, Any]] = []
    if not settled_days.empty:
        rows = _score_rows(settled_days)
    return {
        "n": n,
        "scored": int(settled_days["scored"].sum()),
        "days": len(settled_days),
        "same": same_share,
        "rows": rows,
    }


def _score_rows(settled: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the scores of a, those of b, and their difference, a less b.

    `settled` has the counts of the days with an outcome.
    """
    a_columns = [f"a_{kind}" for kind in COUNTED]
    b_columns = [f"b_{kind}" for kind in COUNTED]
    counts_of_a = settled[a_columns].to_numpy(dtype=float)
    counts_of_b = settled[b_columns].to_numpy(dtype=float)
    counts = np.stack([counts_of_a, counts_of_b], axis=1)  # [days models 4]
    # A difference takes the counts of both models of a day, one after the other: [days 1 8].
    counts_of_pair = counts.reshape(len(counts), 1, -1)
    differences = {name: difference(statistic) for name, statistic in STATISTICS.items()}
    return [
        _score_row("a", counts[:, [0]], STATISTICS),  # [0] keeps the axis of the models
        _score_row("b", counts[:, [1]], STATISTICS),
        _score_row("a less b", counts_of_pair, differences),
    ]


def _score_row(
    name: str, counts: np.ndarray, statistics: Mapping[str, Statistic]
) -> dict[str, Any]:
    """Return each statistic of one model, or of the pair, with the ends of its interval.

    `counts` are [days 1 counts]: those of one model, or of the pair as if it were one.
    """
    row: dict[str, Any] = {"run": name}
    for measure, statistic in statistics.items():
        values_by_column = measured(measure, counts, statistic, RESAMPLES)
        for column, values in values_by_column.items():
            row[column] = float(values[0])  # of the one model
    return row
