"""A second source says the same night where prices differ, and changes no prediction."""

import json
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import text

from db.admin.checks import check_store
from db.engine import open_engine, reading, upgrade
from db.read import read
from dtml.markets.definition import SecondSource
from dtml.prices.bars import PRICES
from dtml.prices.sessions import next_session
from dtml.sources import Fetched
from dtml.sources.second import SecondFeed
from flows.nightly.night import NightRefusedError, run_night
from flows.second_source import fetch_and_compare
from flows.service.alerts import after_night
from flows.service.status import market_status
from tests.support.facts import in_order
from tests.support.nights import (
    AS_OF,
    BARS,
    FrameSource,
    after_nights,
    small_market,
    without,
)

SECOND = SecondSource(source="files", prices=Path("second.csv"))
NEXT = next_session("XNYS", AS_OF)
THIRD = next_session("XNYS", NEXT)
NOON = datetime(2024, 7, 2, 16, tzinfo=UTC)
STOCK = "F01A"


@dataclass
class Troubled(FrameSource):
    """A source whose answers go through `trouble`, with how often it was asked by then."""

    trouble: Callable[[Fetched, int], Fetched] = field(kw_only=True)

    def fetch(self, first, last):
        return self.trouble(super().fetch(first, last), len(self.asked))


def raises(error, after=0):
    """Trouble that begins when so many answers were given."""

    def trouble(answer, asked):
        if asked > after:
            raise error
        return answer

    return trouble


def hangs(answer, _):
    """Answer when nobody waits any more."""
    threading.Event().wait(2)
    return answer


NO_MORE = RuntimeError("no more")


@pytest.fixture
def second(context, monkeypatch):
    """Return a function that gives the market a second source: its bars, or the source itself."""

    def give(bars, settings=SECOND):
        source = FrameSource(bars, name="files") if isinstance(bars, pd.DataFrame) else bars
        feed = SecondFeed(source=source, names={})
        monkeypatch.setattr("flows.second_source.open_second_source", lambda _: feed)
        market = replace(context.market, second_source=settings)
        return replace(context, market=market, source=FrameSource(BARS))

    return give


def bars_with(change, symbol=STOCK, day=AS_OF):
    """The bars, of which one has its values multiplied."""
    bars = BARS.copy()
    is_bar = (bars["symbol"] == symbol) & (bars["session"] == pd.Timestamp(day))
    for name, factor in change.items():
        bars.loc[is_bar, name] *= factor
    return bars


def in_pence():
    names = [*PRICES, "adj_close"]
    return BARS.assign(**{name: BARS[name] * 100 for name in names})


def asked(engine, sql):
    with reading(engine) as conn:
        return [tuple(row) for row in conn.execute(text(sql))]


def rows(context, night=AS_OF):
    """The values that differed in a night."""
    found = asked(
        context.engine,
        f"select symbol, session, field from price_disagreement where as_of = '{night}' "
        "order by session, symbol, field",
    )
    return [(symbol, str(session)[:10], field) for symbol, session, field in found]


def comparisons(context):
    with reading(context.engine) as conn:
        found = conn.execute(text("select * from comparison_log order by as_of"))
        return [dict(row) for row in found.mappings()]


def alerts(context, day):
    after_night(context.engine, context.name, day)
    with reading(context.engine) as conn:
        stored = read(conn, "alert", order="raised_at, market, as_of, kind")
    is_of_night = stored["as_of"] == pd.Timestamp(day)
    return stored.loc[is_of_night & (stored["kind"] == "second_source"), "message"].tolist()


def said_in_status(context):
    return market_status(context.engine, context.name, context.market, NOON).second_source


@pytest.mark.on_postgresql
def test_what_differs_is_stored_with_both_values_and_a_rerun_replaces_it(second):
    mine = second(without(bars_with({"close": 1.02}), ["L02"]))
    fetch_and_compare(mine, AS_OF)
    differing = [(STOCK, str(AS_OF), "close"), ("L02", str(AS_OF), "bar")]
    assert rows(mine) == differing
    shown = asked(
        mine.engine,
        "select first_value, second_value, difference, source from price_disagreement "
        "where field = 'close'",
    )
    stored = asked(
        mine.engine,
        f"select close from price_latest where symbol = '{STOCK}' and session = '{AS_OF}'",
    )
    assert shown == [
        (stored[0][0], pytest.approx(1.02 * stored[0][0]), pytest.approx(0.02), "files")
    ]
    (comparison,) = comparisons(mine)
    assert comparison["symbols"] == len(mine.market.symbols) + 1
    assert (comparison["differing"], comparison["failure"]) == (2, None)
    fetch_and_compare(mine, AS_OF, whole=True)
    assert rows(mine) == differing
    assert len(comparisons(mine)) == 1
    assert {finding.state for finding in check_store(mine.engine)} == {"ok"}


@pytest.mark.soak
def test_a_day_lost_for_all_tickers_is_said_the_same_night_in_one_sentence(context, second, caplog):
    """The source of the night has no bar of its session: the night is refused, and says why."""
    after_nights(context, AS_OF)
    lost = BARS[BARS["session"] != pd.Timestamp(NEXT)]
    mine = second(BARS)
    symbols = len(mine.market.symbols) + 1
    refused = replace(mine, source=FrameSource(lost))
    with pytest.raises(NightRefusedError) as caught:
        run_night(refused, NEXT)
    assert re.search(f"source, files, .*{symbols} symbols$", str(caught.value))
    no_bar = f"no bar of {NEXT}.* {symbols} symbols"
    (line,) = [each for each in caplog.messages if re.search(no_bar, each)]
    sentence = line.removeprefix("simulated: ")
    assert alerts(mine, NEXT) == [f"second source: {sentence}"]
    assert re.fullmatch(f"files differs in {symbols} .*{NEXT}", said_in_status(mine))
    assert len(rows(mine, NEXT)) == symbols
    # The day never comes: the next night goes on without it, and its page says so.
    page = run_night(refused, THIRD).report.read_text(encoding="utf-8")
    assert page.count("One row per kind of difference") == 1
    assert len(rows(mine, THIRD)) == symbols
    assert alerts(mine, THIRD) == []  # it was said before
    # It comes after all.
    fetch_and_compare(mine, THIRD, whole=True)
    assert rows(mine, THIRD) == []
    assert said_in_status(mine) == "files agrees"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Troubled(BARS, trouble=raises(NO_MORE)), "RuntimeError: no more"),
        (Troubled(BARS, trouble=hangs), "longer than 0.2 s"),
        (FrameSource(BARS[:0]), " 10 symbols: no_data"),
    ],
    ids=["raises", "hangs", "is empty"],
)
def test_a_second_source_that_fails_ends_no_fetch_and_is_said(second, source, words, caplog):
    mine = second(source, replace(SECOND, seconds=0.2 if "longer" in words else 60.0))
    fetched = fetch_and_compare(mine, AS_OF)
    assert fetched.stored == fetched.fetched > 0
    (comparison,) = comparisons(mine)
    assert words in comparison["failure"]
    assert (comparison["symbols"], comparison["bars"]) == (0, 0)
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    told = in_order("simulated: second source: files ", f": {comparison['failure']}; ")
    assert any(re.match(told, each) for each in warnings)
    assert said_in_status(mine) == f"files failed: {comparison['failure']}"


def test_the_command_compares_with_what_a_market_s_file_names(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = BARS[BARS["session"] > "2024-03-01"].rename(columns={"session": "date"})
    table.to_csv("prices.csv", index=False)
    (tmp_path / "vendor").mkdir()
    other = bars_with({"close": 1.02}).rename(columns={"session": "date"})
    is_stock = other["symbol"] != "SIMX"
    other["symbol"] = other["symbol"].where(~is_stock, other["symbol"] + ".US")
    other.to_csv("vendor/second.csv", index=False)
    second = 'source = "files"\nprices = "vendor/second.csv"\nsuffix = ".US"\n'
    market = small_market(source="files", more=f"[second_source]\n{second}")
    (tmp_path / "own.toml").write_text(market, encoding="utf-8")
    paths = ("--market-file", "own.toml", "--prices", "prices.csv", "--as-of", str(AS_OF))
    code, _, complained = command("fetch", "own", *paths)
    assert code == 0, complained
    assert re.search(f"close.*1 bar.*1 symbol, .*{STOCK} on {AS_OF}", complained)
    code, said, _ = command("status", "own", "--json")
    (status,) = json.loads(said)
    assert code == 0
    assert re.fullmatch(f"files differs in 1 .*{AS_OF}", status["second_source"])
    _, said, _ = command("status", "own")
    assert "second source" in said
    _, said, _ = command("query", "select field, source from price_disagreement", "--csv")
    assert said.split() == ["field,source", "close,files"]


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # beside another SQLite store
def test_inputs_and_predictions_are_the_same_bits_with_and_without_a_second_source(
    context, second, tmp_path, monkeypatch
):
    after_nights(context, AS_OF, NEXT)
    alone = made_of_nights(context.engine)
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "beside"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "beside" / "reports"))
    engine = open_engine(f"sqlite:///{tmp_path / 'beside.sqlite'}")
    upgrade(engine)
    bars = without(in_pence(), ["L01"])
    mine = replace(second(bars), engine=engine)
    for day in (AS_OF, NEXT):
        run_night(mine, day)
    assert len(rows(mine, NEXT)) > 10
    assert made_of_nights(engine) == alone
    engine.dispose()


def made_of_nights(engine):
    return [
        asked(engine, sql)
        for sql in (
            "select as_of, inputs_hash, predictions from night_log order by as_of",
            "select checkpoint_hash from run_log order by created_at",
            "select target, symbol, probability, probability_std from prediction_history "
            "order by target, symbol",
            "select symbol, session, open, close, adj_close, volume from price_latest "
            "order by symbol, session",
        )
    ]
