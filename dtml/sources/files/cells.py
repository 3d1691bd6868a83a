"""The dates and numbers in the cells of a table, as people and programs write them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

import pandas as pd

from dtml.errors import UsageError
from dtml.markets.definition import EXCEL, UNITS

# A missing number written as text, in lower case.
BLANK = ("", "na", "n/a", "#n/a", "nan", "null", "none")
MAGNITUDES = {"K": "e3", "M": "e6", "B": "e9", "T": "e12"}
MAGNITUDE = re.compile(r"(?<=\d)[KMBT]$")
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
THREE_DIGITS = re.compile(r"[+-]?\d{1,3},\d{3}")


@dataclass(frozen=True)
class NumberFormat:
    """How a file writes its numbers.

    - decimal: the mark before the fraction;
    - thousands: the mark between groups of three digits, or empty;
    - signs: characters before a number that say nothing of it, such as $;
    - blank: texts of a missing number, besides `BLANK`.
    """

    decimal: str = "."
    thousands: str = ""
    signs: str = ""
    blank: Sequence[str] = ()


def numbers_of(
    written: pd.Series, number_format: NumberFormat, *, has_magnitudes: bool = False
) -> tuple[pd.Series, pd.Series]:
    """Return texts as float64, NaN for others, and a flag for each that is neither number nor
    blank.

    With `has_magnitudes`, 1.2M is 1,200,000.
    """
    texts = written.str.strip()
    if number_format.signs:
        texts = texts.str.lstrip(number_format.signs)
    texts = texts.mask(texts.str.lower().isin([*BLANK, *number_format.blank]))
    if number_format.thousands:
        mark = re.escape(number_format.thousands)
        is_grouped = texts.str.match(rf"[+-]?\d{{1,3}}({mark}\d{{3}})+(?!\d)", na=False)
        texts = texts.mask(is_grouped, texts.str.replace(mark, "", regex=True))
    if number_format.decimal != ".":
        # A point is then no decimal mark: its text must fail below, and not pass as a number.
        texts = texts.mask(texts.str.contains(".", regex=False, na=False), "no number")
        texts = texts.str.replace(number_format.decimal, ".", regex=False)
    numbers = pd.to_numeric(texts, errors="coerce").astype("float64")
    is_bad = numbers.isna() & texts.notna()
    if has_magnitudes and is_bad.any():
        powers = texts[is_bad].str.replace(
            MAGNITUDE, lambda found: MAGNITUDES[found[0]], regex=True
        )
        numbers[is_bad] = pd.to_numeric(powers, errors="coerce").astype("float64")
        is_bad = numbers.isna() & texts.notna()
    return numbers, is_bad


def advice_on(text: str, number_format: NumberFormat) -> str:
    """Return what the user can do about a text that is no number, as the end of an error."""
    if "," in text and number_format == NumberFormat():
        return (
            "; write it with a decimal point and no comma, or, if its comma separates thousands, "
            'say so in the market\'s file: [columns] thousands = ","; if it is a decimal comma: '
            '[columns] decimal = ","'
        )
    if "." in text and number_format.decimal != ".":
        return (
            f"; this file is read with the decimal mark {number_format.decimal!r}: write the "
            "number so, or set [columns] decimal and thousands in the market's file"
        )
    return "; correct it, or leave the cell empty"


def decimal_mark(written: pd.Series) -> str | None:
    """Return the decimal mark of texts not separated by commas; None where 1,234 may be either."""
    texts = written.str.strip()
    has_comma = texts.str.fullmatch(DECIMAL_COMMA, na=False)
    has_point = texts.str.contains(".", regex=False, na=False)
    if has_point.any() or not has_comma.any():
        return "."  # beside points, a comma is no mark that is known: its number is refused
    return None if texts[has_comma].str.fullmatch(THREE_DIGITS).all() else ","


FIRST_YEAR = 1678  # 64 bits of nanoseconds hold these years
LAST_YEAR = 2261
ISO = "ISO 8601"  # instead of a format of strptime, as are `EXCEL` and `UNITS`
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Excel counts days from here, and 1900 as a leap year, which it was not: its first 60 days of 1900
# are a day off and are not read.
DAY_0_OF_EXCEL = date(1899, 12, 30)
FIRST_DAY_OF_EXCEL = 61
DAYS_OF_EXCEL = re.compile(r"\d{2,6}(\.\d*)?")  # a fraction is a time of day
# Days are taken for Excel's without a word only from 1970 to 2099, with the last in 1990 or later.
# Days since 1970, and years and days such as 26328, would lie before that.
SURE_DAYS_OF_EXCEL = range(25_569, 73_051)
LATE_DAY_OF_EXCEL = 32_874
DIGITS_OF_EXCEL = 5  # of those days
# The unit of a number since 1970 by its digits, for any moment since 2001.
UNIT_OF_DIGITS = {10: "seconds", 13: "milliseconds", 19: "nanoseconds"}
EMPTY_FRACTION = re.compile(r"(\d+)\.0*")
BASIC_ISO = 8  # digits: 20260803


def days_of(
    values: Sequence[object], timezone: str, formats: Sequence[str], place: Path
) -> list[date | None]:
    """Return the date in each cell of a column, None where it is no date.

    `formats` are those of strptime, `ISO`, `EXCEL` or `UNITS`; the one that reads most cells is
    used. Raises UsageError where two read all cells, but differently. Without formats, cells are
    Excel's days if they can be nothing else, or ISO 8601.
    """
    cells = [_without_empty_fraction(value) for value in values]
    patterns = formats or [EXCEL if _are_days_of_excel(cells) else ISO]
    readings = [_days([_moment(cell, pattern) for cell in cells], timezone) for pattern in patterns]
    missing = cells.count(None)
    reading_all = [days for days in readings if days.count(None) == missing]
    for cell, *days in zip(cells, *reading_all[:2], strict=True):
        if len(set(days)) > 1:
            raise UsageError(
                f"{place}: {str(cell).strip()!r} may be {days[0]} or {days[1]}: write all dates as "
                "YYYY-MM-DD, or say in the market's file how they are written, such as [columns] "
                'date_format = "%d/%m/%Y"'
            )
    return min(readings, key=lambda days: days.count(None))


def fault_of(value: object, shown: str, formats: Sequence[str]) -> str:
    """Return what is wrong with a cell that is no date, `shown` so, and what the user can do."""
    if value is None or not str(value).strip():
        return "the date is missing; write it as in the other rows, or delete the row"
    is_stated = bool(formats) and ISO not in formats  # the one format of the market's file
    cell = _without_empty_fraction(value)
    day = _moment(cell, formats[0] if is_stated else ISO)
    if day is not None and not FIRST_YEAR <= day.year <= LAST_YEAR:
        return f"{shown} is not a date of the years {FIRST_YEAR} to {LAST_YEAR}; correct it"
    if is_stated:
        return (
            f"{shown} is not a date in the format {formats[0]!r} of [columns] date_format; correct "
            "the date, or correct date_format in the market's file"
        )
    if day is not None:  # the format that reads most cells is another one
        return (
            f"{shown} is not written like most dates of the file; write it as those are, or "
            "write all as YYYY-MM-DD"
        )
    text = str(cell).strip()
    example = UNIT_OF_DIGITS.get(len(text), "%d.%m.%Y") if text.isdigit() else "%d.%m.%Y"
    if DAYS_OF_EXCEL.fullmatch(text):
        example = EXCEL
    return (
        f"{shown} is not a date; if only this row is wrong, correct or delete it; if not, write "
        "all dates of the file as YYYY-MM-DD, or say in the market's file how they are written, "
        f'such as [columns] date_format = "{example}"'
    )


@lru_cache(maxsize=100_000, typed=True)  # the files of a folder share their dates
def _moment(cell: object, pattern: str) -> date | None:
    """Return the date or the moment in a cell by one format, of any year; None for no date."""
    if cell is None or isinstance(cell, date):
        return cell
    text = str(cell).strip()
    try:
        if pattern == ISO:
            is_other_number = text.isdigit() and len(text) != BASIC_ISO
            return None if is_other_number else datetime.fromisoformat(text)
        if pattern == EXCEL:
            days = int(text.partition(".")[0]) if DAYS_OF_EXCEL.fullmatch(text) else 0
            is_known = days >= FIRST_DAY_OF_EXCEL
            return DAY_0_OF_EXCEL + timedelta(days=days) if is_known else None
        if pattern in UNITS:
            microseconds = int(text) * UNITS[pattern] // 1000
            return EPOCH + timedelta(microseconds=microseconds)
        return datetime.strptime(text, pattern)  # noqa: DTZ007 - a date
    except (ValueError, OverflowError):
        return None


def _days(moments: Sequence[date | None], timezone: str) -> list[date | None]:
    """Return the date of each date or moment; None for a year that 64 bits do not hold.

    Moments with a zone are dated in `timezone`, unless all are midnights, in UTC or as written.
    """
    known = [
        moment if moment is not None and FIRST_YEAR <= moment.year <= LAST_YEAR else None
        for moment in moments
    ]
    instants = [
        moment for moment in known if isinstance(moment, datetime) and moment.tzinfo is not None
    ]
    zone: tzinfo | None = ZoneInfo(timezone)
    if all(instant.astimezone(UTC).time() == time() for instant in instants):
        zone = UTC
    elif all(instant.time() == time() for instant in instants):
        zone = None  # the date that is written
    days: list[date | None] = []
    for moment in known:
        day = moment
        if isinstance(moment, datetime):
            is_converted = zone is not None and moment.tzinfo is not None
            day = (moment.astimezone(zone) if is_converted else moment).date()
        days.append(day)
    return days


def _without_empty_fraction(value: object) -> object:
    """Return a whole number for one such as 20260803.0, as spreadsheets leave them."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        whole = EMPTY_FRACTION.fullmatch(value.strip())
        return value if whole is None else whole[1]
    return value


def _are_days_of_excel(cells: Sequence[object]) -> bool:
    texts = [str(cell).strip() for cell in cells if cell is not None]
    filled = [text for text in texts if text]
    are_numbers = all(len(text) == DIGITS_OF_EXCEL and text.isdecimal() for text in filled)
    if not filled or not are_numbers:
        return False
    days = [int(text) for text in filled]
    return max(days) >= LATE_DAY_OF_EXCEL and all(day in SURE_DAYS_OF_EXCEL for day in days)
