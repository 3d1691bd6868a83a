"""What a command prints: Rich tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.pages.figures import records, with_interval
from flows.settings import err, out

if TYPE_CHECKING:  # what only reads prints without waiting for torch
    from flows.nightly.context import Desk
    from flows.nightly.fetch import Catch
    from flows.nightly.night import Night

ASK_MORE = """ask more  dtml query "select * from prediction_history where market = '{market}' order by target desc" """
PROBABILITIES = dict.fromkeys(("probability", "spread", "calibrated"), ".3f")
LONGEST_CELL = 1000  # characters of a table's cell
SHOWN = 12  # rows of the most and the least probable risers


def counted(number: int, what: str) -> str:
    """Such as 1 text, 2 texts."""
    return f"{number} {what}{'s'[: number != 1]}"


def print_json(value: object) -> None:
    """Print plain values, frames and rows as one JSON document; missing numbers are null, times are ISO 8601."""
    print(json.dumps(plain(value), ensure_ascii=False, indent=2, allow_nan=False))  # noqa: T201 - not for people


def plain(value: Any) -> Any:
    """The value in JSON's terms."""
    if isinstance(value, pd.DataFrame):
        return [plain(row) for row in value.to_dict("records")]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, pd.Timestamp) and value.tzinfo is None:
        return value.date().isoformat()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value.item() if hasattr(value, "item") else value


def announce(desk: Desk) -> None:
    """Say what a desk has to say about how it was opened."""
    if desk.notice:
        err.print(f"note: {desk.notice}")


def print_frame(frame: pd.DataFrame, title: str | None = None, *, formats: dict[str, str] | None = None) -> None:
    """Print a frame as a table; `formats` maps a column to a format of its numbers, such as "+.3f"."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[column]) and not pd.api.types.is_bool_dtype(frame[column])
        table.add_column(str(column), justify="right" if numeric else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        cells = zip(frame.columns, row, strict=True)
        table.add_row(*(Text(_cell(value, (formats or {}).get(name, ""))) for name, value in cells))
    out.print(table)


def _cell(value: Any, spec: str) -> str:
    value = plain(value)
    if value is None:
        return "-"
    said = format(value, spec) if isinstance(value, float) else str(value)
    return said if len(said) <= LONGEST_CELL else f"{said[:LONGEST_CELL]}... ({len(said):,} characters)"


def night_summary(
    night: Night, predictions: pd.DataFrame, scores: pd.DataFrame, coverage: pd.DataFrame
) -> dict[str, Any]:
    """A night as one JSON document."""
    return {
        "night": night.row,
        "new": not night.was_done_before,
        "predictions": predictions,
        "scores": scores,
        "coverage": coverage,
        "report": str(night.report),
    }


def print_predictions(predictions: pd.DataFrame) -> None:
    """The most and the least probable risers of a night, and what is called of them."""
    ordered = predictions.sort_values(["probability", "symbol"], ascending=[False, True])
    shown = ordered[["symbol", "probability", "spread", "calibrated", "call"]]
    if len(shown) > 2 * SHOWN:
        left = len(shown) - 2 * SHOWN
        print_frame(shown.head(SHOWN), "most probable risers", formats=PROBABILITIES)
        out.print(f"... {left} more, in the report and in the store")
        shown = shown.tail(SHOWN)
    print_frame(shown, formats=PROBABILITIES)


def print_scores(scores: pd.DataFrame) -> None:
    """Scores of the predictor beside the naive rules, a table a protocol, with day-resampled intervals."""
    titles = {"all": "all stock-days", "paper": "the paper's labels: moves from +0.55 % and to -0.5 %"}
    for protocol, title in titles.items():
        rows = scores[scores["protocol"] == protocol]
        table = rows[["predictor", "nights", "n"]].assign(
            **{name: [with_interval(row, name) for row in records(rows)] for name in ("acc", "mcc")}
        )
        names = {"n": "calls", "acc": "ACC", "mcc": "MCC"}
        print_frame(table.rename(columns=names), title)


def print_coverage(coverage: pd.DataFrame) -> None:
    """What came of the calls at the market's level; nothing before the first outcome."""
    for row in coverage.to_dict("records"):
        right = "" if math.isnan(row["called_acc"]) else f", {row['called_acc']:.1%} of these rightly"
        out.print(
            f"calls at level {row['level']:g}: {row['coverage']:.1%} of {row['n']:,} outcomes covered (not called, or "
            f"rightly); {row['called']:.1%} called{right}",
            soft_wrap=True,
        )


def print_night(
    night: Night, predictions: pd.DataFrame, scores: pd.DataFrame, coverage: pd.DataFrame, store: str
) -> None:
    """All that a night has to say."""
    row = night.row
    out.print(f"[bold]{row['market']}, night of {row['as_of']}: {row['target']} predicted[/bold]")
    print_predictions(predictions)
    out.print(_what_was_done(night))
    for gap in row["gaps"][:SHOWN]:
        out.print(f"  left out: {gap['symbol']}, {gap['reason']}")
    if night.catch is not None and len(night.catch.refused):
        print_frame(night.catch.refused.head(SHOWN), "bars refused tonight")
    if scores.empty:
        out.print("No prediction of this market has an outcome yet: the next night scores this one.")
    else:
        last = scores["target"].max().date()
        out.print(f"\n[bold]Scores of all nights up to {last}[/bold], with 95 % intervals that resample days")
        print_scores(scores)
        print_coverage(coverage)
        if scores["nights"].max() < MINIMUM_DAYS:
            out.print(f"Fewer than {MINIMUM_DAYS} nights do not show how days hang together: no interval is printed.")
    out.print(f"\nreport    {night.report}\ndatabase  {store}")
    out.print(ASK_MORE.format(market=row["market"]), soft_wrap=True)


def _what_was_done(night: Night) -> str:
    row = night.row
    if night.catch is None:
        return "This night was complete before: no row was added."
    said = (
        f"{row['fetched']} bars fetched, {row['stored']} new, {row['refused']} refused; "
        f"{row['predictions']} stocks predicted by {row['run_id']}, {len(row['gaps'])} left out"
    )
    if night.scored is not None and night.scored.unresolved:
        said += f"\n{night.scored.unresolved} predictions of closed sessions have no outcome: no good bar came"
    return said + without_adjusted(night.catch)


def without_adjusted(catch: Catch) -> str:
    """A line on the stocks whose moves are those of the close, or nothing."""
    count = len(catch.unadjusted)
    return f"\nnote: {count} symbols have no adjusted close; their moves come from the close" if count else ""
