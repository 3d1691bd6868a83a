"""The cells of a table as it is stored: headers and columns, before anything is known of them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy import ndarray

from dtml.markets.definition import EXCEL, UNITS

# A missing number written as text, in lower case.
BLANK = ("", "na", "n/a", "#n/a", "nan", "null", "none")
MAGNITUDES = {"K": "e3", "M": "e6", "B": "e9", "T": "e12"}
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
THREE_DIGITS = re.compile(r"[+-]?\d{1,3},\d{3}")


@dataclass(frozen=True)
class NumberFormat:
    """How a file writes its numbers.

    - decimal: the mark before the fraction;
    - thousands: the mark between groups of three digits, empty where there is none;
    - signs: characters before a number that say nothing of it, such as $;
    - blank: texts that stand for a missing number, besides `BLANK`.
    """

    decimal: str = "."
    thousands: str = ""
    signs: str = ""
    blank: tuple[str, ...] = ()


def is_numeric(kind: pa.DataType) -> bool:
    """Say whether a column of this type becomes numbers by a cast; one without any value does."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Say whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def parsed(
    written: pd.Series, number_format: NumberFormat, *, has_magnitudes: bool = False
) -> tuple[pd.Series, pd.Series]:
    """Return texts as numbers, float64, and a flag for each text that is no number.

    A blank and a text that is no number are NaN; only the latter has the flag. `has_magnitudes`
    says whether 1.2M is 1,200,000.
    """
    texts = written.str.strip()
    if number_format.signs:
        texts = texts.str.lstrip(number_format.signs)
    is_blank = texts.str.lower().isin([*BLANK, *number_format.blank])
    texts = texts.where(~is_blank)
    if number_format.thousands:
        mark = re.escape(number_format.thousands)
        is_grouped = texts.str.match(rf"[+-]?\d{{1,3}}({mark}\d{{3}})+(?!\d)", na=False)
        plain = texts.str.replace(number_format.thousands, "", regex=False)
        texts = texts.where(~is_grouped, plain)
    if number_format.decimal != ".":
        # A point is then no decimal mark: its text must fail below, and not pass as a number.
        texts = texts.mask(texts.str.contains(".", regex=False, na=False), "no number")
        texts = texts.str.replace(number_format.decimal, ".", regex=False)
    numbers = pd.to_numeric(texts, errors="coerce").astype("float64")
    is_bad = numbers.isna() & texts.notna()
    if has_magnitudes and is_bad.any():
        others = texts[is_bad]
        for letter, power in MAGNITUDES.items():
            others = others.str.replace(rf"(?<=\d){letter}$", power, regex=True)
        numbers[is_bad] = pd.to_numeric(others, errors="coerce").astype("float64")
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
    """Return the decimal mark of texts: a point or a comma; None where 1,234 may be either.

    The texts are those of a file whose fields are not separated by commas.
    """
    texts = written.str.strip()
    has_comma = texts.str.fullmatch(DECIMAL_COMMA, na=False)
    if not has_comma.any():
        return "."
    if texts.str.contains(".", regex=False, na=False).any():
        return "."  # the comma is then no mark that is known, and its number is refused
    if texts[has_comma].str.fullmatch(THREE_DIGITS).all():
        return None
    return ","


FIRST_YEAR = 1678  # 64 bits of nanoseconds hold these years
LAST_YEAR = 2261
ISO = "ISO 8601"  # instead of a format of strptime, as are `EXCEL` and `UNITS`
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIDNIGHT = time()
# Excel counts days from here, and 1900 as a leap year, which it was not: its first 60 days of 1900
# are a day off and are not read.
DAY_0_OF_EXCEL = date(1899, 12, 30)
FIRST_DAY_OF_EXCEL = 61
DAYS_OF_EXCEL = re.compile(r"\d{2,6}(\.\d*)?")  # a fraction is a time of day
# Days are taken for Excel's without a word only from 1970 to 2099, with the last in 1990 or later.
# Days since 1970, and years and days such as 26328, would lie before that.
SURE_DAYS_OF_EXCEL = (25_569, 73_050)
LATE_DAY_OF_EXCEL = 32_874
# The unit of a number since 1970 by its digits, for any moment since 2001.
UNIT_OF_DIGITS = {10: "seconds", 13: "milliseconds", 19: "nanoseconds"}
EMPTY_FRACTION = re.compile(r"(\d+)\.0*")
BASIC_ISO = 8  # digits: 20260803


class AmbiguousDateError(ValueError):
    """A column of dates that can be read in two ways; the message says which."""


def days_of(
    values: Sequence[object], timezone: str, formats: Sequence[str] = ()
) -> list[date | None]:
    """Return the date in each cell of a column, None where it is no date.

    A moment with a time zone gets the date that it has in `timezone`, except in a column of
    midnights (`_of_moments`). A column of dates and moments alone needs no format; any other is
    read

    - by `formats`, if given: those of strptime, `ISO`, `EXCEL` or one of `UNITS`. Of several, the
      one that reads all cells counts, or else the one that reads most; AmbiguousDateError is raised
      where the first two that read all differ;
    - without formats, as Excel's numbers of days where all can be nothing else, and else as ISO
      8601.

    A number with an empty fraction, 20260803.0, is a whole number.
    """
    cells = [_without_empty_fraction(value) for value in values]
    if not any(isinstance(cell, str | int | float) for cell in cells):
        return _read_as(cells, timezone, ISO)
    if formats:
        readings = {pattern: _read_as(cells, timezone, pattern) for pattern in formats}
        filled_cells = sum(value is not None for value in cells)
        counts = {pattern: len(days) - days.count(None) for pattern, days in readings.items()}
        reading_all = [pattern for pattern in formats if counts[pattern] == filled_cells]
        if len(reading_all) > 1:
            for value, day, other_day in zip(
                cells, readings[reading_all[0]], readings[reading_all[1]], strict=True
            ):
                if day != other_day:
                    written = value.strip() if isinstance(value, str) else value
                    raise AmbiguousDateError(f"{written!r} may be {day} or {other_day}")
        best = max(formats, key=lambda pattern: counts[pattern])
        return readings[best]
    return _read_as(cells, timezone, EXCEL if _are_days_of_excel(cells) else ISO)


def fault_of(value: object, shown: str, formats: Sequence[str] = ()) -> str:
    """Return what is wrong with a cell that is no date, and what the user can do.

    `shown` is its value as errors show it; `formats` are those by which the column was read.
    """
    if value is None or not str(value).strip():
        return "the date is missing; write it as in the other rows, or delete the row"
    is_stated = bool(formats) and ISO not in formats  # the one format of the market's file
    day = _date_of_any_year(value, formats[0] if is_stated else ISO)
    if day is not None and _in_range(day) is None:
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
    return (
        f"{shown} is not a date; if only this row is wrong, correct or delete it; if not, write "
        "all dates of the file as YYYY-MM-DD, or say in the market's file how they are written, "
        f'such as [columns] date_format = "{_example_for(value)}"'
    )


def _date_of_any_year(value: object, pattern: str) -> date | None:
    """Return the date in a cell even if its year is out of range; None if the cell is no date."""
    if pattern == ISO:
        return _moment(_without_empty_fraction(value))
    try:
        return datetime.strptime(str(value).strip(), pattern)  # noqa: DTZ007 - a date
    except ValueError:
        return None


def _example_for(value: object) -> str:
    text = str(_without_empty_fraction(value)).strip()
    if DAYS_OF_EXCEL.fullmatch(text):
        return EXCEL
    digits = len(text) if text.isdigit() else 0
    return UNIT_OF_DIGITS.get(digits, "%d.%m.%Y")


def _read_as(values: Sequence[object], timezone: str, pattern: str) -> list[date | None]:
    """Return the dates in the cells by one format, None where it does not read a cell."""
    if pattern == ISO:
        return _of_moments([_moment(value) for value in values], timezone)
    if pattern in UNITS:
        return _of_moments([_since_1970(value, UNITS[pattern]) for value in values], timezone)
    if pattern == EXCEL:
        return [_day_of_excel(value) for value in values]
    return [None if value is None else _parsed(str(value).strip(), pattern) for value in values]


def _of_moments(moments: Sequence[date | None], timezone: str) -> list[date | None]:
    """Return the date of each date or moment; None for a missing one and for a year out of range.

    A moment without a time zone has the date that is written. One with a time zone has the date of
    that instant in `timezone`, unless all moments with a time zone are midnights, in UTC or as they
    are written. The column then holds dates, which some sources write as midnights of a zone that
    is not the exchange's.
    """
    instants = [
        moment for moment in moments if isinstance(moment, datetime) and moment.tzinfo is not None
    ]
    # Both are true where all are midnights of UTC that are written in UTC; the date is then the
    # same in both ways.
    holds_dates_of_utc = all(instant.astimezone(UTC).time() == MIDNIGHT for instant in instants)
    holds_dates_as_written = all(instant.time() == MIDNIGHT for instant in instants)
    days: list[date | None] = []
    for moment in moments:
        day = moment
        if isinstance(moment, datetime):
            if moment.tzinfo is None or (holds_dates_as_written and not holds_dates_of_utc):
                day = moment.date()
            elif holds_dates_of_utc:
                day = moment.astimezone(UTC).date()
            else:
                day = moment.astimezone(ZoneInfo(timezone)).date()
        days.append(_in_range(day))
    return days


def _moment(value: object) -> date | None:
    """Return the date or the moment in a cell, or None."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        text = str(value).strip()
        if text.isdigit() and len(text) != BASIC_ISO:
            return None
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return None
    return value if isinstance(value, date) else None


def _since_1970(value: object, nanoseconds: int) -> datetime | None:
    """Return the moment of a number of units since 1970, None for any other value.

    `nanoseconds` are those of a unit.
    """
    text = str(value).strip()
    longest = 19  # digits of the largest number of nanoseconds in 64 bits
    if not text.isascii() or not text.isdigit() or len(text) > longest:
        return None
    try:
        return EPOCH + timedelta(microseconds=int(text) * nanoseconds // 1000)
    except OverflowError:
        return None


def _day_of_excel(value: object) -> date | None:
    """Return the day of a number as Excel stores dates, None for any other value."""
    text = str(value).strip()
    if isinstance(value, bool) or not DAYS_OF_EXCEL.fullmatch(text):
        return None
    days = int(text.partition(".")[0])
    if days < FIRST_DAY_OF_EXCEL:
        return None
    return _in_range(DAY_0_OF_EXCEL + timedelta(days=days))


def _are_days_of_excel(values: Sequence[object]) -> bool:
    texts = [str(value).strip() for value in values if value is not None]
    filled = [text for text in texts if text]
    longest = 5  # digits
    if not filled or not all(len(text) == longest and text.isdigit() for text in filled):
        return False
    days = [int(text) for text in filled]
    first_sure, last_sure = SURE_DAYS_OF_EXCEL
    return first_sure <= min(days) and LATE_DAY_OF_EXCEL <= max(days) <= last_sure


@lru_cache(maxsize=100_000)  # the files of a folder share their dates
def _parsed(text: str, pattern: str) -> date | None:
    try:
        return _in_range(datetime.strptime(text, pattern).date())  # noqa: DTZ007 - a date
    except ValueError:
        return None


def _without_empty_fraction(value: object) -> object:
    """Return a cell with a whole number for one such as 20260803.0, as spreadsheets leave them."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        whole = EMPTY_FRACTION.fullmatch(value.strip())
        return value if whole is None else whole[1]
    return value


def _in_range(day: date | None) -> date | None:
    """Return a date, or None for one that 64 bits of nanoseconds do not hold."""
    if day is None or not FIRST_YEAR <= day.year <= LAST_YEAR:
        return None
    return day


@dataclass(frozen=True)
class Cells:
    """Hold the headers of a table and a way to read its columns.

    - header: the names of the columns as they are written;
    - rows: the number of rows below the header;
    - read: returns a column by its position, [rows]; parquet is read a column at a time;
    - separator: what separates the fields of a text; empty for parquet;
    - row_in_file: the row of the file, from 0, of each row here; None unless it was reshaped;
    """

    header: Sequence[str]
    rows: int
    read: Callable[[int], pa.ChunkedArray]
    separator: str = ""
    row_in_file: ndarray | None = field(default=None, compare=False)

    @classmethod
    def of_table(
        cls,
        header: Sequence[str],
        table: pa.Table,
        *,
        separator: str = "",
        row_in_file: ndarray | None = None,
    ) -> "Cells":
        """Return the cells of an Arrow table, whose columns get the names of `header`."""
        return cls(
            header=header,
            rows=table.num_rows,
            read=table.column,
            separator=separator,
            row_in_file=row_in_file,
        )

    def row_number(self, row: int) -> int:
        """Return the number by which people find a row: the first below the header is 1."""
        if self.row_in_file is None:
            return int(row) + 1
        return int(self.row_in_file[row]) + 1

    def rows_at(self, position: int, rows: ndarray) -> pa.ChunkedArray:
        """Return some rows of a column."""
        return self.read(position).take(pa.array(rows))

    def distinct(self, position: int) -> tuple[list[object], ndarray]:
        """Return the distinct values of a column, then None, and the position of each row's value.

        Arrow's missing values are at the position of None.
        """
        encoded = plain(self.read(position)).combine_chunks().dictionary_encode()
        values: list[object] = encoded.dictionary.to_pylist()
        codes: ndarray = encoded.indices.fill_null(len(values)).to_numpy()
        return [*values, None], codes


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values are stored one by one."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def no_rows(columns: int) -> pa.Table:
    """Return a table of so many text columns without a row."""
    names = [str(position) for position in range(columns)]
    return pa.table({name: pa.array([], pa.string()) for name in names})


def all_rows(cells: Cells) -> ndarray:
    """Return the positions of all rows."""
    return np.arange(cells.rows)
