"""Show a night in Prefect's pages: who was left out, its scores beside the naive rules, and where its page lies."""

import logging
from datetime import date

import pandas as pd
from prefect.artifacts import create_markdown_artifact

from db.engine import reading
from db.rows import scores as stored_scores
from dtml.pages.figures import records, with_interval
from flows.nightly.context import MarketContext
from flows.nightly.night import Night

log = logging.getLogger(__name__)


def leave_artifact(context: MarketContext, night: Night) -> None:
    """Leave an artifact with a key like `night-simulated`; a failure is a line in the log, no more."""
    row = night.row
    try:
        with reading(context.engine) as conn:
            scores = stored_scores.running_scores(conn, context.name, last=row["as_of"])
        key = f"night-{context.name.replace('_', '-')}"  # small letters, digits and dashes
        create_markdown_artifact(night_page(context.name, scores, night), key=key)
    except Exception as error:  # noqa: BLE001 - a page is not worth a night
        log.warning("night of %s of %s: no artifact is left: %s", row["as_of"], context.name, error)


def night_page(market: str, scores: pd.DataFrame, night: Night) -> str:
    """Return the latest running scores beside the naive rules, and where the report lies, as Markdown."""
    row = night.row
    lines = [f"## {market}, night of {row['as_of']}: {row['predictions']} stocks predicted for {row['target']}", ""]
    lines += [f"- {gap['symbol']} is left out: {gap['reason']}" for gap in row["gaps"]]
    if scores.empty:
        lines += ["", "No prediction of this market has an outcome yet."]
    else:
        last: date = scores["target"].iloc[0].date()
        lines += ["", f"Scores of all nights up to {last}, every stock-day, with 95 % intervals that resample days."]
        lines += ["ACC is the share of correct directions, MCC the Matthews correlation coefficient, 0 without skill."]
        lines += ["", "| predictor | nights | directions | ACC | MCC |", "| --- | ---: | ---: | --- | --- |"]
        lines += [
            f"| {each['predictor']} | {each['nights']} | {each['n']} "
            f"| {with_interval(each, 'acc')} | {with_interval(each, 'mcc')} |"
            for each in records(scores)
        ]
    return "\n".join([*lines, "", f"Report: `{night.report}`", ""])
