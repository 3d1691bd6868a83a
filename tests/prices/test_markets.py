"""The markets that come with the package: what their files say agrees with the
data they describe.
"""

import hashlib
import json
import subprocess
import sys
from datetime import date

import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.markets import Constituent, Market, is_symbol, load_market, load_market_file, market_names
from tests.support.places import SHARED

beside_shared_data = pytest.mark.skipif(
    not (SHARED / "prices").is_dir(), reason="shared data is not beside this clone"
)
EVERY_MARKET = pytest.mark.parametrize("name", market_names())

# Digests of settings, of which the names of studies in stores are made.
DIGESTS = {
    "acl18": "022715cace8c4672",
    "csi300": "f4b727b038bd6be5",
    "csi300-paper": "f4eab23d6fd4ce94",
    "ftse100": "3298c35fb0681581",
    "ftse100-paper": "b6b8a4aa7cebdf27",
    "kdd17": "738cda0d8c09942d",
    "kospi100": "a43b683772efc229",
    "kospi200": "948ce568da4b1ec2",
    "ndx100": "5686e7e95c5a9929",
    "ni225": "676a0f99cc882453",
    "ni225-paper": "0a427b92dd14cbec",
    "simulated": "c70cf73cfcd8b54f",
    "sp500": "476ea548efac70d2",
}


@EVERY_MARKET
def test_the_settings_of_every_market_have_the_digest_that_stores_hold(name):
    text = json.dumps(load_market(name).settings, default=str)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


@EVERY_MARKET
def test_every_market_states_its_facts_and_a_bound_with_its_reason(name):
    market = load_market(name)
    assert all(fact.endswith(".") for fact in market.facts)
    if name != "simulated":
        assert any(
            fact.startswith(f"max_return {market.checks.max_return}:") for fact in market.facts
        )
    if not market.constituents:
        assert any("constituents are those" in fact for fact in market.facts)


@pytest.mark.slow
@beside_shared_data
@pytest.mark.parametrize(("name", "left_out"), [("kdd17", set()), ("acl18", {"GMRE"})])
def test_a_papers_set_is_the_set_in_the_prices(name, left_out):
    prices = pd.read_parquet(SHARED / "prices" / f"{name}.parquet", columns=["symbol", "date"])
    market = load_market(name)
    assert set(market.symbols) == set(prices["symbol"].astype(str)) - left_out
    assert market.constituents_as_of == prices["date"].max().date()


@beside_shared_data
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("kdd17", "GSPC"),
        ("acl18", "GSPC"),
        ("sp500", "GSPC"),
        ("ndx100", "NDX"),
        ("ftse100", "FTSE"),
        ("kospi200", "KS11"),
    ],
)
def test_the_index_goes_by_the_symbol_in_its_prices(name, file):
    prices = pd.read_parquet(SHARED / "index" / f"{file}.parquet", columns=["symbol"])
    assert set(prices["symbol"].astype(str)) == {load_market(name).index.symbol}


@beside_shared_data
def test_kospi_200_has_the_members_and_the_korean_names_of_its_record():
    record = pd.read_csv(SHARED / "prices" / "kospi200_names.csv", dtype=str)
    listed = {member.symbol: member.name for member in load_market("kospi200").constituents}
    assert listed == dict(zip(record["symbol"], record["name"], strict=True))


def test_an_unknown_market_is_the_users_mistake_and_the_nearest_is_named():
    with pytest.raises(UsageError, match=r"mean kospi200.*acl18, csi300") as caught:
        load_market("KOSPI-200")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "../kdd17", "kdd17.toml", "definition"])
def test_a_name_is_never_a_path(name):
    with pytest.raises(UsageError, match="unknown market"):
        load_market(name)


def test_a_users_market_may_not_take_the_name_of_one_of_the_package(tmp_path):
    path = tmp_path / "kdd17.toml"
    path.write_text('title = "Mine"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="rename the file"):
        load_market_file(path)


def _market_with(*members):
    kdd17 = load_market("kdd17")
    return Market(
        name="mine",
        title="Mine",
        calendar="XNYS",
        timezone="America/New_York",
        currency="USD",
        index=kdd17.index,
        constituents=members,
    )


def test_a_member_counts_from_its_first_day_to_the_day_before_it_is_none():
    stays = Constituent("A", "A")
    joins = Constituent("B", "B", since=date(2019, 7, 1))
    leaves = Constituent("C", "C", until=date(2019, 7, 1))
    market = _market_with(stays, joins, leaves)
    assert market.constituents_on(date(2019, 6, 30)) == (stays, leaves)
    assert market.constituents_on(date(2019, 7, 1)) == (stays, joins)
    assert market.symbols == ("A", "B", "C")


def test_a_market_over_other_symbols_keeps_what_its_list_knows_and_leaves_the_index_out():
    known = Constituent("B", "B.KS", name="Bee", since=date(2019, 7, 1))
    market = _market_with(Constituent("A", "A.KS"), known).with_symbols(["C", "^GSPC", "B"])
    assert market.constituents == (Constituent("C", "C"), known)


@pytest.mark.parametrize(
    "symbols", [["A", "A"], ["../A"], ["A//B"], [""], ["a  b"], ["A'--"], ["-A"], ["A.."], ["Ä"]]
)
def test_symbols_found_in_prices_are_refused_when_repeated_or_no_symbols(symbols):
    with pytest.raises(UsageError, match="market mine: "):
        _market_with().with_symbols(symbols)


@pytest.mark.parametrize(
    "symbol",
    ["^GSPC", "BRK-B", "BT-A.L", "005930", "M&M.NS", "EURUSD=X", "BRK/B", "AAA US Equity", "1E5"],
)
def test_symbols_as_sources_write_them_are_symbols(symbol):
    assert is_symbol(symbol)


@pytest.mark.slow
def test_reading_a_market_imports_neither_pandas_nor_the_calendars():
    code = (
        "import sys; from dtml.markets import load_market; load_market('sp500');"
        "print(sorted({'pandas', 'numpy', 'torch', 'exchange_calendars'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
