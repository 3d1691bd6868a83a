"""Everything that Yahoo is known to do wrong, met by a night of the real
command: what the store says after it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from db.connection.user_sql import select
from db.engine import open_engine, reading
from dtml.prices.sessions import sessions_between
from tests.support.fake_yahoo import FakeYahoo, Fault
from tests.support.price_history import (
    INDEX,
    History,
    made_history,
    market_text,
    with_row_on,
    without_sessions,
)

pytestmark = pytest.mark.soak

DTML = str(Path(sys.executable).with_name("dtml"))
FIRST, SECOND, THIRD = date(2024, 3, 28), date(2024, 4, 1), date(2024, 4, 2)
UNDER_WAY, HOLIDAY = date(2024, 4, 3), date(2024, 3, 29)  # a Good Friday between the first two
SESSIONS = sessions_between("XNYS", date(2023, 9, 1), UNDER_WAY)
STOCKS = tuple(f"S{number:02d}" for number in range(1, 13)) + tuple(
    f"T{number:02d}" for number in range(1, 11)
)
FAULTS: dict[str, Fault] = {
    "S01": "500",
    "T01": "html",
    "S02": "internal_error",
    "T02": "empty",
    "S03": "nan_last",
    "S04": "open_row",
}
SKIPPING, FEASTING, PAYING, SPLITTING, RENAMED, GONE = "S05", "S06", "S07", "S08", "S09", "S10"


@dataclass(frozen=True)
class Home:
    """A folder with a market file, a store and a stand-in to ask."""

    folder: Path
    yahoo: FakeYahoo
    prefect_api: str

    def write_market(self, stocks: dict[str, str]) -> None:
        (self.folder / "made.toml").write_text(market_text(stocks))

    def dtml(self, verb: str, day: date, *more: str) -> subprocess.CompletedProcess[str]:
        places = {
            "DTML_DATA": "data",
            "DTML_REPORTS": "reports",
            "DTML_DATABASE_URL": "sqlite:///store.sqlite",
        }
        command = [DTML, verb, "--market-file", "made.toml", "--as-of", str(day), *more]
        asked = self.yahoo.environment() | places | {"PREFECT_API_URL": self.prefect_api}
        return subprocess.run(
            command,
            cwd=self.folder,
            env=asked,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def ask(self, sql: str) -> list[dict[str, Any]]:
        engine = open_engine(f"sqlite:///{self.folder / 'store.sqlite'}", read_only=True)
        with reading(engine):
            return select(engine, sql).to_dict("records")  # type: ignore[return-value]

    def night(self, day: date) -> dict[str, Any]:
        (row,) = self.ask(f"select * from night where as_of = '{day}'")
        return row | {"gaps": {gap["symbol"]: gap["reason"] for gap in json.loads(row["gaps"])}}

    def bar(self, symbol: str, day: date) -> list[dict[str, Any]]:
        named = "select price.* from price join instrument on instrument.id = instrument_id"
        return self.ask(
            f"{named} where symbol = '{symbol}' and session = '{day}' order by known_at"
        )


def grown() -> History:
    """A past in which one stock pays, one splits, one is renamed and one goes,
    all on the second night's session.
    """
    plain = made_history(SESSIONS, UNDER_WAY, seed=3)
    traded = {
        symbol: bars.assign(dividend=float("nan"), split=float("nan"))
        for symbol, bars in plain.traded.items()
    }
    traded |= {
        stock: traded[f"S{int(stock[1:]):02d}"].assign(symbol=stock)
        for stock in STOCKS
        if stock[0] == "T"
    }
    at = SESSIONS.get_loc(pd.Timestamp(SECOND))
    traded[PAYING].loc[at, "dividend"] = 1.25
    traded[SPLITTING].loc[at, "split"] = 2.0
    traded[SPLITTING].loc[at:, ["open", "high", "low", "close"]] /= 2
    return History(traded, {RENAMED: ("NEW", SECOND)}, {GONE: SECOND})


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Iterator[Home]:
    """A good night, one on which each of many stocks has a trouble of its own,
    and a good one after it.
    """
    history = grown()
    with FakeYahoo(history.told(FIRST)) as yahoo:
        home = Home(tmp_path_factory.mktemp("nights"), yahoo, prefect_api)
        home.write_market({stock: stock for stock in STOCKS})
        assert home.dtml("nightly", FIRST).returncode == 0
        yahoo.faults = dict(FAULTS)
        yahoo.prices = history.told(SECOND) | {"S04": history.told(UNDER_WAY)["S04"]}
        yahoo.prices[SKIPPING] = without_sessions(yahoo.prices[SKIPPING], [SECOND])
        yahoo.prices[FEASTING] = with_row_on(yahoo.prices[FEASTING], HOLIDAY)
        ended = home.dtml("nightly", SECOND)
        assert ended.returncode == 0, ended.stderr
        yahoo.faults = {}
        yahoo.prices = history.told(THIRD)
        home.write_market({stock: history.source_symbol(stock, THIRD) for stock in STOCKS})
        ended = home.dtml("nightly", THIRD)
        assert ended.returncode == 0, ended.stderr
        yield home


@pytest.mark.parametrize(
    ("symbol", "status", "words"),
    [
        ("S01", "malformed", "Yahoo sent no prices"),
        ("T01", "malformed", "Yahoo sent no prices"),
        ("S02", "malformed", "Something went wrong"),
        ("T02", "no_data", "no price data found"),
        (SKIPPING, "", ""),
        (RENAMED, "no_data", "may be delisted"),
        (GONE, "no_data", "may be delisted"),
    ],
)
def test_a_stock_without_an_answer_is_a_gap_of_the_night_and_its_fetch_says_why(
    nights: Home, symbol: str, status: str, words: str
) -> None:
    assert nights.night(SECOND)["gaps"][symbol] == f"no bar on {SECOND}"
    (said,) = nights.ask(f"select failures from price_fetch where as_of = '{SECOND}'")
    failed = {failure["symbol"]: failure for failure in json.loads(said["failures"])}
    assert failed.get(symbol, {"status": ""})["status"] == status
    assert words in failed.get(symbol, {"detail": ""})["detail"]


def test_a_last_row_without_prices_is_refused_and_its_stock_a_gap(nights: Home) -> None:
    assert nights.night(SECOND)["gaps"]["S03"] == "bar rejected: null_price"


def test_no_other_stock_is_a_gap(nights: Home) -> None:
    expected = {"S01", "T01", "S02", "T02", "S03", SKIPPING, RENAMED, GONE}
    assert set(nights.night(SECOND)["gaps"]) == expected
    assert nights.night(SECOND)["predictions"] == len(STOCKS) - len(expected)


@pytest.mark.parametrize("symbol", ["S01", "T01", "S02", "T02", "S03", SKIPPING, RENAMED])
def test_what_a_night_went_without_comes_with_the_next(nights: Home, symbol: str) -> None:
    assert len(nights.bar(symbol, SECOND)) == 1
    assert set(nights.night(THIRD)["gaps"]) == {GONE}


def test_a_row_of_the_session_under_way_is_not_stored(nights: Home) -> None:
    assert len(nights.bar("S04", SECOND)) == 1
    assert nights.ask("select * from price where session > '2024-04-02'") == []


def test_a_row_on_a_holiday_is_refused(nights: Home) -> None:
    (refused,) = nights.ask(
        f"select symbol, session, reason from rejected where symbol = '{FEASTING}'"
    )
    assert refused == {"symbol": FEASTING, "session": str(HOLIDAY), "reason": "not_a_session"}
    assert nights.bar(FEASTING, HOLIDAY) == []


@pytest.mark.parametrize(
    ("symbol", "column", "least"), [(PAYING, "adj_close", 0.9), (SPLITTING, "close", 0.4)]
)
def test_a_dividend_or_a_split_restates_the_past_beside_what_was_known(
    nights: Home, symbol: str, column: str, least: float
) -> None:
    (said,) = nights.ask(f"select restated from price_fetch where as_of = '{SECOND}'")
    assert symbol in json.loads(said["restated"])
    for day in (SESSIONS[80].date(), FIRST):
        before, after = nights.bar(symbol, day)
        assert least < after[column] / before[column] < 0.999


def test_a_renamed_stock_keeps_its_past_under_the_markets_own_symbol(nights: Home) -> None:
    (named,) = nights.ask(f"select source_symbol from instrument where symbol = '{RENAMED}'")
    assert named == {"source_symbol": "NEW"}
    made = nights.ask(
        f"select as_of from prediction_history where symbol = '{RENAMED}' order by as_of"
    )
    assert [row["as_of"] for row in made] == [str(FIRST), str(THIRD)]


@pytest.mark.soak
def test_at_a_rate_limit_a_night_is_refused_and_the_next_run_asks_for_the_rest_alone(
    tmp_path: Path, prefect_api: str
) -> None:
    stocks = {f"R{number:03d}": f"R{number:03d}" for number in range(40)}
    bars = made_history(SESSIONS, UNDER_WAY, seed=4).told(SECOND)
    prices = {stock: bars[f"S{number % 12 + 1:02d}"] for number, stock in enumerate(stocks)}
    with FakeYahoo(prices | {INDEX: bars[INDEX]}, rate_limit_after=20) as yahoo:
        home = Home(tmp_path, yahoo, prefect_api)
        home.write_market(stocks)
        limited = home.dtml("nightly", SECOND)
        assert limited.returncode == 1
        assert "rate limit was reached" in limited.stderr
        assert "run the night again" in limited.stderr
        assert home.night(SECOND)["status"] == "refused"
        answered = dict(yahoo.requests)
        assert len(answered) == 20
        yahoo.rate_limit_after = None
        resumed = home.dtml("nightly", SECOND)
        assert resumed.returncode == 0, resumed.stderr
        assert {symbol: yahoo.requests[symbol] for symbol in answered} == answered
        assert set(yahoo.requests.values()) == {1}
    assert home.night(SECOND)["status"] == "complete"
    assert home.night(SECOND)["predictions"] == len(stocks)
