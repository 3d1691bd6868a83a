"""Everything that Yahoo is known to do wrong, met by a night of the real
command: what the store says after it.
"""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from db.connection.user_sql import select
from db.engine import open_engine, reading
from dtml.prices.sessions import sessions_between
from tests.support.commands import run_in
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
    stand_in: FakeYahoo
    prefect_api: str
    process: ProcessPoolExecutor

    def write_market(self, stocks: dict[str, str]) -> None:
        (self.folder / "made.toml").write_text(market_text(stocks))

    def nightly(self, day: date) -> tuple[int, str]:
        """Run a night by the command, in the process of all folders: exit code and errors."""
        asked = (self.folder, self._environment(), self.prefect_api, *_nightly(day))
        code, _, said = self.process.submit(run_in, *asked).result()
        return code, said

    def nightly_anew(self, day: date) -> tuple[int, str]:
        """Do the same in a process of its own, which knows nothing but the store."""
        ended = subprocess.run(
            [DTML, *_nightly(day)],
            cwd=self.folder,
            env=self._environment() | {"PREFECT_API_URL": self.prefect_api},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return ended.returncode, ended.stderr

    def _environment(self) -> dict[str, str]:
        places = {
            "DTML_DATA": "data",
            "DTML_REPORTS": "reports",
            "DTML_DATABASE_URL": "sqlite:///store.sqlite",
        }
        return self.stand_in.environment() | places

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


def _nightly(day: date) -> tuple[str, ...]:
    return ("nightly", "--market-file", "made.toml", "--as-of", str(day))


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
def make_home(
    tmp_path_factory: pytest.TempPathFactory, prefect_api: str
) -> Iterator[Callable[[str], Home]]:
    """Make a folder of a name. One process runs the nights of all, with a client of its own."""
    with (
        FakeYahoo({}) as stand_in,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process,
    ):
        yield lambda name: Home(tmp_path_factory.mktemp(name), stand_in, prefect_api, process)


@pytest.fixture(scope="module")
def nights(make_home: Callable[[str], Home]) -> Home:
    """A good night, one on which each of many stocks has a trouble of its own,
    and a good one after it.
    """
    history = grown()
    home = make_home("nights")
    stand_in = home.stand_in
    stand_in.prices = history.told(FIRST)
    home.write_market({stock: stock for stock in STOCKS})
    code, said = home.nightly(FIRST)
    assert code == 0, said
    stand_in.faults = dict(FAULTS)
    stand_in.prices = history.told(SECOND) | {"S04": history.told(UNDER_WAY)["S04"]}
    stand_in.prices[SKIPPING] = without_sessions(stand_in.prices[SKIPPING], [SECOND])
    stand_in.prices[FEASTING] = with_row_on(stand_in.prices[FEASTING], HOLIDAY)
    code, said = home.nightly(SECOND)
    assert code == 0, said
    stand_in.faults = {}
    stand_in.prices = history.told(THIRD)
    home.write_market({stock: history.source_symbol(stock, THIRD) for stock in STOCKS})
    code, said = home.nightly(THIRD)
    assert code == 0, said
    return home


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
    make_home: Callable[[str], Home],
) -> None:
    stocks = {f"R{number:03d}": f"R{number:03d}" for number in range(40)}
    bars = made_history(SESSIONS, UNDER_WAY, seed=4).told(SECOND)
    prices = {stock: bars[f"S{number % 12 + 1:02d}"] for number, stock in enumerate(stocks)}
    home = make_home("limited")
    stand_in = home.stand_in
    stand_in.prices = prices | {INDEX: bars[INDEX]}
    stand_in.requests.clear()
    stand_in.rate_limit_after = 20
    home.write_market(stocks)
    code, said = home.nightly(SECOND)
    assert code == 1
    assert "rate limit was reached" in said
    assert "run the night again" in said
    assert home.night(SECOND)["status"] == "refused"
    answered = dict(stand_in.requests)
    assert len(answered) == 20
    stand_in.rate_limit_after = None
    code, said = home.nightly_anew(SECOND)
    assert code == 0, said
    assert {symbol: stand_in.requests[symbol] for symbol in answered} == answered
    assert set(stand_in.requests.values()) == {1}
    assert home.night(SECOND)["status"] == "complete"
    assert home.night(SECOND)["predictions"] == len(stocks)
