"""The numbers in the cells of a file, however they are written."""

import re
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

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
        texts = _without_thousands(texts, number_format)
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


def _without_thousands(texts: pd.Series, number_format: NumberFormat) -> pd.Series:
    """Remove the marks of numbers whose groups have three digits each; the others keep them."""
    mark = re.escape(number_format.thousands)
    is_grouped = texts.str.match(rf"[+-]?\d{{1,3}}({mark}\d{{3}})+(?!\d)", na=False)
    plain = texts.str.replace(number_format.thousands, "", regex=False)
    return texts.where(~is_grouped, plain)


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
