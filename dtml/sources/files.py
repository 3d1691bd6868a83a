"""Bars from files: parquet or CSV, plain or gzipped; one long table, or a folder with one file for each
symbol.

Column names are those of `dtml.prices.bars.BAR_COLUMNS` in any case, or the other names in
`dtml.sources.tables.NAMES`. A file can be wrong but it cannot run code: parquet and CSV hold values only, and
a symbol is looked up among the files of a folder, never made into a path.
"""

from collections.abc import Mapping
from datetime import date
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from dtml.errors import UsageError
from dtml.markets import Market
from dtml.prices.bars import bars_frame, no_bars
from dtml.sources import OUTCOME_COLUMNS, Fetched
from dtml.sources.tables import SUFFIXES, TableFile, stem_of


class FileSource:
    """The bars of `market` in `prices`, a file or a folder, and of its index in `index`.

    Without `index` the index is looked for among the prices. An index file that holds a single symbol is the
    market's index, whatever it is called there. Files may use the market's symbols or Yahoo's; bars carry the
    market's. Raises UsageError when a path is not there or has an ending that is not one of `SUFFIXES`.
    """

    name = "files"

    def __init__(self, market: Market, prices: Path, index: Path | None = None) -> None:
        self._market = market
        self._prices = prices
        self._by_symbol = _folder(prices, market.timezone) if prices.is_dir() else {}
        self._long = None if prices.is_dir() else _file(prices, market.timezone)
        self._index = None if index is None else _file(index, market.timezone)

    def symbols(self) -> list[str]:
        """Stocks found, sorted, under the market's symbols; the index is not among them."""
        found = self._by_symbol if self._long is None else self._long.symbols()
        return sorted({self._own(symbol) for symbol in found} - {self._market.index.symbol})

    def last_session(self) -> date | None:
        """The last date that both the prices and the index reach."""
        files = self._by_symbol.values() if self._long is None else [self._long]
        last = max(file.last_session() for file in files)
        return last if self._index is None else min(last, self._index.last_session())

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Bars of each symbol from its own first session to `last`; a symbol without one is `no_data`.

        Raises UsageError for a file that cannot be read, lacks a required column or holds something that is
        no date, symbol or number where one is due.
        """
        earliest = min(first.values(), default=last)
        index = self._market.index.symbol
        tables = list(self._price_tables(first, earliest, last))
        if self._index is not None:
            tables = [table[table["symbol"] != index] for table in tables]
            tables.append(self._index_table(self._index, earliest, last))
        bars = pd.concat(tables, ignore_index=True)
        starts = pd.to_datetime(bars["symbol"].map(dict(first)))
        bars = bars[bars["session"] >= starts].reset_index(drop=True)
        return Fetched(bars=bars, outcomes=self._outcomes(bars, first, last))

    def _price_tables(self, first: Mapping[str, date], earliest: date, last: date) -> list[pd.DataFrame]:
        """Bars of the prices under the market's symbols; of a folder, only the files asked for are read."""
        if self._long is not None:
            rows = self._long.rows(earliest, last, with_symbol=True)
            own = {symbol: self._own(symbol) for symbol in rows["symbol"].unique()}
            return [bars_frame(rows.assign(symbol=rows["symbol"].map(own)))]
        asked = [(self._own(stem), file) for stem, file in self._by_symbol.items() if self._own(stem) in first]
        tables = [
            bars_frame(file.rows(earliest, last, with_symbol=False).assign(symbol=symbol)) for symbol, file in asked
        ]
        return tables or [no_bars()]

    def _index_table(self, file: TableFile, earliest: date, last: date) -> pd.DataFrame:
        """Bars of the index file under the market's symbol of its index."""
        index = self._market.index
        held = file.symbols()
        rows = file.rows(earliest, last, with_symbol=len(held) > 1)
        if len(held) > 1:
            named = {index.symbol, index.source_symbol}.intersection(held)
            if not named:
                raise UsageError(f"{file.path}: {len(held)} symbols and none of them is the index {index.symbol}")
            rows = rows[rows["symbol"].isin(named)]
        return bars_frame(rows.assign(symbol=index.symbol))

    def _outcomes(self, bars: pd.DataFrame, first: Mapping[str, date], last: date) -> pd.DataFrame:
        rows = bars["symbol"].value_counts()
        outcomes = pd.DataFrame({"symbol": list(first), "rows": [int(rows.get(symbol, 0)) for symbol in first]})
        found = outcomes["rows"] > 0
        missing = [f"no row from {day} to {last} in {self._place(symbol)}" for symbol, day in first.items()]
        outcomes["status"] = np.where(found, "ok", "no_data")
        outcomes["detail"] = np.where(found, "", missing)
        return outcomes[list(OUTCOME_COLUMNS)]

    def _place(self, symbol: str) -> Path:
        """The file or folder that should have held a symbol."""
        if self._index is not None and symbol == self._market.index.symbol:
            return self._index.path
        return self._prices

    def _own(self, symbol: str) -> str:
        return self._own_symbols.get(symbol, symbol)

    @cached_property
    def _own_symbols(self) -> dict[str, str]:
        """The market's symbols by Yahoo's; a name that is both stays itself."""
        index, members = self._market.index, self._market.constituents
        pairs = [(index.source_symbol, index.symbol), *((each.source_symbol, each.symbol) for each in members)]
        return dict(pairs) | {symbol: symbol for _, symbol in pairs}


def _file(path: Path, timezone: str) -> TableFile:
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    if not path.name.lower().endswith(SUFFIXES):
        raise UsageError(f"{path}: the ending is none of {', '.join(SUFFIXES)}")
    return TableFile(path, timezone)


def _folder(folder: Path, timezone: str) -> dict[str, TableFile]:
    """The files of a folder by the symbol that each is named after."""
    files: dict[str, TableFile] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.lower().endswith(SUFFIXES):
            continue
        if stem_of(path) in files:
            other = files[stem_of(path)].path.name
            raise UsageError(f"{folder}: {other} and {path.name} are of one symbol; keep one")
        files[stem_of(path)] = TableFile(path, timezone)
    if not files:
        raise UsageError(f"{folder}: the folder holds no file that ends in {', '.join(SUFFIXES)}")
    return files
