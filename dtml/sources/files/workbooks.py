"""Excel workbooks, by pandas and openpyxl."""

import csv
from datetime import date, datetime, time
from io import BytesIO, StringIO
from typing import Any

import pandas as pd

from dtml.sources.files.containers import AdvisedError


def csv_of_workbook(content: bytes) -> bytes:
    """Return the one sheet of a workbook that holds something, as CSV in UTF-8.

    A number that a spreadsheet shows as a whole one is written as such, and a date as in ISO 8601.
    Raises ValueError where openpyxl is missing or cannot read the workbook, and unless exactly one
    sheet holds something.
    """
    try:
        sheets = pd.read_excel(
            BytesIO(content),
            sheet_name=None,
            header=None,
            dtype=object,
            engine="openpyxl",
            na_filter=False,  # keeps a text such as NA, which may be a symbol
        )
    except ImportError as error:
        raise AdvisedError(
            "the package openpyxl, which reads workbooks, is not installed: "
            "pip install 'dtml-nightshift[excel]', or save the sheet as CSV"
        ) from error
    except Exception as error:
        raise ValueError(f"it is not a readable workbook: {error}") from error
    filled = {name: sheet for name, sheet in sheets.items() if not sheet.empty}
    if len(filled) != 1:
        names = ", ".join(str(name) for name in filled) or "none"
        advice = "keep one" if filled else "write the prices into one"
        raise AdvisedError(f"the workbook has {len(filled)} filled sheets ({names}): {advice}")
    (sheet,) = filled.values()
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in sheet.itertuples(index=False):
        writer.writerow([_written(value) for value in row])
    return text.getvalue().encode()


def _written(value: Any) -> str:
    """Return the value of a cell as a CSV of the sheet would have it."""
    if value is None or value is pd.NaT:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime):
        has_time = value.time() != time()
        return value.isoformat(sep=" ") if has_time else value.date().isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return str(value)
