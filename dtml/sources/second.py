"""A market's second source: the same bars as another feed gives them, to be compared."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import TypeVar

from dtml.errors import UsageError
from dtml.markets import Constituent, Index, Market
from dtml.prices.bars import BAR_COLUMNS, PRICES
from dtml.sources import Fetched, Source, open_source
from dtml.sources.files import FileSource

IN_CURRENCY = (*PRICES, "adj_close", "dividend")  # columns of bars
# The table that describes the files of prices, which errors name, and that of a second source.
TABLE_OF_PRICES = "[columns]"
OWN_TABLE = "[second_source.columns]"
Listed = TypeVar("Listed", Index, Constituent)


@dataclass(frozen=True)
class SecondFeed(Source):
    """A source that gives its bars under the market's symbols and in the market's currency.

    `names` has the source's own symbol for each that it calls otherwise.
    """

    source: Source
    names: Mapping[str, str]
    price_unit: float = 1.0

    @property
    def name(self) -> str:
        """Return the name of the source."""
        return self.source.name

    def fields(self) -> set[str]:
        """Return the columns of bars that it may have: of files, those that at least one has."""
        if not isinstance(self.source, FileSource):
            return set(BAR_COLUMNS)
        with _naming_its_columns():
            return self.source.fields()

    def fetch(self, first: Mapping[str, date], last: date) -> Fetched:
        """Return each symbol's bars, in the market's terms, from its first session to `last`."""
        asked = {self.names.get(symbol, symbol): day for symbol, day in first.items()}
        with _naming_its_columns():
            answer = self.source.fetch(asked, last)
        symbol_of = {self.names.get(symbol, symbol): symbol for symbol in first}
        bars = answer.bars[answer.bars["symbol"].isin(list(symbol_of))].reset_index(drop=True)
        bars["symbol"] = bars["symbol"].map(symbol_of)
        if self.price_unit != 1:
            bars[list(IN_CURRENCY)] *= self.price_unit
        outcomes = answer.outcomes.assign(
            symbol=answer.outcomes["symbol"].map(symbol_of),
            detail=answer.outcomes["detail"].str.replace(TABLE_OF_PRICES, OWN_TABLE, regex=False),
        )
        return Fetched(bars=bars, outcomes=outcomes)


@contextmanager
def _naming_its_columns() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        message = str(error).replace(TABLE_OF_PRICES, OWN_TABLE)
        raise UsageError(message) from error


def open_second_source(market: Market) -> SecondFeed:
    """Return the second source of a market that names one.

    Raises UsageError as `open_source`, and where one symbol of it means two of the market's.
    """
    second = market.second_source
    assert second is not None
    names = _names(market)
    # The market under the second source's symbols, with the layout of the second source's files.
    renamed_market = replace(
        market,
        index=_renamed(market.index, names),
        constituents=tuple(_renamed(stock, names) for stock in market.constituents),
        columns=second.columns,
    )
    source = open_source(second.source, renamed_market, prices=second.prices, index=second.index)
    return SecondFeed(source=source, names=names, price_unit=second.price_unit)


def _renamed(stock: Listed, names: Mapping[str, str]) -> Listed:
    name = names.get(stock.symbol)
    return stock if name is None else replace(stock, symbol=name, source_symbol=name)


def _names(market: Market) -> dict[str, str]:
    """Return the second source's symbols by the market's, where the market's file gives them.

    They are listed in `symbols`, or are a stock's symbol with the `suffix`. Symbols that both
    sources share may be missing. Raises UsageError where one would mean two of the market's.
    """
    second = market.second_source
    assert second is not None
    names = dict(second.symbols)
    if second.suffix is not None:
        for symbol in market.symbols:
            names.setdefault(symbol, symbol + second.suffix)
    owners: dict[str, set[str]] = {}
    listed: list[Index | Constituent] = [market.index, *market.constituents]
    for stock in listed:
        # Without a name of its own, a stock is asked for under its symbol or source symbol.
        own = names.get(stock.symbol)
        for name in (stock.symbol, stock.source_symbol) if own is None else (own,):
            owners.setdefault(name, set()).add(stock.symbol)
    for symbol, name in names.items():
        others = owners[name] - {symbol}
        if others:
            raise UsageError(
                f"market {market.name}: [second_source] gives {symbol} the symbol {name!r}, which "
                f"is also that of {min(others)}: give each of the two a symbol of its own in "
                "[second_source.symbols]"
            )
    return names
