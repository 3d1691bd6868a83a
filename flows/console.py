"""What a command prints: texts and tables for people, JSON for programs."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from rich.text import Text

from dtml.pages.figures import are_whole, ci, named, records
from dtml.pages.rendering import environment
from flows.settings import out, print_text, shown, tell
from flows.text_tables import column, print_table

if TYPE_CHECKING:  # commands that only read import this module, and must not wait for torch
    from flows.markets.opened import OpenedMarket

Formats = Mapping[str, Callable[[Any], str]]  # how the values of a column are written


@dataclass(frozen=True)
class ConsoleTable:
    """A frame that is printed as a table, under its title if it has one.

    `formats` maps columns to the functions that write them, else numbers have all digits. Columns
    of `prose` may be broken between words.
    """

    frame: pd.DataFrame
    title: str | None = None
    formats: Formats = field(default_factory=dict)
    prose: Collection[str] = ()

    def print(self) -> None:
        """Print it; whole numbers that a missing value made fractions are printed as whole ones."""
        columns = []
        for name, values in self.frame.items():
            is_number = is_numeric_dtype(values) and not is_bool_dtype(values)
            whole = "{:.0f}".format if is_number and are_whole(values) else None
            columns.append(
                column(
                    str(name),
                    map(as_json_values, values),
                    self.formats.get(str(name), whole),
                    is_number=is_number,
                    is_prose=name in self.prose,
                )
            )
        print_table(columns, self.title)


Part = str | Text | ConsoleTable | None  # of an answer; None is left out


def say(part: Part) -> None:
    """Print a part of an answer; the terminal breaks the lines of a text."""
    if isinstance(part, ConsoleTable):
        part.print()
    elif part is not None:
        # Rich would take parts of a plain text for markup or an emoji.
        text = Text(shown(part.removesuffix("\n"))) if isinstance(part, str) else part
        out.print(text, soft_wrap=True)


def bold(text: str) -> Text:
    """Return a text in bold letters."""
    return Text(shown(text), style="bold")


def print_json(value: object) -> None:
    """Print a value, such as a frame or a dictionary of them, as one JSON document."""
    document = json.dumps(as_json_values(value), ensure_ascii=False, indent=2, allow_nan=False)
    print_text(document)


def as_json_values(value: Any) -> Any:
    """Return a value as JSON holds it.

    Frames become lists of rows; days and moments ISO 8601, bytes hexadecimal; missing and infinite
    None.
    """
    if isinstance(value, pd.DataFrame):
        return as_json_values(value.to_dict("records"))
    if isinstance(value, dict):
        return {str(key): as_json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json_values(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    is_missing = value is None or value is pd.NaT or value is pd.NA
    if is_missing or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, pd.Timestamp) and value.tzinfo is None:
        value = value.date()  # a session; moments have a time zone
    if isinstance(value, date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else value


def rendered(name: str, /, **values: object) -> str:
    """Return the text that a template of `flows/commands/templates` makes of these values."""
    return _templates().get_template(name).render(values)


@cache
def _templates() -> jinja2.Environment:
    folder = Path(__file__).parent / "commands" / "templates"
    return environment(folder, autoescape=False).overlay(keep_trailing_newline=True)


def styled(name: str, /, **values: object) -> Text:
    """Return the text of a template that styles its words, as in [bold]a title[/bold]."""
    return Text.from_markup(shown(rendered(name, **values).removesuffix("\n")))


def announce(opened: "OpenedMarket") -> None:
    """Print the notice of an opened market, about its stocks or its source, if it has one."""
    if opened.notice:
        tell(f"note: {opened.notice}")


def score_tables(scores: pd.DataFrame) -> Iterable[ConsoleTable]:
    """Yield the scores of the model and of the naive rules, a row each, a table for each protocol.

    Columns used: protocol, predictor, nights, n (stock-days), acc, mcc, and their 95 % ends.
    """
    titles = {
        "all": "all stock-days",
        "published": "the published labels: returns of +0.55 % or more and of -0.5 % or less",
    }
    for protocol, title in titles.items():
        rows = [
            {
                "predictor": named(row["predictor"]),
                "nights": row["nights"],
                "directions": row["n"],
                "ACC": ci(row, "acc"),
                "MCC": ci(row, "mcc"),
            }
            for row in records(scores[scores["protocol"] == protocol])
        ]
        if rows:
            yield ConsoleTable(pd.DataFrame(rows), title, prose=("predictor",))
