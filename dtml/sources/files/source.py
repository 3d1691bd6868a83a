"""The source `files`: bars of a market in a file, an archive or a folder, and of its index."""

from collections import Counter
from collections.abc import Mapping
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dtml.errors import UsageError
from dtml.markets import Constituent, Index, Market
from dtml.markets.definition import Columns, is_symbol
from dtml.pages.figures import counted
from dtml.prices.bars import no_bars
from dtml.sources import Fetched, Source
from dtml.sources.files.containers import Container, tables_of
from dtml.sources.files.price_file import PriceFile, partitions, read_price_file
from translation.definitions import shown

MISSING = {
    "adj_close": "no adjusted close",
    "volume": "no volume",
    "dividend": "no dividends",
}
CLOSES_ALONE = (
    "open, high and low are the close, so a trade at the next open is one at the next close"
)
MOST = 3  # files or columns that are named
RECENT = 20  # last dates of the prices, whose median number of stocks is the usual one


class FileSource(Source):
    """The bars of `market` in `prices`, a file or a folder, and of its index in `index` or there.

    An index file of a single symbol is the index. Files use the market's symbols, Yahoo's, or their
    own names. Raises UsageError for a missing path or another ending than a table's.
    """

    name = "files"

    def __init__(self, market: Market, prices: Path, index: Path | None = None) -> None:
        self._market = market
        self._prices = prices
        self._containers = tables_of(prices)
        # An archive of several tables counts as a folder.
        self._is_folder = prices.is_dir() or len(self._containers) > 1
        listed: list[Index | Constituent] = [market.index, *market.constituents]
        self._market_symbols = {stock.source_symbol: stock.symbol for stock in listed}
        # A name that is both a symbol of Yahoo's and of the market's stays itself.
        self._market_symbols.update({stock.symbol: stock.symbol for stock in listed})
        numbers = pd.Series([name for name in self._market_symbols if name.isdigit()], dtype=str)
        # What a spreadsheet leaves of symbols of digits: 5930 of 005930. What two symbols leave
        # could mean either; nothing is left of a symbol of zeros.
        left = numbers.str.lstrip("0")
        is_sure = (left != "") & ~left.duplicated(keep=False)
        self._zero_filled = dict(zip(left[is_sure], numbers[is_sure], strict=True))
        self._index_container = None if index is None else _container_of_index(index)

    def symbols(self) -> list[str]:
        """Return the stocks found, sorted, as the market's, even of unreadable files."""
        symbols = set(self._read.malformed)
        symbols.update(symbol for file in self._files for symbol in file.symbols())
        return sorted(symbols - {self._market.index.symbol})

    def last_session(self) -> date:
        """Return the last date of the prices, or of the index's own file if it ends earlier.

        Raises UsageError where at most half of the usual number of stocks reach it, no file can be
        read, or a row has no date.
        """
        # The rows of a date count its stocks, as a stock has one row for a date.
        sessions = np.concatenate([file.sessions for file in self._files])
        dates, stocks = np.unique(sessions, return_counts=True)
        # The last date that more than half of the usual number of stocks have.
        reached = dates[stocks * 2 > np.median(stocks[-RECENT:])][-1]
        max(self._files, key=lambda file: file.sessions.max()).require_none_after(reached)
        last = reached if self._index is None else min(reached, self._index.sessions.max())
        return pd.Timestamp(last).date()

    def remark(self) -> str | None:
        """Say in which layout files are read, what is left out and made up, if anything."""
        files = self._files_and_index
        of_prices = [_reading(file) for file in self._files]
        counts = Counter(
            _reading(file)
            for file in files
            if file.layout.dialect.title or file.layout.has_closes_alone
        )
        sentences = []
        for (title, details), count in counts.items():
            how_many = counted(count, "file")
            if count == 1 and of_prices == [(title, details)]:
                how_many = counted(len(self.symbols()), "stock")
            sentences.append(f"read as {title}, {how_many}{details}")
        columns = {name: ours for file in files for name, ours in file.layout.left_out().items()}
        for name, ours in list(columns.items())[:MOST]:
            sentences.append(
                f"the column {name!r} is left out: if it is the {ours}, say in the market's file "
                f'[columns] {ours} = "{name}"'
            )
        if len(columns) > MOST:
            sentences.append(f"{len(columns) - MOST} more columns are left out")
        restored = {name: full for file in files for name, full in file.restored_symbols().items()}
        if restored:
            name, full = next(iter(restored.items()))
            sentences.append(
                f"leading zeros of {counted(len(restored), 'symbol')} are restored as the market "
                f"lists them, such as {name} as {full}"
            )
        faults = self._read.faults
        if faults:
            named = [
                f"{place} ({str(error).removeprefix(f'{place}: ')})"
                for place, error in list(faults.items())[:MOST]
            ]
            more = f" and {len(faults) - MOST} more" if len(faults) > MOST else ""
            sentences.append(f"left out: {', '.join(named)}{more}")
        return "; ".join(sentences) or None

    def fields(self) -> set[str]:
        """Return the columns of bars that at least one of its files has."""
        return set().union(*(file.layout.held for file in self._files_and_index))

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return the bars of each symbol from its own first session to `last`.

        Without: `no_data`, or `malformed` for a file that cannot be read. Raises UsageError where
        none can, for two files of one symbol, an index file without the index, rows that are no
        daily bars of one stock, and wrong values.
        """
        earliest = min(first.values(), default=last)
        index = self._market.index.symbol
        asked = set(first)
        tables = [no_bars()]
        if self._index is not None:  # its own file replaces what the prices hold of the index
            asked.discard(index)
            tables.append(self._bars_of_index(self._index, earliest, last))
        files = [file for file in self._files if not asked.isdisjoint(file.symbols())]
        tables += [file.bars(earliest, last, asked) for file in files]
        # A single table, which may be large, is not copied.
        filled = [table for table in tables if len(table)] or tables[:1]
        bars = pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]

        def missing(symbol: str) -> str:
            own_file = self._index if symbol == index else None
            place = self._prices if own_file is None else own_file.place
            return f"no row from {first[symbol]} to {last} in {place}"

        return Fetched.of(bars, first, missing, self._read.malformed)

    @cached_property
    def _read(self) -> "_Read":
        """The files of prices; raises where none can be read, and for two of one stock."""
        read = _Read([], {}, {})
        for container in self._containers:
            file = None
            try:
                file = self._file(container, self._market.columns)
                file.require_prices(with_symbol=not self._is_folder)
                read.files.append(file)
            except UsageError as error:
                read.faults[container.place] = error
                # A list of names or a note, which count as no stock.
                is_note = file is None and ".txt" in container.place.name.lower()
                is_list = file is not None and not file.layout.has_prices
                of_folder = partitions(container, self._market.columns).get("symbol")
                stem = of_folder or container.stem
                symbol = self._market_symbols.get(stem, stem)
                if is_symbol(symbol) and not is_note and not is_list:
                    read.malformed[symbol] = str(error)
        if not read.files:
            raise next(iter(read.faults.values()))
        seen: dict[str | Path, PriceFile] = {}
        for file in read.files:
            container = file.table.container
            name = container.place.with_name(container.stem)  # AAA.csv and AAA.parquet are one
            other = seen.setdefault(name if file.has_symbols else file.symbols()[0], file)
            if other is not file:
                raise UsageError(
                    f"{self._prices}: {other.place} and {file.place} hold the same table or stock; "
                    "keep one of them"
                )
        return read

    @property
    def _files(self) -> list[PriceFile]:
        return self._read.files

    @property
    def _files_and_index(self) -> list[PriceFile]:
        return self._files if self._index is None else [*self._files, self._index]

    @cached_property
    def _index(self) -> PriceFile | None:
        """The index's own file, in the stated layout or our own; raises the error of the former."""
        if self._index_container is None:
            return None
        faults = []
        for stated in (self._market.columns, Columns()):
            try:
                file = self._file(self._index_container, stated)
                file.require_prices(with_symbol=False)
                file.require_closes()
            except UsageError as error:
                faults.append(error)
            else:
                return file
        raise faults[0]

    def _bars_of_index(self, file: PriceFile, earliest: date, last: date) -> pd.DataFrame:
        """Return the index's bars in its own file, whatever its name if it is alone there."""
        index = self._market.index
        symbols = file.symbols()
        if len(symbols) > 1 and index.symbol not in symbols:
            raise UsageError(
                f"{file.place}: none of the {len(symbols)} symbols in the file, such as "
                f"{shown(symbols[0])}, is the index {index.symbol}: rename the index in the file "
                f"to {index.symbol}; or write its symbol from the file into the market's file, as "
                "source_symbol under [index] or, for a second source, in [second_source.symbols]; "
                "or give a file of the index alone"
            )
        asked = symbols if len(symbols) == 1 else [index.symbol]
        return file.bars(earliest, last, asked).assign(symbol=index.symbol)

    def _file(self, container: Container, stated: Columns) -> PriceFile:
        return read_price_file(
            container, stated, self._market.timezone, self._market_symbols, self._zero_filled
        )


class _Read(NamedTuple):
    """The files of prices that can be read, and the errors of others, `malformed` by symbol."""

    files: list[PriceFile]
    faults: dict[Path, UsageError]
    malformed: dict[str, str]


def _reading(file: PriceFile) -> tuple[str, str]:
    """Return the title of a file's layout, and in brackets what the file lacks and its remark."""
    parts = [words for name, words in MISSING.items() if name not in file.layout.held]
    if file.layout.has_closes_alone:
        parts.append(CLOSES_ALONE)
    if file.layout.dialect.remark:
        parts.append(file.layout.dialect.remark)
    return file.layout.dialect.title or "our own layout", f" ({', '.join(parts)})" if parts else ""


def _container_of_index(index: Path) -> Container:
    containers = [] if index.is_dir() else tables_of(index)
    if len(containers) != 1:
        raise UsageError(
            f"{index}: the index must come from a file with one table: give the file that holds "
            "it, unpacked where it lies in an archive of several"
        )
    return containers[0]
