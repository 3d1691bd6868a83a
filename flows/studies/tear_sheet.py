"""Rankings as stored, and tear sheets in files: the store lacks the figures of each day."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db.read import read, read_row
from dtml.evaluation.tear_sheet import TearSheet
from dtml.pages.ranking import Ranking
from flows.settings import page_of, write_page

# Columns that are no numbers: days, and names.
DATES = ("session",)
NAMES = ("predictor", "leg", "sector")


def sheet_file(row: Mapping[str, Any]) -> Path:
    """Return the file of the sheet of a stored ranking, from its row: beside its page."""
    return page_of("ranking", row).with_suffix(".json")


def write_sheet(row: Mapping[str, Any], sheet: TearSheet) -> None:
    """Write the sheet of a ranking, whole or not at all."""
    tables = {name: table.to_dict("list") for name, table in sheet.tables.items()}
    write_page(sheet_file(row), json.dumps(vars(sheet) | tables, default=str))


def read_sheet(row: Mapping[str, Any]) -> TearSheet | None:
    """Return the sheet of a stored ranking; None where its file is missing or damaged."""
    file = sheet_file(row)
    if file.name != f"ranking-{row['id']}.json":  # the store may name a path outside the folder
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        for table, columns in content.items():
            if isinstance(columns, dict):
                rows = content[table] = pd.DataFrame(columns)
                for name in map(str, columns.keys() - NAMES):
                    as_values = pd.to_datetime if name in DATES else pd.to_numeric
                    rows[name] = as_values(rows[name])
        return TearSheet(**content)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def read_ranking(conn: Connection, ranking_id: str) -> Ranking | None:
    """Return a ranking from the store, with its tear sheet if that is here; None without it."""
    row = read_row(conn, "ranking", id=ranking_id)
    if row is None:
        return None
    scores, differences, portfolios = (
        read(conn, f"ranking_{part}", columns="-ranking_id", ranking_id=ranking_id)
        for part in ("score", "difference", "portfolio")
    )
    return Ranking(row, scores, differences, portfolios, read_sheet(row))
