"""What a command prints: Rich tables for people, JSON for programs."""

import json
import math
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from rich.table import Table
from rich.text import Text

from dtml.pages.figures import records, with_interval
from flows.settings import err, out

if TYPE_CHECKING:  # what only reads prints without waiting for torch
    from flows.nightly.context import MarketContext

LONGEST_CELL = 1000  # characters of a table's cell


def counted(number: int, what: str) -> str:
    """Such as 1 text, 2 texts."""
    return f"{number} {what}{'s'[: number != 1]}"


def print_json(value: object) -> None:
    """Print plain values, frames and rows as one JSON document; missing numbers
    are null, times are ISO 8601.
    """
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
    if (
        value is None
        or value is pd.NaT
        or value is pd.NA
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        return None
    if isinstance(value, pd.Timestamp) and value.tzinfo is None:
        return value.date().isoformat()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value.item() if hasattr(value, "item") else value


def rendered(name: str, /, **values: object) -> str:
    """Return the text that a template of `flows/commands/templates` makes of these values."""
    files = jinja2.FileSystemLoader(Path(__file__).parent / "commands" / "templates")
    undefined = jinja2.StrictUndefined
    texts = jinja2.Environment(  # noqa: S701 - no HTML
        loader=files,
        undefined=undefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return texts.get_template(name).render(values)


def announce(context: "MarketContext") -> None:
    """Say what a market context has to say about how it was opened."""
    if context.notice:
        err.print(f"note: {context.notice}")


def print_frame(
    frame: pd.DataFrame, title: str | None = None, *, formats: dict[str, str] | None = None
) -> None:
    """Print a frame as a table; `formats` maps a column to a format of its
    numbers, such as "+.3f".
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[column]) and not pd.api.types.is_bool_dtype(
            frame[column]
        )
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
    return (
        said
        if len(said) <= LONGEST_CELL
        else f"{said[:LONGEST_CELL]}... ({len(said):,} characters)"
    )


def print_scores(scores: pd.DataFrame) -> None:
    """Scores of the predictor beside the naive rules, a table a protocol, with
    day-resampled intervals.
    """
    titles = {
        "all": "all stock-days",
        "paper": "the published labels: returns of +0.55 % or more and of -0.5 % or less",
    }
    for protocol, title in titles.items():
        rows = scores[scores["protocol"] == protocol]
        table = rows[["predictor", "nights", "n"]].assign(
            **{name: [with_interval(row, name) for row in records(rows)] for name in ("acc", "mcc")}
        )
        names = {"n": "directions", "acc": "ACC", "mcc": "MCC"}
        print_frame(table.rename(columns=names), title)
