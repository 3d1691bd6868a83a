"""What a market's file says of its second source, and its bars under the market's symbols."""

import re

import pytest

from dtml.errors import UsageError
from dtml.markets import load_market_file
from dtml.markets.definition import COMPARED_FIELDS
from dtml.prices.bars import PRICES
from dtml.sources.second import open_second_source
from tests.support.price_files import FIRST, LAST, long, write_csv

MARKET = """
title = "Mine"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
source = "yahoo"
[index]
symbol = "INDEX"
source_symbol = "^IDX"
name = "The index"
[constituents]
as_of = 2024-01-02
symbols = ["AAA", { symbol = "BRKB", source_symbol = "BRK-B" }, "005930"]
"""


def market(folder, second):
    file = folder / "mine.toml"
    file.write_text(f"{MARKET}[second_source]\n{second}", encoding="utf-8")
    return load_market_file(file)


def closes(folder, second):
    """The last close of each symbol that the second source has, in thousandths."""
    source = open_second_source(market(folder, second))
    answer = source.fetch(dict.fromkeys(("INDEX", "AAA", "BRKB", "005930"), FIRST), LAST)
    assert set(answer.outcomes["symbol"]) == {"INDEX", "AAA", "BRKB", "005930"}
    last = answer.bars.sort_values("session").groupby("symbol")["close"].last()
    return {str(symbol): round(float(close), 3) for symbol, close in last.items()}


def write(folder, *symbols, unit=1.0):
    table = long(symbols)
    names = [*PRICES, "adj_close"]
    table[names] = table[names] * unit
    write_csv(table, folder / "second.csv")
    return table


SAME = {"AAA": 51.5, "BRKB": 62.0, "005930": 72.5, "INDEX": 83.0}
OF_FILES = 'source = "files"\nprices = "second.csv"\n'


@pytest.mark.parametrize(
    ("symbols", "settings"),
    [
        (("AAA", "BRK-B", "005930", "^IDX"), ""),
        (("AAA", "BRKB", "005930", "INDEX"), ""),
        (("AAA.US", "BRKB.US", "005930.US", "INDEX"), 'suffix = ".US"\n'),
        (
            ("AAA.US", "BRK B", "005930.US", "SPX"),
            'suffix = ".US"\n[second_source.symbols]\nBRKB = "BRK B"\nINDEX = "SPX"\n',
        ),
        # What one source calls AAA, the other calls BRKB, and the other way round.
        (
            ("BRKB", "AAA", "005930", "INDEX"),
            '[second_source.symbols]\nBRKB = "AAA"\nAAA = "BRKB"\n',
        ),
    ],
)
def test_the_second_source_s_bars_come_under_the_market_s_symbols(tmp_path, symbols, settings):
    write(tmp_path, *symbols)
    assert closes(tmp_path, OF_FILES + settings) == SAME


def test_prices_are_brought_into_the_market_s_currency_and_columns_have_their_own_names(tmp_path):
    table = write(tmp_path, "AAA", "BRKB", "005930", "INDEX", unit=100)
    write_csv(table.rename(columns={"close": "last"}), tmp_path / "second.csv")
    settings = 'price_unit = 0.01\n[second_source.columns]\nclose = "last"\n'
    assert closes(tmp_path, OF_FILES + settings) == SAME


def test_files_are_compared_by_the_columns_that_they_have(tmp_path):
    table = write(tmp_path, "AAA", "BRKB", "005930", "INDEX")
    held = open_second_source(market(tmp_path, OF_FILES)).fields()
    assert held & set(COMPARED_FIELDS) == {*PRICES, "adj_close", "volume"}
    write_csv(table.drop(columns=["adj_close", "volume"]), tmp_path / "second.csv")
    held = open_second_source(market(tmp_path, OF_FILES)).fields()
    assert held & set(COMPARED_FIELDS) == set(PRICES)
    of_yahoo = market(tmp_path, 'source = "yahoo"\n')
    assert open_second_source(of_yahoo).fields() >= set(COMPARED_FIELDS)


def test_a_market_s_file_says_what_is_compared(tmp_path):
    whole = market(tmp_path, OF_FILES).second_source
    assert whole is not None
    assert (whole.source, whole.prices, whole.index) == ("files", tmp_path / "second.csv", None)
    assert (whole.fields, whole.price_unit, whole.seconds) == (COMPARED_FIELDS, 1, 600)
    part = market(
        tmp_path, 'source = "yahoo"\nfields = ["split", "close", "split"]\n'
    ).second_source
    assert part is not None  # in an order of its own, and once
    assert (part.source, part.fields) == ("yahoo", ("close", "split"))


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ("", "second_source.source: missing"),
        ('source = "bloomberg"\n', "second_source.source: expected.*'bloomberg'"),
        ('source = "files"\n', "second_source.prices: missing"),
        ('source = "yahoo"\nprices = "a.csv"\n', "second_source.prices: the source"),
        ('source = "yahoo"\nindex = "a.csv"\n', "second_source.index: the source"),
        (f"{OF_FILES}price = 3\n", "second_source.price: unknown.*perhaps prices"),
        (f'{OF_FILES}fields = ["last"]\n', r"second_source.fields\[1\]: expected.*'last'"),
        (
            f"{OF_FILES}fields = []\n",
            "second_source.fields:.*1 item or more",
        ),
        (f"{OF_FILES}price_unit = 0\n", "second_source.price_unit:.*above 0"),
        (f"{OF_FILES}price_unit = inf\n", "second_source.price_unit:.*finite number"),
        (f"{OF_FILES}price_unit = {'9' * 400}\n", "second_source.price_unit: expected a number"),
        (f'{OF_FILES}suffix = "//"\n', "second_source.suffix: '005930//' is not a valid symbol"),
        (f"{OF_FILES}seconds = 1e9\n", "second_source.seconds:.*at most 21600"),
        (
            f'{OF_FILES}[second_source.symbols]\nXYZ = "X"\n',
            "second_source.symbols.XYZ:.*not list",
        ),
        (
            f'{OF_FILES}[second_source.symbols]\nAAA = "../A"\n',
            r"second_source.symbols.AAA: .*symbol.*'\.\./A'",
        ),
        (
            f'{OF_FILES}[second_source.symbols]\nAAA = "X"\nBRKB = "X"\n',
            "second_source.symbols.BRKB: 'X'.* AAA",
        ),
        (f"{OF_FILES}[second_source.columns]\nlast = 3\n", "second_source.columns.last: unknown"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(tmp_path, second, complaint):
    with pytest.raises(UsageError) as caught:
        market(tmp_path, second)
    message = str(caught.value)
    assert re.match(f"{tmp_path / 'mine.toml'}: {complaint}", message)
    assert "\n" not in message


def test_an_error_about_its_files_names_its_own_table_of_columns(tmp_path):
    write(tmp_path, "AAA").drop(columns="date").to_csv(tmp_path / "second.csv", index=False)
    source = open_second_source(market(tmp_path, OF_FILES))
    for ask in (source.fields, lambda: source.fetch({"AAA": FIRST}, LAST)):
        with pytest.raises(UsageError, match=r"\[second_source\.columns\] date = "):
            ask()


def test_a_symbol_that_would_be_read_as_another_stock_is_refused(tmp_path):
    write(tmp_path, "AAA", "BRKB", "005930", "INDEX")
    mistaken = market(tmp_path, f'{OF_FILES}[second_source.symbols]\nAAA = "BRK-B"\n')
    with pytest.raises(UsageError, match=r"AAA .*'BRK-B',.*also"):
        open_second_source(mistaken)
