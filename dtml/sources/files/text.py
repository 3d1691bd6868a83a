"""Tables written as text: CSV with any separator, encoding and line ends."""

import codecs
import csv
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv

from dtml.markets.definition import Columns
from dtml.sources.files.cells import Cells, no_rows
from dtml.sources.files.containers import AdvisedError
from dtml.sources.files.dialects import dialects, header_key
from dtml.sources.files.header_rows import HEADER_ROWS, LABELS, has_header_rows, reshaped

SEPARATORS = (",", ";", "\t", "|")
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
WEB_PAGE = (b"<!doctype html", b"<html", b"<?xml")
JSON = (b"{", b"[")
OLD_WORKBOOK = b"\xd0\xcf\x11\xe0"  # the first bytes of an .xls file
LONGEST_FOOTER = 5  # lines
OTHER_ENCODING = (
    "if the text is not UTF-8, save it as UTF-8, or name its encoding in the market's file, such "
    'as [columns] encoding = "cp1252"'
)
FEWEST_WORDS = 4  # of a footer, which a row that was cut off does not have


def read_text(content: bytes, stated: Columns) -> Cells:
    """Return the cells of a text, all of them as text: as a number, `005930` would lose its zeros.

    `stated` is what the market's file says of the layout. Raises ValueError for what is no table,
    and for rows with more or fewer fields than the header (`AdvisedError`, with what to do); other
    errors of Arrow are raised as they are.
    """
    _refuse_other_formats(content)
    text = _in_utf8(content, stated.encoding)
    if b"\n" not in text:  # the line ends of old Macs
        text = text.replace(b"\r", b"\n")
    separator, text = _from_header(text, stated)
    text = _without_comments(text)
    header = _record(_first_line(text), separator)
    if not header:
        if not stated.skip_rows:
            raise ValueError("the file is empty")
        raise AdvisedError(
            f"the file is empty below the {stated.skip_rows} lines that [columns] skip_rows skips: "
            "correct skip_rows in the market's file, or download the file again"
        )
    # yfinance's CSVs have three header lines, the first of which begins with one of `LABELS`. For
    # all other files only the first line is split here, as their lines may be long.
    may_have_several = header_key(header[0]) in LABELS
    beginning = list(_first_records(text, separator, HEADER_ROWS if may_have_several else 1))
    has_several = has_header_rows(beginning)
    rows = _after_lines(text, HEADER_ROWS if has_several else 1)
    rows, left_out = _without_footer(rows, separator, len(header))
    table = _table(rows, separator, len(header))
    cells = Cells.of_table(header, table, separator=separator, left_out=left_out)
    return reshaped(beginning, cells) if has_several else cells


def _refuse_other_formats(content: bytes) -> None:
    """Raise ValueError for a web page, JSON or an old workbook, whatever the file's name."""
    beginning = content[:200].lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    if beginning.startswith(WEB_PAGE):
        raise AdvisedError(
            "this is a web page or XML, not a table: download the prices as CSV, Parquet or .xlsx"
        )
    if beginning.startswith(JSON):
        raise AdvisedError("this is JSON, not a table: save it as CSV or Parquet")
    if beginning.startswith(OLD_WORKBOOK):
        raise AdvisedError("this file is in the old Excel format (.xls): save it as .xlsx or CSV")


def _in_utf8(content: bytes, encoding: str | None) -> bytes:
    """Return a text in UTF-8 without a byte order mark.

    Its encoding is the first of these that applies: the one stated, that of its byte order mark,
    UTF-8, or the one in which its first line is the header of a dialect. Raises ValueError where
    none applies, or where another one than UTF-8 does not decode the text.
    """
    if encoding is not None:
        return _decoded(content, encoding).removeprefix("\ufeff").encode()
    if content.startswith(UTF16):
        return content.decode("utf-16").encode()
    if content.startswith(codecs.BOM_UTF8):
        return content[len(codecs.BOM_UTF8) :]
    # Only the header is tried. Bytes below it that are not UTF-8 are an error of Arrow's.
    first_line = content.partition(b"\n")[0]
    try:
        first_line.decode("utf-8")
    except UnicodeDecodeError as error:
        known = _encoding_of_header(first_line)
        if known is None:
            raise AdvisedError(f"{error}; {OTHER_ENCODING}") from error
        return content.decode(known).encode()
    return content


def _decoded(content: bytes, encoding: str) -> str:
    """Return a text in the encoding that the market's file states."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise AdvisedError(
            f"{error}; correct or delete [columns] encoding in the market's file"
        ) from error


def _encoding_of_header(first_line: bytes) -> str | None:
    """Return the encoding in which a line is the header of a dialect, or None."""
    for dialect in dialects():
        for encoding in dialect.encodings:
            header = first_line.decode(encoding, errors="replace")
            keys = {header_key(name) for name in next(csv.reader([header]), [])}
            if dialect.signature <= keys:
                return encoding
    return None


def _from_header(text: bytes, stated: Columns) -> tuple[str, bytes]:
    """Return the separator, and the text from its header on.

    Blank lines, comments and a line such as `sep=;`, which Excel reads, may stand above the header;
    as many lines as the market's file states in `skip_rows` are skipped first.
    """
    text = _after_lines(text, stated.skip_rows)
    separator = stated.separator
    while text:
        line = _first_line(text)
        if line.startswith("sep=") and len(line) <= len("sep=;"):
            separator = separator or line.removeprefix("sep=") or ","
        elif line.strip() and not _is_comment(text, separator):
            break
        text = _after_lines(text, 1)
    return separator or _separator(_first_line(text)), text


def _is_comment(text: bytes, separator: str | None) -> bool:
    """Say whether a text begins with a comment; a header may begin with # as well.

    A line with # is a header if it has as many fields as the first line below without one.
    """
    line = _first_line(text)
    if not line.startswith("#"):
        return False
    below = _after_lines(text, 1)
    while below.startswith(b"#"):
        below = _after_lines(below, 1)
    following = _first_line(below)
    mark = separator or _separator(following)
    return len(_record(line, mark)) != len(_record(following, mark))


def _separator(line: str) -> str:
    """Return the separator that gives a header the most fields, a comma for a single field.

    Raises ValueError where several give it as many.
    """
    counts = {separator: len(_record(line, separator)) for separator in SEPARATORS}
    most = max(counts.values())
    if most <= 1:
        return ","
    best = [separator for separator, count in counts.items() if count == most]
    if len(best) > 1:
        marks = " or ".join(repr(separator) for separator in best)
        raise AdvisedError(
            f"its fields may be separated by {marks}: leave only one of these in the header, or "
            'say which in the market\'s file, such as [columns] separator = ";"'
        )
    return best[0]


def _record(line: str, separator: str) -> list[str]:
    """Return the fields of a line, none of an empty one."""
    return next(csv.reader([line], delimiter=separator), [])


def _first_line(text: bytes) -> str:
    end = text.find(b"\n")
    line = text if end < 0 else text[:end]
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise AdvisedError(f"{error}; {OTHER_ENCODING}") from error


def _after_lines(text: bytes, lines: int) -> bytes:
    """Return a text without its first lines."""
    start = 0
    for _ in range(lines):
        end = text.find(b"\n", start)
        start = len(text) if end < 0 else end + 1
    return text[start:]


def _first_records(text: bytes, separator: str, count: int) -> Iterator[list[str]]:
    for _ in range(count):
        line = _first_line(text)
        if line:
            yield _record(line, separator)
        text = _after_lines(text, 1)


def _without_comments(text: bytes) -> bytes:
    """Return a text without the lines below its header that begin with #."""
    if b"\n#" not in text:
        return text
    header, *lines = text.split(b"\n")
    kept = [line for line in lines if not line.startswith(b"#")]
    return b"\n".join([header, *kept])


def _without_footer(text: bytes, separator: str, fields: int) -> tuple[bytes, str]:
    """Return the rows without a footer, and the words "the footer" with its text.

    A footer is the last lines, at most `LONGEST_FOOTER`, that are sentences. Without one, the words
    are empty. It is not looked for in a text with a single column, whose rows may be sentences too.
    """
    footer: list[str] = []
    rest = text.rstrip(b"\r\n")
    while fields > 1 and len(footer) < LONGEST_FOOTER:
        above, _, last_line = rest.rpartition(b"\n")
        words = last_line.decode("utf-8", errors="replace").strip()
        is_sentence = len(words.split()) >= FEWEST_WORDS
        if not is_sentence or len(_record(words, separator)) > 1:
            break
        footer.insert(0, words)
        rest = above.rstrip(b"\r\n")
    if not footer:
        return text, ""
    return rest + b"\n", f"the footer {' '.join(footer)!r}"


def _table(rows: bytes, separator: str, fields: int) -> pa.Table:
    """Return the rows as an Arrow table of text, with positions for names."""
    if not rows.strip():
        return no_rows(fields)
    names = [str(position) for position in range(fields)]
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(rows),
            # Only without threads do its errors name the row.
            read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=names),
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string())
            ),
        )
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise AdvisedError(f"{error}; {OTHER_ENCODING}") from error
        if "columns, got" in str(error):
            raise AdvisedError(
                f"{error}; give each row the {fields} fields of the header, with quotes around a "
                f"field that contains {separator!r}; download the file again if its end is cut off"
            ) from error
        raise
