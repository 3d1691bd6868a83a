"""The dates in the cells of a file: sessions of the exchange, however they are written."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

FIRST_YEAR = 1678  # 64 bits of nanoseconds hold these years
LAST_YEAR = 2261
# Instead of a format of strptime: whole numbers that count nanoseconds since 1970 in UTC.
NANOSECONDS = "nanoseconds"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIDNIGHT = time()


class AmbiguousDateError(ValueError):
    """A column of dates that can be read in two ways; the message says which."""


def days_of(
    values: Sequence[object], timezone: str, formats: Sequence[str] = ()
) -> list[date | None]:
    """Return the date in each cell of a column, None where it is no date.

    Texts and whole numbers are read by `formats` (of strptime, or `NANOSECONDS`), or without any as
    in ISO 8601. Of several formats, the one that reads all cells counts, or else the one that reads
    most; AmbiguousDateError is raised where the first two that read all differ. Cells that are
    dates or moments already need no format; a moment with a time zone gets the date that it has in
    `timezone` (`_of_moments`).
    """
    if NANOSECONDS in formats:
        return _of_moments([_since_1970(value) for value in values], timezone)
    is_text = any(isinstance(value, str) for value in values)
    if formats and (is_text or any(_is_whole(value) for value in values)):
        return _in_one_format(values, formats)
    return _of_moments([_moment(value) for value in values], timezone)


def _of_moments(moments: Sequence[date | None], timezone: str) -> list[date | None]:
    """Return the dates of dates and moments.

    Moments with a time zone are instants, whose date is that of `timezone`, unless all of them are
    midnight, in UTC or as they are written: then the column holds dates, which some sources write
    as midnights of a zone that is not the exchange's.
    """
    instants = [
        moment for moment in moments if isinstance(moment, datetime) and moment.tzinfo is not None
    ]
    # Both are true where all are midnights of UTC that are written in UTC.
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
    if isinstance(value, str) or _is_whole(value):
        try:
            return datetime.fromisoformat(str(value).strip())
        except ValueError:
            return None
    return value if isinstance(value, date) else None


def _since_1970(value: object) -> datetime | None:
    """Return the moment of a number of nanoseconds since 1970, None for any other value."""
    text = str(value).strip()
    longest = 19  # digits of the largest number of nanoseconds in 64 bits
    if not text.isascii() or not text.isdigit() or len(text) > longest:
        return None
    return EPOCH + timedelta(microseconds=int(text) // 1000)


def _in_one_format(values: Sequence[object], formats: Sequence[str]) -> list[date | None]:
    """Return the dates in the cells by the one of several formats that reads all of them.

    Where none reads all, the format that reads most counts, and the cells that it cannot read are
    None. AmbiguousDateError is raised where the first two formats that read all differ.
    """
    written = [None if value is None else str(value).strip() for value in values]
    readings = {}
    for pattern in formats:
        days = [None if text is None else _parsed(text, pattern) for text in written]
        readings[pattern] = days
    cells = sum(text is not None for text in written)
    counts = {pattern: len(days) - days.count(None) for pattern, days in readings.items()}
    reading_all = [pattern for pattern in formats if counts[pattern] == cells]
    if len(reading_all) > 1:
        _refuse_two_readings(written, readings[reading_all[0]], readings[reading_all[1]])
    best = max(formats, key=lambda pattern: counts[pattern])
    return readings[best]


def _refuse_two_readings(
    written: Sequence[str | None], days: Sequence[date | None], others: Sequence[date | None]
) -> None:
    """Raise AmbiguousDateError for the first cell of which two formats give different dates."""
    for text, day, other in zip(written, days, others, strict=True):
        if day != other:
            raise AmbiguousDateError(f"{text!r} may be {day} or {other}")


@lru_cache(maxsize=100_000)  # the files of a folder share their dates
def _parsed(text: str, pattern: str) -> date | None:
    try:
        return _in_range(datetime.strptime(text, pattern).date())  # noqa: DTZ007 - a date
    except ValueError:
        return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_range(day: date | None) -> date | None:
    """Return a date, or None for one that 64 bits of nanoseconds do not hold."""
    if day is None or not FIRST_YEAR <= day.year <= LAST_YEAR:
        return None
    return day
