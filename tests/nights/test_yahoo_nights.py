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


def test_what_yahoo_does_not_give_is_a_gap_of_the_night_that_comes_with_the_next(
    nights: Home,
) -> None:
    gaps = nights.night(SECOND)["gaps"]
    unheard = ("S01", "T01", "S02", "T02", SKIPPING, RENAMED, GONE)
    assert gaps == dict.fromkeys(unheard, f"no bar on {SECOND}") | {
        "S03": "bar rejected: null_price"
    }
    assert nights.night(SECOND)["predictions"] == len(STOCKS) - len(gaps)
    (said,) = nights.ask(f"select failures from price_fetch where as_of = '{SECOND}'")
    failed = {failure["symbol"]: failure["status"] for failure in json.loads(said["failures"])}
    assert failed == dict.fromkeys(("S01", "T01", "S02"), "malformed") | dict.fromkeys(
        ("T02", RENAMED, GONE), "no_data"
    )
    assert set(nights.night(THIRD)["gaps"]) == {GONE}
    assert {len(nights.bar(symbol, SECOND)) for symbol in gaps.keys() - {GONE}} == {1}


def test_rows_on_a_holiday_and_of_the_session_under_way_are_not_stored(nights: Home) -> None:
    refused = f"select session, reason from rejected where symbol = '{FEASTING}'"
    assert nights.ask(refused) == [{"session": str(HOLIDAY), "reason": "not_a_session"}]
    assert nights.bar(FEASTING, HOLIDAY) == []
    assert nights.ask(f"select * from price where session > '{THIRD}'") == []


def test_a_dividend_and_a_split_restate_the_past_beside_what_was_known(nights: Home) -> None:
    for symbol, column, least in ((PAYING, "adj_close", 0.9), (SPLITTING, "close", 0.4)):
        before, after = nights.bar(symbol, SESSIONS[80].date())
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
