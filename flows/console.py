"""What a command prints: Rich tables for people, JSON for programs."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import pandas as pd

from dtml.pages.figures import FILTERS, are_whole, ci, named, records
from flows.settings import err, print_text
from flows.text_tables import Column, print_table

if TYPE_CHECKING:  # commands that only read import this module, and must not wait for torch
    from flows.markets.opened import OpenedMarket


def print_json(value: object) -> None:
    """Print a value, such as a frame or a dictionary of them, as one JSON document.

    `as_json_values` says what it becomes.
    """
    document = json.dumps(as_json_values(value), ensure_ascii=False, indent=2, allow_nan=False)
    print_text(document)


def as_json_values(value: Any) -> Any:
    """Return a value as JSON holds it: lists, dictionaries with text as keys, text, numbers, None.

    Frames become lists of rows, a dictionary each. Days and moments become ISO 8601 text, bytes
    hexadecimal digits; missing values and numbers that are not finite become None.
    """
    if isinstance(value, pd.DataFrame):
        return [as_json_values(row) for row in value.to_dict("records")]
    if isinstance(value, dict):
        return {str(key): as_json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json_values(item) for item in value]
    return _as_json_scalar(value)


def _as_json_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    is_missing = value is None or value is pd.NaT or value is pd.NA
    if is_missing or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, pd.Timestamp) and value.tzinfo is None:
        return value.date().isoformat()  # a session; moments have a time zone
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value


def rendered(name: str, /, **values: object) -> str:
    """Return the text that a template of `flows/commands/templates` makes of these values."""
    folder = Path(__file__).parent / "commands" / "templates"
    templates = jinja2.Environment(  # noqa: S701 - no HTML
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= FILTERS
    return templates.get_template(name).render(values)


def announce(opened: "OpenedMarket") -> None:
    """Print the notice of an opened market, about its stocks or its source, if it has one."""
    if opened.notice:
        # Rich would take "[columns]", which a notice may quote, for markup.
        err.print(f"note: {opened.notice}", markup=False, soft_wrap=True)


def print_frame(
    frame: pd.DataFrame,
    title: str | None = None,
    *,
    importance: Sequence[str] | None,
    formats: Mapping[str, Callable[[Any], str]] | None = None,
    prose: Collection[str] = (),
) -> None:
    """Print a frame as a table, under its title if it has one.

    `importance` names its columns from the most important on, as `print_table` uses it. `formats`
    maps the name of a column to the function that writes its values; numbers of other columns are
    printed with all their digits. Texts of the columns `prose` may be broken between words. Whole
    numbers that a missing value made fractions are printed as whole ones.
    """
    columns = []
    for name in frame.columns:
        values = frame[name]
        is_bool = pd.api.types.is_bool_dtype(values)
        is_number = pd.api.types.is_numeric_dtype(values) and not is_bool
        write = (formats or {}).get(name)
        if write is None and is_number and are_whole(values):
            write = _whole
        column = Column(
            name=str(name),
            values=[as_json_values(value) for value in values],
            is_number=is_number,
            write=write,
            is_prose=name in prose,
        )
        columns.append(column)
    print_table(columns, title, importance)


def _whole(value: float) -> str:
    return f"{value:.0f}"


def print_scores(scores: pd.DataFrame) -> None:
    """Print the scores of the model and of the naive rules, a row each, a table for each protocol.

    The columns of `scores` that are used are protocol, predictor, nights, n (the number of
    stock-days), acc and mcc, and the ends of the 95 % intervals of these two, such as acc_low. The
    intervals are from resampled days.
    """
    titles = {
        "all": "all stock-days",
        "published": "the published labels: returns of +0.55 % or more and of -0.5 % or less",
    }
    for protocol, title in titles.items():
        rows = scores[scores["protocol"] == protocol]
        score_records = records(rows)
        table = rows[["predictor", "nights", "n"]].assign(
            predictor=[named(name) for name in rows["predictor"]],
            acc=[ci(row, "acc") for row in score_records],
            mcc=[ci(row, "mcc") for row in score_records],
        )
        headings = {"n": "directions", "acc": "ACC", "mcc": "MCC"}
        print_frame(
            table.rename(columns=headings),
            title,
            importance=("predictor", "ACC", "MCC", "nights", "directions"),
            prose=("predictor",),
        )
