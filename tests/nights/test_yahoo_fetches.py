"""Yahoo as it answers: what a store holds and says after fetches through the real client, and what
the next fetch makes of it. Each stock has a trouble of its own.
"""

import multiprocessing
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from db.engine import open_engine, reading, upgrade
from db.read import read
from db.rows import prices
from dtml.markets import read_market
from dtml.prices.sessions import sessions_between
from dtml.sources.yahoo import YahooSource
from flows.nightly.context import MarketContext, experiment_for
from flows.nightly.fetch import OVERLAP, FetchResult, fetch_bars
from tests.support.fake_yahoo import FakeYahoo, Fault, Quote
from tests.support.price_history import INDEX, PRICES, adjusted, made_history, market_text

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SESSIONS = sessions_between("XNYS", date(2023, 9, 1), date(2024, 5, 3))
EX = SESSIONS.get_loc(pd.Timestamp("2024-04-01"))  # of the troubles, and of all dividends
FIRST, SECOND, THIRD = (SESSIONS[EX + step].date() for step in (-1, 0, 1))
UNADJUSTED, ADJUSTED = (SESSIONS[EX + OVERLAP + step].date() for step in (2, 3))
HOLE, OLD_HOLE = SESSIONS[EX - 6].date(), SESSIONS[80].date()
# What each stock that pays falls by on the ex-day, as a share of the close before.
FALLS = dict.fromkeys(("LATE", "PENCE", "POUNDS", "UNNAMED", "EUROS"), 0.03)
FALLS |= {"FUND": 0.07, "DOUBLE": 0.07}
STOCKS = (
    *("WELL", "CRUMB", "STALE", "GONE", "FORM", "WALL", "PAGE", "BARE", "NEVER", "HOLES", "LOST"),
    *("END", "LIVE", "AGAIN", "ABROAD"),
    *FALLS,
)
QUOTES = {
    "ABROAD": Quote("EUR"),
    "FUND": Quote(kind="ETF"),
    "DOUBLE": Quote(kind="MUTUALFUND"),
    "PENCE": Quote("GBp"),
    "POUNDS": Quote("GBp", paid_in="GBP"),
    "UNNAMED": Quote("GBp"),
    "EUROS": Quote("USD", paid_in="EUR"),
}
ON_THE_FIRST: dict[str, Fault] = {
    "CRUMB": "invalid_crumb",
    "STALE": "stale_crumb",
    "NEVER": "no_adjclose",
}
ON_THE_SECOND: dict[str, Fault] = {
    "NEVER": "no_adjclose",
    "GONE": "delisted",
    "FORM": "consent_form",
    "WALL": "consent_wall",
    "PAGE": "html",
    "BARE": "no_adjclose",
    "END": "nan_last",
    "LIVE": "open_row",
    "AGAIN": "twice_today",
}


def made_market() -> dict[str, pd.DataFrame]:
    """Bars as they were traded, in whole units: those of `FALLS` fall on their ex-day."""
    walks = made_history(SESSIONS, SESSIONS[-1].date(), seed=5).traded
    of_stocks = [symbol for symbol in walks if symbol != INDEX]
    traded = {INDEX: walks[INDEX].assign(dividend=np.nan, split=np.nan)}
    for place, symbol in enumerate(STOCKS):
        walk = walks[of_stocks[place % len(of_stocks)]]
        # Volumes of its own: stocks with the same bars are warned of.
        own = {"symbol": symbol, "volume": walk["volume"] + place}
        bars = walk.assign(**own, dividend=np.nan, split=np.nan)
        if symbol in FALLS:
            before = bars.loc[EX - 1, "close"]
            bars.loc[EX:, list(PRICES)] *= 1 - FALLS[symbol]
            bars.loc[EX, "dividend"] = FALLS[symbol] * before
        traded[symbol] = bars
    return traded


TRADED = made_market()


def paid(symbol: str) -> float:
    """What a stock paid on its ex-day, in whole units."""
    return float(TRADED[symbol].loc[EX, "dividend"])


def told(day: date) -> dict[str, pd.DataFrame]:
    """What Yahoo holds after the close of a day."""
    held = {symbol: adjusted(bars, day) for symbol, bars in TRADED.items()}
    if day < ADJUSTED:  # Yahoo has the dividend and has not adjusted what was before
        held["LATE"]["adj_close"] = held["LATE"]["close"]
    # Of what these paid, Yahoo calls so many sevenths the dividend, and so many the capital gain.
    for symbol, dividend, gain in (("FUND", 4, 3), ("DOUBLE", 7, 6)):
        cash = held[symbol]["dividend"]
        held[symbol]["dividend"] = cash * dividend / 7
        held[symbol]["capital_gain"] = cash * gain / 7
    if day >= SECOND:  # the dividend contains the gain, and both are deducted
        before_ex = held["DOUBLE"]["session"] < pd.Timestamp(SECOND)
        held["DOUBLE"].loc[before_ex, "adj_close"] = held["DOUBLE"]["close"] * (1 - 0.13)
    for symbol in ("PENCE", "POUNDS", "UNNAMED"):
        held[symbol].loc[:, [*PRICES, "adj_close"]] *= 100
    held["PENCE"]["dividend"] *= 100
    if day == FIRST:
        _empty(held["HOLES"], HOLE)
    if day < ADJUSTED:
        _empty(held["HOLES"], OLD_HOLE)
    if day == SECOND:
        _empty(held["LOST"], FIRST)
    return held


def _empty(bars: pd.DataFrame, day: date) -> None:
    is_day = bars["session"] == pd.Timestamp(day)
    bars.loc[is_day, [*PRICES, "adj_close", "volume"]] = np.nan


def fetch(folder: Path, day: date, whole: bool) -> FetchResult:
    """Bring the store up to a day, in a process that alone sees the stand-in."""
    market = read_market(folder / "made.toml")
    engine = open_engine(f"sqlite:///{folder / 'store.sqlite'}")
    source = YahooSource(market)
    context = MarketContext(market, source, engine, experiment_for(market), "cpu")
    try:
        return fetch_bars(context, day, whole=whole)
    finally:
        engine.dispose()


@dataclass
class AfterFetch:
    """What a fetch returned, how often it asked for each symbol, and the store after it."""

    result: FetchResult
    asked: Counter[str]
    stored: pd.DataFrame
    warnings: pd.DataFrame

    def bars(self, symbol: str) -> pd.DataFrame:
        """The bars in force of a symbol, by session."""
        return self.stored[self.stored["symbol"] == symbol].set_index("session")

    def bar(self, symbol: str, day: date) -> pd.Series:
        """The bar in force of a symbol on a day."""
        return self.bars(symbol).loc[pd.Timestamp(day)]

    def has(self, symbol: str, day: date) -> bool:
        """Whether a symbol has a bar on a day."""
        return pd.Timestamp(day) in self.bars(symbol).index

    def outcome(self, symbol: str) -> tuple[str, str]:
        """Status and detail of a symbol."""
        row = self.result.outcomes.set_index("symbol").loc[symbol]
        return row["status"], row["detail"]

    def reasons(self, symbol: str) -> list[str]:
        """The reasons of a symbol's warnings, sorted."""
        rows = self.warnings[self.warnings["symbol"] == symbol]
        return sorted(rows["reason"])

    def rejected(self, symbol: str) -> list[tuple[date, str]]:
        """The sessions of a symbol's rejected bars, and the reasons."""
        rows = self.result.rejected[self.result.rejected["symbol"] == symbol]
        return [(day.date(), why) for day, why in zip(rows["session"], rows["reason"], strict=True)]


@dataclass
class Fetches:
    """The fetches of this file, one after the other into one store."""

    first: AfterFetch
    second: AfterFetch
    third: AfterFetch
    unadjusted: AfterFetch  # a fetch of the last sessions alone would begin after the ex-day
    adjusted: AfterFetch
    whole: AfterFetch


@pytest.fixture(scope="module")
def fetches(tmp_path_factory: pytest.TempPathFactory) -> Fetches:
    folder = tmp_path_factory.mktemp("fetches")
    (folder / "made.toml").write_text(market_text({stock: stock for stock in STOCKS}))
    engine = open_engine(f"sqlite:///{folder / 'store.sqlite'}")
    upgrade(engine)
    always: dict[str, Fault] = {"NEVER": "no_adjclose"}

    def fetched(day: date, faults: dict[str, Fault], whole: bool = False) -> AfterFetch:
        yahoo.faults = always | faults
        yahoo.prices = told(day)
        if faults.get("LIVE"):  # the session under way
            yahoo.prices["LIVE"] = told(THIRD)["LIVE"]
        before = Counter(yahoo.requests)
        result = pool.submit(fetch, folder, day, whole).result()
        with reading(engine) as conn:
            stored = prices.prices(conn, "made", SESSIONS[0].date(), SESSIONS[-1].date())
            warned = read(conn, "price_warning", market="made", order="symbol, reason")
        return AfterFetch(
            result=result,
            asked=Counter(yahoo.requests) - before,
            stored=stored,
            warnings=warned,
        )

    with FakeYahoo({}, quotes=QUOTES) as yahoo, pytest.MonkeyPatch.context() as patch:
        for name, value in yahoo.environment().items():
            patch.setenv(name, value)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return Fetches(
                first=fetched(FIRST, ON_THE_FIRST),
                second=fetched(SECOND, ON_THE_SECOND),
                third=fetched(THIRD, {}),
                unadjusted=fetched(UNADJUSTED, {}),
                adjusted=fetched(ADJUSTED, {}),
                whole=fetched(ADJUSTED, {}, whole=True),
            )


def test_a_crumb_that_stays_invalid_is_no_word_about_the_stock(fetches: Fetches) -> None:
    status, detail = fetches.first.outcome("CRUMB")
    assert status == "unreachable"
    assert re.fullmatch("CRUMB: .*HTTP 401, .*Crumb", detail)
    assert fetches.first.bars("CRUMB").empty
    assert fetches.first.asked["CRUMB"] == 2  # the client tries with another cookie
    # The next fetch asks for the whole history.
    assert fetches.second.outcome("CRUMB")[0] == "ok"
    assert len(fetches.second.bars("CRUMB")) == len(fetches.second.bars("WELL"))


def test_a_crumb_that_the_client_renews_costs_nothing(fetches: Fetches) -> None:
    assert fetches.first.outcome("STALE") == ("ok", "")
    assert fetches.first.asked["STALE"] == 2
    assert len(fetches.first.bars("STALE")) == len(fetches.first.bars("WELL"))


def test_a_delisted_stock_keeps_its_past_and_is_asked_for_again(fetches: Fetches) -> None:
    status, detail = fetches.second.outcome("GONE")
    assert status == "no_data"
    assert re.match("GONE: .*delisted", detail)
    assert len(fetches.second.bars("GONE")) == len(fetches.first.bars("GONE")) > 60
    assert fetches.third.asked["GONE"] == 1
    assert fetches.third.has("GONE", SECOND)


def test_a_page_that_asks_for_consent_is_answered_by_the_client(fetches: Fetches) -> None:
    assert fetches.second.outcome("FORM") == ("ok", "")
    assert fetches.second.has("FORM", SECOND)


@pytest.mark.parametrize(
    ("symbol", "host"), [("WALL", "consent.yahoo.com"), ("PAGE", "query2.finance.yahoo.com")]
)
def test_a_page_instead_of_prices_is_named_and_its_stock_asked_for_again(
    fetches: Fetches, symbol: str, host: str
) -> None:
    status, detail = fetches.second.outcome(symbol)
    assert status == "malformed"
    assert re.match(f"{symbol}: .*HTTP 200, .*from {re.escape(host)} ", detail)
    assert not fetches.second.has(symbol, SECOND)
    assert fetches.third.has(symbol, SECOND)


def test_adjusted_closes_that_do_not_come_do_not_replace_those_stored(fetches: Fetches) -> None:
    status, detail = fetches.second.outcome("BARE")
    assert status == "malformed"
    assert detail.startswith("BARE: no adjusted closes")
    pd.testing.assert_frame_equal(fetches.second.bars("BARE"), fetches.first.bars("BARE"))
    assert fetches.third.has("BARE", SECOND)
    assert fetches.third.bars("BARE")["adj_close"].notna().all()


def test_a_stock_that_never_had_adjusted_closes_is_stored_without_and_said(
    fetches: Fetches,
) -> None:
    for fetched in (fetches.first, fetches.second, fetches.third):
        assert fetched.outcome("NEVER") == ("ok", "")
        assert fetched.result.unadjusted == ["NEVER"]
    bars = fetches.third.bars("NEVER")
    assert len(bars) == len(fetches.third.bars("WELL"))
    assert bars["adj_close"].isna().all()
    assert bars["close"].notna().all()


def test_a_row_without_prices_is_rejected_and_stored_once_it_has_some(fetches: Fetches) -> None:
    assert fetches.first.rejected("HOLES") == [(OLD_HOLE, "null_price"), (HOLE, "null_price")]
    assert not fetches.first.has("HOLES", HOLE)
    assert fetches.second.has("HOLES", HOLE)
    assert fetches.second.rejected("END") == [(SECOND, "null_price")]
    assert not fetches.second.has("END", SECOND)
    assert fetches.third.has("END", SECOND)


def test_an_old_row_without_prices_comes_with_the_whole_history_alone(fetches: Fetches) -> None:
    assert not fetches.adjusted.has("HOLES", OLD_HOLE)
    assert fetches.whole.has("HOLES", OLD_HOLE)


def test_a_stored_bar_stays_where_its_row_has_lost_its_prices(fetches: Fetches) -> None:
    assert fetches.second.rejected("LOST") == [(FIRST, "null_price")]
    assert fetches.second.bar("LOST", FIRST).equals(fetches.first.bar("LOST", FIRST))
    # It is no restatement: the whole history is not asked for.
    assert "LOST" not in fetches.second.result.restated
    assert fetches.second.asked["LOST"] == 1


def test_the_bar_of_a_session_under_way_is_not_stored(fetches: Fetches) -> None:
    assert fetches.second.outcome("LIVE") == ("ok", "")
    assert fetches.second.bars("LIVE").index.max() == pd.Timestamp(SECOND)


def test_of_two_rows_of_a_session_the_later_is_stored_until_the_final_one_comes(
    fetches: Fetches,
) -> None:
    final = TRADED["AGAIN"].loc[EX, "close"]
    assert fetches.second.bar("AGAIN", SECOND)["close"] == pytest.approx(1.01 * final)
    assert fetches.third.bar("AGAIN", SECOND)["close"] == pytest.approx(final)
    assert "AGAIN" not in fetches.third.result.restated


def test_a_dividend_that_is_adjusted_for_weeks_later_is_warned_of_until_then(
    fetches: Fetches,
) -> None:
    for fetched in (fetches.second, fetches.third, fetches.unadjusted):
        assert fetched.reasons("LATE") == ["contradicted_dividend"]
        assert fetched.bar("LATE", SECOND)["dividend"] == pytest.approx(paid("LATE"))
        assert fetched.bar("LATE", FIRST)["adj_close"] == fetched.bar("LATE", FIRST)["close"]
    assert "LATE" in fetches.adjusted.result.restated
    assert fetches.adjusted.reasons("LATE") == []
    for day in (OLD_HOLE, FIRST):
        bar = fetches.adjusted.bar("LATE", day)
        assert bar["adj_close"] / bar["close"] == pytest.approx(0.97)


def test_what_a_fund_pays_is_its_dividend_and_its_capital_gain(fetches: Fetches) -> None:
    assert fetches.second.bar("FUND", SECOND)["dividend"] == pytest.approx(paid("FUND"))
    assert fetches.second.reasons("FUND") == []


def test_a_capital_gain_that_is_deducted_twice_is_warned_of(fetches: Fetches) -> None:
    assert fetches.second.bar("DOUBLE", SECOND)["dividend"] == pytest.approx(paid("DOUBLE"))
    assert "contradicted_dividend" in fetches.second.reasons("DOUBLE")


@pytest.mark.parametrize("symbol", ["PENCE", "POUNDS"])
def test_prices_and_dividends_in_pence_or_pounds_are_stored_in_pounds(
    fetches: Fetches, symbol: str
) -> None:
    bars = fetches.second.bars(symbol)
    traded = TRADED[symbol].set_index("session").loc[bars.index]
    for name in PRICES:
        np.testing.assert_allclose(bars[name], traded[name], rtol=1e-9)
    assert bars["dividend"].dropna().to_list() == [pytest.approx(paid(symbol))]
    assert (bars["adj_close"] / bars["close"]).iloc[[0, -1]].to_list() == pytest.approx([0.97, 1])
    assert fetches.second.reasons(symbol) == []


def test_a_dividend_in_pounds_that_yahoo_calls_pence_is_warned_of(fetches: Fetches) -> None:
    assert fetches.second.bar("UNNAMED", SECOND)["dividend"] == pytest.approx(paid("UNNAMED") / 100)
    assert fetches.second.reasons("UNNAMED") == ["contradicted_dividend"]


def test_a_dividend_in_another_currency_is_left_out_and_deducted(fetches: Fetches) -> None:
    bars = fetches.second.bars("EUROS")
    assert bars["dividend"].isna().all()
    assert (bars["adj_close"] / bars["close"]).iloc[[0, -1]].to_list() == pytest.approx([0.97, 1])


def test_prices_in_another_currency_than_the_market_s_are_stored_as_they_are(
    fetches: Fetches,
) -> None:
    bars = fetches.second.bars("ABROAD")
    traded = TRADED["ABROAD"].set_index("session").loc[bars.index]
    np.testing.assert_allclose(bars["close"], traded["close"], rtol=1e-9)


def test_no_other_stock_is_doubtful(fetches: Fetches) -> None:
    assert set(fetches.second.warnings["symbol"]) == {"LATE", "DOUBLE", "UNNAMED"}
    assert set(fetches.second.result.restated) == FALLS.keys() - {"LATE"}
    assert fetches.third.result.failures.empty
    assert fetches.third.result.restated == []
