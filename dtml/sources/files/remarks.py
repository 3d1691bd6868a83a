"""What is said of files: as what they are read, and what of them is left out."""

from collections import Counter
from collections.abc import Mapping, Sequence

from dtml.sources.files.tables import TableFile

MISSING = {
    "adj_close": "no adjusted close",
    "volume": "no volume",
    "dividend": "no dividends",
}
CLOSES_ALONE = (
    "open, high and low are the close, so a trade at the next open is one at the next close"
)
MOST = 3  # files or columns that are named


def remark_on(
    tables: Sequence[TableFile],
    index: TableFile | None,
    unread: Mapping[str, str],
    *,
    stocks: int,
) -> str | None:
    """Say in which layout files are read, what of them is left out, and what is made up.

    Open, high and low are made up where there are closes alone, and the leading zeros of symbols
    are restored. The result is None if there is nothing of this to say, and all files are in our
    own layout. `tables` are the files of the `stocks` stocks, and `index` is the index's own file,
    None without one. `unread` are the files that cannot be read, each with the reason.
    """
    files = [*tables] if index is None else [*tables, index]
    in_dialects = [file for file in files if file.layout.dialect is not None]
    counts = Counter(_reading(file) for file in in_dialects)
    # What is said of a single file of prices gives the number of its stocks, not that of files.
    has_one_table_in_dialect = len(tables) == 1 and tables[0].layout.dialect is not None
    reading_of_stocks = _reading(tables[0]) if has_one_table_in_dialect else None
    sentences = []
    for reading, count in counts.items():
        if count > 1:
            how_many = f"{count} files"
        elif reading == reading_of_stocks:
            how_many = _stocks(stocks)
        else:
            how_many = "1 file"
        # `_reading` leaves "..." for the number.
        sentences.append(f"read as {reading.replace('...', how_many, 1)}")
    sentences += _closes_alone(files)
    sentences += _columns_left_out(files)
    footers = sorted({f"{file.left_out} is left out" for file in files if file.left_out})
    sentences += _first(footers, "footers")
    restored = {short: full for file in files for short, full in file.restored_symbols().items()}
    if restored:
        short, full = next(iter(restored.items()))
        how_many = "1 symbol" if len(restored) == 1 else f"{len(restored)} symbols"
        sentences.append(
            f"leading zeros of {how_many} are restored as the market lists them, such as {short} "
            f"as {full}"
        )
    if unread:
        named = [f"{name} ({reason})" for name, reason in list(unread.items())[:MOST]]
        more = f" and {len(unread) - MOST} more" if len(unread) > MOST else ""
        sentences.append(f"left out: {', '.join(named)}{more}")
    return "; ".join(sentences) or None


def _stocks(stocks: int) -> str:
    return "1 stock" if stocks == 1 else f"{stocks:,} stocks"


def _reading(file: TableFile) -> str:
    """Return the title of a file's dialect, and in brackets what the file lacks and its remark.

    An example is `Stooq, ... (no adjusted close, no dividends)`. In the place of "..." the caller
    puts the number of files or stocks. The file must be in a dialect, not in our own layout.
    """
    known = file.layout.dialect
    assert known is not None
    # A dialect may fill one of our columns with the values of another (`copies`).
    held = {*file.layout.columns, *known.copies}
    parts = [words for name, words in MISSING.items() if name not in held]
    if file.layout.has_closes_alone:
        parts.append(CLOSES_ALONE)
    if known.remark:
        parts.append(known.remark)
    details = f" ({', '.join(parts)})" if parts else ""
    return f"{known.title}, ...{details}"


def _closes_alone(files: Sequence[TableFile]) -> list[str]:
    """Return a sentence on the files in our own layout that have no open, high or low."""
    named = [
        str(file.path)
        for file in files
        if file.layout.dialect is None and file.layout.has_closes_alone
    ]
    if not named:
        return []
    more = f" and {len(named) - 1} more files" if len(named) > 1 else ""
    return [f"closes alone in {named[0]}{more}: {CLOSES_ALONE}"]


def _columns_left_out(files: Sequence[TableFile]) -> list[str]:
    """Return a sentence for each column that seems to be one that is missing."""
    columns = {name: field for file in files for name, field in file.layout.left_out().items()}
    sentences = [
        f"the column {name!r} is left out: if it is the {field}, say in the market's file "
        f'[columns] {field} = "{name}"'
        for name, field in columns.items()
    ]
    return _first(sentences, "columns")


def _first(sentences: list[str], noun: str) -> list[str]:
    """Return the first sentences, at most `MOST`, and how many more things there are."""
    more = len(sentences) - MOST
    return [*sentences[:MOST], f"{more} more {noun} are left out"] if more > 0 else sentences
