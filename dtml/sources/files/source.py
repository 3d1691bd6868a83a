"""The source `files`: bars of a market in a file, an archive or a folder, and of its index."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from dtml.errors import UsageError
from dtml.markets import Constituent, Index, Market
from dtml.markets.definition import is_symbol
from dtml.prices.bars import bars_frame, no_bars
from dtml.sources import Fetched, Source
from dtml.sources.files.containers import Container, tables_of
from dtml.sources.files.layouts import is_no_price_table, shown
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
            how_many = "1 stock" if stocks == 1 else f"{stocks:,} stocks"
        else:
            how_many = "1 file"
        # `_reading` leaves "..." for the number.
        sentences.append(f"read as {reading.replace('...', how_many, 1)}")
    sentences += _closes_alone(files)
    sentences += _columns_left_out(files)
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


RECENT = 20  # last dates of the prices, whose median number of stocks is the usual one


class FileSource(Source):
    """The bars of `market` in `prices`, a file or a folder, and of its index in `index`.

    Without `index` the index is looked up among the prices. An index file that holds a single
    symbol is the market's index, whatever its name there. Files may use the market's symbols or
    Yahoo's; bars carry the market's. In a folder, a file without a column of symbols is named after
    its stock. Raises UsageError when a path does not exist or has another ending than a table's.
    """

    name = "files"

    def __init__(self, market: Market, prices: Path, index: Path | None = None) -> None:
        self._market = market
        self._prices = prices
        self._is_folder = prices.is_dir()
        listed: list[Index | Constituent] = [market.index, *market.constituents]
        self._market_symbols: dict[str, str] = {
            stock.source_symbol: stock.symbol for stock in listed
        }
        # A name that is both a symbol of Yahoo's and of the market's stays itself.
        self._market_symbols.update({stock.symbol: stock.symbol for stock in listed})
        self._tables = [self._table(container) for container in tables_of(prices)]
        self._is_folder |= len(self._tables) > 1  # an archive of several tables counts as a folder
        self._index = None if index is None else self._index_file(index)

    def symbols(self) -> list[str]:
        """Return the stocks found, sorted, under the market's symbols, without the index.

        A file of a folder that cannot be read counts as its stock.
        """
        symbols = set(self._files_by_symbol) | set(self._unreadable)
        for table in self._tables_with_symbols:
            symbols.update(self._market_symbol(written) for written in table.symbols())
        return sorted(symbols - {self._market.index.symbol})

    def last_session(self) -> date | None:
        """Return the last date of the prices, or that of the index's own file if it ends earlier.

        Raises UsageError, naming a row, when at most half of the usual number of stocks reach the
        last date of the prices: its date is wrong, or most of the prices are old. Raises it too
        where no file can be read, and for a row without a date.
        """
        tables = self._readable_tables
        # The rows of a date count its stocks, as a stock has one row for a date.
        sessions = np.concatenate([table.sessions for table in tables])
        dates, stocks = np.unique(sessions, return_counts=True)
        usual = np.median(stocks[-RECENT:])
        # Dates that more than half of the usual number of stocks have.
        reached_by_most = dates[stocks * 2 > usual]
        if reached_by_most[-1] < dates[-1]:
            reached = reached_by_most[-1]
            # The first such row of the table with the latest date.
            table = max(tables, key=TableFile.last_session)
            row = int(np.flatnonzero(table.sessions > reached)[0])
            symbol = f" ({shown(table.symbol_of(row))})" if table.has_symbols else ""
            day = table.sessions[row].astype("datetime64[D]")
            last_day = reached.astype("datetime64[D]")
            raise UsageError(
                f"{table.path}: data row {table.row_number(row)}{symbol} is dated {day}, after "
                f"{last_day}, the last date of most stocks: correct or delete the row if its date "
                "is wrong, or add the later rows of the other stocks; a command with --as-of "
                f"also runs with --as-of {last_day}"
            )
        last: date = dates[-1].astype("datetime64[D]").item()
        if self._index is None:
            return last
        return min(last, self._index.last_session())

    def remark(self) -> str | None:
        """Say how the files are read and what of them is left out; None where nothing is special.

        `remark_on` says what counts as special.
        """
        stocks = len(self.symbols())
        return remark_on([*self._readable_tables], self._index, self._left_out, stocks=stocks)

    def fields(self) -> set[str]:
        """Return the columns of bars that at least one of its files has."""
        files = [*self._readable_tables]
        if self._index is not None:
            files.append(self._index)
        held: set[str] = set()
        for file in files:
            held.update(file.layout.columns)
            if file.layout.dialect is not None:
                held.update(file.layout.dialect.copies)
        return held

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its own first session to `last`.

        A symbol without a bar is `no_data`, one whose file of a folder cannot be read `malformed`.
        Raises UsageError for prices of which no file can be read, for two files of one symbol, for
        an index file of several symbols without the index, for rows that are no daily bars of one
        stock, and for a value that is no date, symbol or number where one is expected.
        """
        earliest = min(first.values(), default=last)
        index = self._market.index.symbol
        tables = [*self._price_tables(first, earliest, last), no_bars()]
        if self._index is not None:  # its own file replaces what the prices hold of the index
            tables = [table[table["symbol"] != index] for table in tables]
            tables.append(self._index_table(self._index, earliest, last))
        # Tables without rows are left out, but for one that keeps the columns if none has rows; a
        # single table, which may be large, is not copied.
        filled = [table for table in tables if len(table)] or tables[:1]
        bars = pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]

        def missing(symbol: str) -> str:
            return f"no row from {first[symbol]} to {last} in {self._place(symbol)}"

        fetched = Fetched.of(bars, first, missing)
        why = fetched.outcomes["symbol"].map(self._unreadable)
        is_malformed = why.notna() & (fetched.outcomes["status"] == "no_data")
        if not is_malformed.any():
            return fetched
        outcomes = fetched.outcomes.copy()
        outcomes.loc[is_malformed, "status"] = "malformed"
        outcomes.loc[is_malformed, "detail"] = why[is_malformed]
        return Fetched(fetched.bars, outcomes)

    @cached_property
    def _faults(self) -> dict[Path, UsageError]:
        """The tables of a folder that cannot be read, with the error of each.

        Raises the error of a single file, or of the first one where none can be read.
        """
        faults: dict[Path, UsageError] = {}
        for table in self._tables:
            try:
                table.require_prices(with_symbol=not self._is_folder)
            except UsageError as error:
                faults[table.path] = error
        if len(faults) == len(self._tables):
            raise next(iter(faults.values()))
        return faults

    @cached_property
    def _readable_tables(self) -> list[TableFile]:
        return [table for table in self._tables if table.path not in self._faults]

    @cached_property
    def _tables_with_symbols(self) -> list[TableFile]:
        """The readable tables with a column of symbols; a single file must have one."""
        if not self._is_folder:
            return self._readable_tables
        return [table for table in self._readable_tables if table.has_symbols]

    @cached_property
    def _files_by_symbol(self) -> dict[str, TableFile]:
        """The tables of a folder that are named after their stock, by the market's symbol.

        Raises UsageError for two tables of one symbol.
        """
        if not self._is_folder:
            return {}
        named = [table for table in self._readable_tables if not table.has_symbols]
        symbols = [self._market_symbol(table.stem) for table in named]
        for symbol, times in Counter(symbols).items():
            if times > 1:
                files = [
                    str(table.path) for table in named if self._market_symbol(table.stem) == symbol
                ]
                raise UsageError(
                    f"{self._prices}: {' and '.join(files)} hold the same symbol, {symbol}; keep "
                    "one of them"
                )
        return dict(zip(symbols, named, strict=True))

    @cached_property
    def _unreadable(self) -> dict[str, str]:
        """Why the file of a stock cannot be read, by the market's symbol.

        Files that are no tables of prices, or whose name is no symbol, are left out.
        """
        unreadable = {}
        for table in self._tables:
            is_stock = table.path in self._faults and table.path not in self._strangers
            # `table.stem` would need the layout, which may be what cannot be read.
            stem = table.partitions.get("symbol") or table.container.stem
            symbol = self._market_symbol(stem)
            if is_stock and is_symbol(symbol):
                unreadable[symbol] = str(self._faults[table.path])
        return unreadable

    @cached_property
    def _strangers(self) -> set[Path]:
        """The files of a folder that are no tables of prices: they count as no stock."""
        return {table.path for table in self._tables if is_stranger(table)}

    @property
    def _left_out(self) -> dict[str, str]:
        """The files of a folder that are not read, each with the reason."""
        return {
            str(path): str(error).removeprefix(f"{path}: ") for path, error in self._faults.items()
        }

    def _price_tables(
        self, first: Mapping[str, date], earliest: date, last: date
    ) -> Iterator[pd.DataFrame]:
        """Yield a bars frame for each table of prices, under the market's symbols.

        Of tables with a column of symbols only the rows of the symbols in `first` are read; of
        tables named after their stock, only those of these symbols. All bars are from `earliest` to
        `last`: `fetch` drops those before a symbol's own first session.
        """
        for table in self._tables_with_symbols:
            symbol_of = {written: self._market_symbol(written) for written in table.symbols()}
            asked_for = [written for written, symbol in symbol_of.items() if symbol in first]
            rows = table.rows(earliest, last, with_symbol=True, only=asked_for)
            yield bars_frame(rows.assign(symbol=rows["symbol"].map(symbol_of)))
        for symbol, table in self._files_by_symbol.items():
            if symbol in first:
                rows = table.rows(earliest, last, with_symbol=False)
                yield bars_frame(rows.assign(symbol=symbol))

    def _index_table(self, table: TableFile, earliest: date, last: date) -> pd.DataFrame:
        """Read the bars of the index from its own file, under the market's symbol of the index.

        A file without symbols, or with a single one whatever its name, holds the index alone.
        Raises UsageError if the file has several symbols, none of which is the index.
        """
        index = self._market.index
        symbols = table.symbols()
        has_several = len(symbols) > 1
        rows = table.rows(earliest, last, with_symbol=has_several)
        if has_several:
            of_index = {index.symbol, index.source_symbol}.intersection(symbols)
            if not of_index:
                raise UsageError(
                    f"{table.path}: none of the {len(symbols)} symbols in the file, such as "
                    f"{shown(symbols[0])}, is the index {index.symbol}: rename the index in the "
                    f"file to {index.symbol}; or write its symbol from the file into the market's "
                    "file, as source_symbol under [index] or, for a second source, in "
                    "[second_source.symbols]; or give a file of the index alone"
                )
            rows = rows[rows["symbol"].isin(of_index)]
        return bars_frame(rows.assign(symbol=index.symbol))

    def _place(self, symbol: str) -> Path:
        """Return the path where the bars of a symbol are looked for."""
        if self._index and symbol == self._market.index.symbol:
            return self._index.path
        return self._prices

    def _market_symbol(self, symbol: str) -> str:
        """Return the market's symbol for one of Yahoo's; a name that is both stays itself."""
        return self._market_symbols.get(symbol, symbol)

    def _table(self, container: Container, *, is_index: bool = False) -> TableFile:
        return TableFile(
            container=container,
            timezone=self._market.timezone,
            stated=self._market.columns,
            is_stated_optional=is_index,
            zero_filled=self._zero_filled,
        )

    def _index_file(self, index: Path) -> TableFile:
        containers = [] if index.is_dir() else tables_of(index)
        if len(containers) != 1:
            found = "a folder: give the file in it that holds the index"
            if containers:
                found = (
                    f"an archive of {len(containers)} tables: unpack it, and give the file that "
                    "holds the index"
                )
            raise UsageError(
                f"{index}: the index must come from a file with one table, but this is {found}"
            )
        return self._table(containers[0], is_index=True)

    @cached_property
    def _zero_filled(self) -> dict[str, str]:
        """The listed symbols of digits by what a spreadsheet leaves of them: 5930 for 005930."""
        numbers = [symbol for symbol in self._market_symbols if symbol.isdigit()]
        left = [symbol.lstrip("0") for symbol in numbers]
        counts = Counter(left)
        # Digits that two symbols leave could mean either; nothing is left of a symbol of zeros.
        return {
            short: symbol
            for short, symbol in zip(left, numbers, strict=True)
            if counts[short] == 1 and short
        }


def is_stranger(table: TableFile) -> bool:
    """Say whether a file is no table of prices at all, such as a list of names or a note."""
    try:
        return is_no_price_table(table.layout)
    except UsageError:
        return table.container.is_note
