"""Show a night in Prefect's pages: its directions, its gaps, its scores beside the naive rules."""

import logging
import math
from datetime import date
from typing import Any

import pandas as pd
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from db.engine import reading
from db.rows import predictions as stored_predictions
from db.rows import scores as stored_scores
from dtml.pages.figures import records, with_interval
from flows.nightly.context import MarketContext
from flows.nightly.night import Night

log = logging.getLogger(__name__)

SHOWN = 12  # of the most, and of the least probable rises


def leave_artifacts(context: MarketContext, night: Night) -> None:
    """Leave three artifacts, with keys like `night-simulated-directions`; a failure is a line in the log, no more."""
    row = night.row
    try:
        with reading(context.engine) as conn:
            made = stored_predictions.predictions(conn, context.name, target=row["target"], run_id=row["run_id"])
            scores = stored_scores.running_scores(conn, context.name, last=row["as_of"])
        about = f"{context.name}, night of {row['as_of']}: {row['target']} predicted"
        gaps = row["gaps"] or [{"symbol": "-", "reason": "every constituent was predicted"}]
        create_table_artifact(directions_table(made), key=_key(context, "directions"), description=about)
        create_table_artifact(gaps, key=_key(context, "gaps"), description=f"{about}; left out")
        create_markdown_artifact(scores_page(about, scores, night), key=_key(context, "scores"), description=about)
    except Exception as error:  # noqa: BLE001 - a page is not worth a night
        log.warning("night of %s of %s: artifacts not left: %s", row["as_of"], context.name, error)


def directions_table(predictions: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the most and the least probable risers, from the most probable on."""
    ordered = predictions.sort_values(["probability", "symbol"], ascending=[False, True])
    shown = ordered if len(ordered) <= 2 * SHOWN else pd.concat([ordered.head(SHOWN), ordered.tail(SHOWN)])
    return [
        {
            "symbol": each["symbol"],
            "probability": round(each["probability"], 4),
            "probability_std": round(each["probability_std"], 4) if math.isfinite(each["probability_std"]) else None,
            "direction": "rise" if each["probability"] > 0.5 else "fall",
        }
        for each in shown.to_dict("records")
    ]


def scores_page(title: str, scores: pd.DataFrame, night: Night) -> str:
    """Return the latest running scores beside the naive rules, and where the report lies, as Markdown."""
    lines = [f"## {title}", ""]
    if scores.empty:
        lines += ["No prediction of this market has an outcome yet."]
    else:
        last: date = scores["target"].iloc[0].date()
        lines += [f"Scores of all nights up to {last}, every stock-day, with 95 % intervals that resample days."]
        lines += ["ACC is the share of correct directions, MCC the Matthews correlation coefficient, 0 without skill."]
        lines += ["", "| predictor | nights | directions | ACC | MCC |", "| --- | ---: | ---: | --- | --- |"]
        lines += [
            f"| {each['predictor']} | {each['nights']} | {each['n']} "
            f"| {with_interval(each, 'acc')} | {with_interval(each, 'mcc')} |"
            for each in records(scores)
        ]
    return "\n".join([*lines, "", f"Report: `{night.report}`", ""])


def _key(context: MarketContext, what: str) -> str:
    """Return an artifact's key: small letters, digits and dashes."""
    return f"night-{context.name.replace('_', '-')}-{what}"
