"""Symbols are kept as they are written, from every kind of file to every
answer.
"""

import json
from dataclasses import replace
from datetime import date
from urllib.parse import quote

import pytest
from sqlalchemy import text

from db.engine import reading
from dtml.errors import UsageError
from dtml.experiments import vary
from dtml.markets import Constituent, load_market_file
from dtml.sources.files import FileSource
from flows.dashboard.app import dashboard
from flows.nightly.night import run_night
from flows.replay import Receipt
from flows.settings import reports_folder
from tests.support.browser import served
from tests.support.nights import AS_OF, BARS, small_market
from tests.support.price_files import FIRST, LAST, MARKET, long

NAMES = ("BRK/B", "AAA US Equity", "NA", "NAN", "TRUE", "1E5", "005930", "^GSPC")
KINDS = pytest.mark.parametrize("kind", ["CSV", "parquet", "folder of CSV", "folder of parquet"])


def write(table, kind, folder):
    """Write prices as one file or as a file for each stock, with its symbol in a column."""
    folder.mkdir()
    if kind == "CSV":
        table.to_csv(folder / "p.csv", index=False)
        return folder / "p.csv"
    if kind == "parquet":
        table.to_parquet(folder / "p.parquet")
        return folder / "p.parquet"
    for place, (_, rows) in enumerate(table.groupby("symbol")):
        if kind == "folder of CSV":
            rows.to_csv(folder / f"{place}.csv", index=False)
        else:
            rows.to_parquet(folder / f"{place}.parquet")
    return folder


@pytest.mark.slow
@KINDS
def test_symbols_are_read_as_they_are_written(kind, tmp_path):
    source = FileSource(MARKET, write(long(NAMES), kind, tmp_path / "prices"))
    assert source.symbols() == sorted(NAMES)
    found = source.fetch(dict.fromkeys(NAMES, FIRST), LAST)
    assert set(found.bars["symbol"]) == set(NAMES)
    assert (found.outcomes["rows"] == 13).all()


def test_a_number_without_its_zeros_is_the_symbol_that_the_market_lists(tmp_path):
    long(("5930", "AAA")).to_csv(tmp_path / "p.csv", index=False)
    source = FileSource(MARKET, tmp_path / "p.csv")
    assert source.symbols() == ["005930", "AAA"]
    assert "5930 as 005930" in (source.remark() or "")
    for number in (5930, 5930.0):  # a float where the column has a gap elsewhere
        long(("AAA",)).assign(symbol=number).to_parquet(tmp_path / "p.parquet")
        assert FileSource(MARKET, tmp_path / "p.parquet").symbols() == ["005930"]
        long(("AAA",)).assign(symbol=number).to_csv(tmp_path / "p.csv", index=False)
        assert FileSource(MARKET, tmp_path / "p.csv").symbols() == ["005930"]


def test_a_number_that_may_be_two_listed_symbols_is_kept_as_it_is(tmp_path):
    both = tuple(Constituent(symbol, symbol) for symbol in ("000660", "0660"))
    long(("660",)).to_csv(tmp_path / "p.csv", index=False)
    source = FileSource(replace(MARKET, constituents=both), tmp_path / "p.csv")
    assert source.symbols() == ["660"]
    long(("AAA",)).assign(symbol=660).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(UsageError, match=r"symbols.* text.*'symbol'.* 660:"):
        FileSource(replace(MARKET, constituents=both), tmp_path / "p.parquet").symbols()


@pytest.mark.parametrize("symbol", NAMES)
def test_a_receipt_holds_any_symbol(symbol):
    receipt = Receipt("my-2024-03-04-1", symbol, date(2024, 3, 5))
    assert Receipt.read(str(receipt)) == receipt


STOCKS = [name for name in NAMES if name != "^GSPC"]
# Somebody's spreadsheet has read 005930 as a number; the market's file lists it.
WRITTEN = {"005930": "5930"}
LIST = f"""
[constituents]
as_of = 2024-01-02
symbols = {json.dumps(STOCKS)}
"""


@pytest.fixture
def of_files(context, tmp_path, monkeypatch):
    """A market of these stocks, whose prices are in files; commands use the same store."""
    of_market = context.market.symbols
    renamed = dict(zip(of_market, STOCKS, strict=False)) | {"SIMX": "^GSPC"}
    table = BARS.rename(columns={"session": "date"})
    table = table.assign(symbol=table["symbol"].map(renamed)).dropna(subset="symbol")
    prices = write(table.replace({"symbol": WRITTEN}), "CSV", tmp_path / "prices")
    described = small_market(source="files", more=LIST).replace("SIMX", "^GSPC")
    (tmp_path / "my.toml").write_text(described)
    market = load_market_file(tmp_path / "my.toml")
    source = FileSource(market, prices)
    assert set(source.symbols()) == set(STOCKS)
    assert "5930 as 005930" in (source.remark() or "")
    monkeypatch.setenv(
        "DTML_DATABASE_URL", context.engine.url.render_as_string(hide_password=False)
    )
    enough_to_rank = vary(context.experiment, {"train_sessions": 250})
    return replace(context, market=market, source=source, experiment=enough_to_rank)


@pytest.mark.soak
@pytest.mark.slow
def test_symbols_are_kept_through_a_night_its_page_queries_and_orders(
    of_files, reader, tmp_path, command
):
    run_night(of_files, AS_OF)
    with reading(reader) as conn:
        for view in ("latest_prediction", "latest_ranking", "price_latest"):
            shown = conn.execute(text(f"select distinct symbol from {view}")).scalars()
            assert set(STOCKS) <= set(shown), view
    statement = "select symbol from latest_prediction"
    code, out, err = command("query", statement, "--csv")
    assert code == 0, err
    assert set(out.splitlines()[1:]) == set(STOCKS)
    held = "\n".join(["symbol,shares", *(f"{symbol},7" for symbol in STOCKS), ""])
    (tmp_path / "held.csv").write_text(held)
    for holdings in ((), ("--positions", str(tmp_path / "held.csv"))):
        asked = ("orders", "my", "--capital", "100000", "--json", *holdings)
        code, out, err = command(*asked)
        assert code == 0, err
        ordered = {order["symbol"] for order in json.loads(out)["orders"]}
        assert ordered
        assert ordered <= set(STOCKS)
    for symbol in STOCKS:
        code, out, err = command("history", symbol)
        assert code == 0, err
        assert symbol in out
    page = next((reports_folder() / "my").glob("*.html")).read_text(encoding="utf-8")
    for symbol in STOCKS:
        assert f">{symbol}<" in page
    with served(dashboard(reader), reader) as site:
        for symbol in STOCKS:
            answer = site.get(f"/market/my/stock/{quote(symbol, safe='')}")
            assert answer.status == 200
            assert f"<h1>{symbol}" in answer.body or f">{symbol}<" in answer.body
