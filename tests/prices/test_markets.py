"""The markets that come with the package: what their files say agrees with the
data they describe.
"""

import hashlib
import json
import subprocess
import sys
import zoneinfo
from datetime import date
from pathlib import Path

import exchange_calendars
import pandas as pd
import pytest

from dtml.errors import UsageError
from dtml.markets import Constituent, Market, is_symbol, load_market, load_market_file, market_names
from dtml.markets.definition import CALENDARS
from tests.support.places import SHARED

beside_shared_data = pytest.mark.skipif(
    not (SHARED / "prices").is_dir(), reason="shared data is not beside this clone"
)
EVERY_MARKET = pytest.mark.parametrize("name", market_names())

ZONES = {
    "XNYS": "America/New_York",
    "XKRX": "Asia/Seoul",
    "XTKS": "Asia/Tokyo",
    "XLON": "Europe/London",
    "XSHG": "Asia/Shanghai",
}
# Digests of settings, of which the names of studies in stores are made.
DIGESTS = {
    "acl18": "022715cace8c4672",
    "csi300": "f4b727b038bd6be5",
    "csi300-paper": "f4eab23d6fd4ce94",
    "ftse100": "3298c35fb0681581",
    "ftse100-paper": "0ab496734b3655e0",
    "kdd17": "738cda0d8c09942d",
    "kospi100": "a43b683772efc229",
    "kospi200": "948ce568da4b1ec2",
    "ndx100": "5686e7e95c5a9929",
    "ni225": "676a0f99cc882453",
    "ni225-paper": "0a427b92dd14cbec",
    "simulated": "c70cf73cfcd8b54f",
    "sp500": "476ea548efac70d2",
}
# Securities, not companies: Alphabet, Fox and News Corp have two.
COUNTS = {
    "simulated": 0,
    "kdd17": 50,
    "acl18": 87,
    "ndx100": 101,
    "sp500": 503,
    "kospi100": 0,
    "kospi200": 200,
    "ni225": 225,
    "ftse100": 100,
    "csi300": 300,
    "csi300-paper": 217,
    "ni225-paper": 51,
    "ftse100-paper": 92,
}


def test_the_package_brings_these_markets_and_no_others() -> None:
    assert market_names() == sorted(COUNTS)


@EVERY_MARKET
def test_every_market_lists_all_its_members_or_says_that_it_lists_none(name: str) -> None:
    market = load_market(name)
    assert len(market.constituents) == COUNTS[name]
    assert market.constituents_complete is bool(market.constituents)
    assert (market.constituents_as_of is not None) is bool(market.constituents)


@EVERY_MARKET
def test_the_settings_of_every_market_have_the_digest_that_stores_hold(name: str) -> None:
    text = json.dumps(load_market(name).settings, default=str)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


@EVERY_MARKET
def test_every_market_states_its_facts_and_a_bound_with_its_reason(name: str) -> None:
    market = load_market(name)
    assert all(fact.endswith(".") for fact in market.facts)
    if name != "simulated":
        assert any(
            fact.startswith(f"max_return {market.checks.max_return}:") for fact in market.facts
        )
    if not market.constituents:
        assert any("constituents are those" in fact for fact in market.facts)


@EVERY_MARKET
def test_every_market_keeps_the_time_of_its_exchange(name: str) -> None:
    market = load_market(name)
    assert market.timezone == ZONES[market.calendar]
    assert market.timezone in zoneinfo.available_timezones()


@EVERY_MARKET
def test_every_symbol_is_one_and_names_one_instrument(name: str) -> None:
    market = load_market(name)
    symbols = [*market.symbols, market.index.symbol]
    sources = [
        *(member.source_symbol for member in market.constituents),
        market.index.source_symbol,
    ]
    assert len(set(symbols)) == len(symbols)
    assert len(set(sources)) == len(sources)
    assert all(is_symbol(symbol) for symbol in (*symbols, *sources))


@pytest.mark.parametrize(
    ("name", "suffixes"),
    [("kospi200", {".KS"}), ("ni225", {".T"}), ("ftse100", {".L"}), ("csi300", {".SS", ".SZ"})],
)
def test_the_source_symbols_of_a_market_abroad_carry_yahoos_suffix(
    name: str, suffixes: set[str]
) -> None:
    assert {
        Path(member.source_symbol).suffix for member in load_market(name).constituents
    } == suffixes


def test_shanghai_numbers_begin_with_six_and_shenzhen_numbers_do_not() -> None:
    for symbol in load_market("csi300").symbols:
        assert symbol.endswith(".SS") is symbol.startswith("6")


@pytest.mark.parametrize(
    ("name", "window", "hidden", "beta"),
    [
        ("acl18", 10, 64, 0.1),
        ("kdd17", 15, 64, 0.01),
        ("ndx100", 15, 128, 0.01),
        ("csi300", 15, 64, 1.0),
    ],
)
def test_the_papers_choices_stand_in_the_papers_markets(
    name: str, window: int, hidden: int, beta: float
) -> None:
    model = load_market(name).model
    assert (model["window"], model["hidden"], model["beta"]) == (window, hidden, beta)


def test_the_papers_sets_keep_the_papers_raw_close_and_gains_per_stock() -> None:
    for market in (load_market("kdd17"), load_market("acl18")):
        assert (market.source, market.z_close, market.retrain) == ("files", "raw", "missing")
        assert market.model["normalisation"] == "per_stock"


def test_live_markets_share_their_gains_because_their_members_change() -> None:
    for market in map(load_market, market_names()):
        if market.source == "yahoo":
            assert market.model["normalisation"] == "shared"
            assert market.retrain == 63


def test_korean_moves_come_from_the_close_within_the_daily_limit_and_its_rounding() -> None:
    for market in (load_market("kospi100"), load_market("kospi200")):
        assert market.returns == "close"
        assert 0.30 < market.checks.max_return < 0.31


@pytest.mark.slow
@beside_shared_data
@pytest.mark.parametrize(("name", "left_out"), [("kdd17", set()), ("acl18", {"GMRE"})])
def test_a_papers_set_is_the_set_in_the_prices(name: str, left_out: set[str]) -> None:
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
def test_the_index_goes_by_the_symbol_in_its_prices(name: str, file: str) -> None:
    prices = pd.read_parquet(SHARED / "index" / f"{file}.parquet", columns=["symbol"])
    assert set(prices["symbol"].astype(str)) == {load_market(name).index.symbol}


@beside_shared_data
def test_kospi_200_has_the_members_and_the_korean_names_of_its_record() -> None:
    record = pd.read_csv(SHARED / "prices" / "kospi200_names.csv", dtype=str)
    listed = {member.symbol: member.name for member in load_market("kospi200").constituents}
    assert listed == dict(zip(record["symbol"], record["name"], strict=True))


@beside_shared_data
def test_london_symbols_are_those_of_the_open_prices_of_london() -> None:
    prices = set(
        pd.read_parquet(SHARED / "prices" / "ftse30.parquet", columns=["symbol"])["symbol"].astype(
            str
        )
    )
    listed = set(load_market("ftse100").symbols)
    # Renamed, bought up or out of the index between 2017 and 2025.
    left = {"BLT.L", "ITV.L", "MRW.L", "OML.L", "RBS.L", "RDSB.L", "SKY.L", "TW.L"}
    assert prices - listed == left


def test_an_unknown_market_is_the_users_mistake_and_the_nearest_is_named() -> None:
    with pytest.raises(UsageError, match=r"mean kospi200.*acl18, csi300") as caught:
        load_market("KOSPI-200")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "../kdd17", "kdd17.toml", "definition"])
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(UsageError, match="unknown market"):
        load_market(name)


def test_a_users_market_may_not_take_the_name_of_one_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "kdd17.toml"
    path.write_text('title = "Mine"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="rename the file"):
        load_market_file(path)


def _market_with(*members: Constituent) -> Market:
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


def test_a_member_counts_from_its_first_day_to_the_day_before_it_is_none() -> None:
    stays = Constituent("A", "A")
    joins = Constituent("B", "B", since=date(2019, 7, 1))
    leaves = Constituent("C", "C", until=date(2019, 7, 1))
    market = _market_with(stays, joins, leaves)
    assert market.constituents_on(date(2019, 6, 30)) == (stays, leaves)
    assert market.constituents_on(date(2019, 7, 1)) == (stays, joins)
    assert market.symbols == ("A", "B", "C")


def test_a_market_over_other_symbols_keeps_what_its_list_knows_and_leaves_the_index_out() -> None:
    known = Constituent("B", "B.KS", name="Bee", since=date(2019, 7, 1))
    market = _market_with(Constituent("A", "A.KS"), known).with_symbols(["C", "^GSPC", "B"])
    assert market.constituents == (Constituent("C", "C"), known)


@pytest.mark.parametrize(
    "symbols", [["A", "A"], ["../A"], ["A//B"], [""], ["a  b"], ["A'--"], ["-A"], ["A.."], ["Ä"]]
)
def test_symbols_found_in_prices_are_refused_when_repeated_or_no_symbols(
    symbols: list[str],
) -> None:
    with pytest.raises(UsageError, match="market mine: "):
        _market_with().with_symbols(symbols)


@pytest.mark.parametrize(
    "symbol",
    ["^GSPC", "BRK-B", "BT-A.L", "005930", "M&M.NS", "EURUSD=X", "BRK/B", "AAA US Equity", "1E5"],
)
def test_symbols_as_sources_write_them_are_symbols(symbol: str) -> None:
    assert is_symbol(symbol)


def test_the_library_knows_every_calendar_a_market_may_name() -> None:
    assert set(exchange_calendars.get_calendar_names()) >= CALENDARS
    assert {load_market(name).calendar for name in market_names()} <= CALENDARS


@pytest.mark.slow
def test_reading_a_market_imports_neither_pandas_nor_the_calendars() -> None:
    code = (
        "import sys; from dtml.markets import load_market; load_market('sp500');"
        "print(sorted({'pandas', 'numpy', 'torch', 'exchange_calendars'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
