"""Excel workbooks, by pandas and openpyxl."""

import csv
from datetime import date, datetime, time
from io import BytesIO, StringIO
from typing import Any
from zipfile import ZipFile

from dtml.sources.files.containers import AdvisedError, require_room

CELL = 100  # bytes, about what one takes in memory


def csv_of_workbook(content: bytes, bound: int) -> bytes:
    """Return the one sheet of a workbook that holds something, as CSV in UTF-8.

    A number that a spreadsheet shows as a whole one is written as such, and a date as in ISO 8601.
    Raises ValueError where openpyxl is missing or cannot read the workbook, unless exactly one
    sheet holds something, and once it has more bytes than `bound`, unpacked or as cells.
    """
    with ZipFile(BytesIO(content)) as archive:
        require_room(sum(member.file_size for member in archive.infolist()), bound)
    try:
        import openpyxl

        book = openpyxl.load_workbook(BytesIO(content), read_only=True, data_only=True)
        filled = {}
        for sheet in book.worksheets:
            text = _csv_of_sheet(sheet, bound)
            if text.strip("\n,"):
                filled[sheet.title] = text
    except AdvisedError:
        raise
    except ImportError as error:
        raise AdvisedError(
            "the package openpyxl, which reads workbooks, is not installed: "
            "pip install 'dtml-nightshift[excel]', or save the sheet as CSV"
        ) from error
    except Exception as error:
        raise ValueError(f"it is not a readable workbook: {error}") from error
    if len(filled) != 1:
        names = ", ".join(str(name) for name in filled) or "none"
        advice = "keep one" if filled else "write the prices into one"
        raise AdvisedError(f"the workbook has {len(filled)} filled sheets ({names}): {advice}")
    (text,) = filled.values()
    return text.encode()


def _csv_of_sheet(sheet: Any, bound: int) -> str:
    """Return the rows of a sheet as CSV, all as long as the longest; empty ones at its end go."""
    sheet.reset_dimensions()  # what the file says of them may be wrong
    rows: list[list[str]] = []
    cells = 0
    for row in sheet.iter_rows(values_only=True):
        cells += len(row) + 1
        require_room(cells * CELL, bound)
        rows.append([_written(value) for value in row])
    while rows and not any(rows[-1]):
        rows.pop()
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    width = max((len(row) for row in rows), default=0)
    writer.writerows(row + [""] * (width - len(row)) for row in rows)
    return text.getvalue()


def _written(value: Any) -> str:
    """Return the value of a cell as a CSV of the sheet would have it."""
    if value is None:
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
