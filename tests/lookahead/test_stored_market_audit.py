"""The audit of a stored market: nights are made from stores that differ after a
day, and a read past it is caught.
"""

import json
import re
from dataclasses import replace
from datetime import date

import pandas as pd
import pytest
from sqlalchemy import create_engine

from db.rows.runs import latest_trained
from dtml.experiments import nightly_of, vary
from dtml.lookahead import audit as look_ahead
from dtml.lookahead import pipeline
from dtml.lookahead.pipeline import History
from dtml.markets import load_market
from dtml.prices.sessions import next_session, sessions_between
from flows.audit import stored_nights
from flows.commands.studies import LookAheadError, audit
from flows.nightly import train as train_module
from flows.nightly.context import MarketContext, Tonight, read_bars, stored_bars
from flows.nightly.fetch import history_start
from flows.settings import data_folder
from flows.studies import backtest as folds_module
from flows.studies.backtest import Nights
from tests.support.backtest_market import context_of
from tests.support.nights import BARS, SIMULATED, SMALL, FrameSource
from tests.support.stores import counts

AT, LAST = pd.Timestamp("2024-03-05"), date(2024, 5, 31)
BACK = 2  # nights before the last one that are run: one night too far back shows in the last alone


@pytest.fixture(autouse=True)
def _few_nights(monkeypatch):
    monkeypatch.setattr(pipeline, "LOOK_BACK", BACK)


@pytest.fixture
def context():
    """A market context whose own store is never asked."""
    market = load_market("simulated").with_symbols(sorted(SIMULATED.market.symbols))
    experiment = vary(
        nightly_of({}, z_close="adjusted", returns="adj_close", max_return=0.35), SMALL
    )
    return MarketContext(market, FrameSource(BARS), create_engine("sqlite://"), experiment, "cpu")


@pytest.fixture
def history(context):
    """As many sessions as a training reads before AT, and those after it."""
    bars = BARS[BARS["session"].between("2023-08-01", str(LAST))]
    sessions = sessions_between("XNYS", bars["session"].min().date(), next_session("XNYS", LAST))
    return History(bars, sessions, context.market)


def reading_on(honest):
    """A read of the store that goes on for one session after the last one asked for."""

    def leaky(context, first, last, known_at=None):
        return honest(context, first, next_session("XNYS", last), known_at)

    return leaky


KNOWN = Tonight.known


def known_by(read, *, of_training=False):
    """What a night knew, if it, or its training, came by this read."""

    def leaky(tonight, first):
        is_of_training = first == history_start(tonight.context, tonight.as_of)
        if is_of_training != of_training:
            return KNOWN(tonight, first)
        return read(tonight.context, first, tonight.as_of, tonight.known_at)

    return leaky


@pytest.mark.soak
@pytest.mark.parametrize("normalisation", ["shared", "per_stock"])
def test_nights_are_the_same_whatever_the_store_holds_of_later_sessions(
    context, history, normalisation, tmp_path
):
    experiment = vary(context.experiment, {"normalisation": normalisation})
    found = stored_nights(replace(context, experiment=experiment), history, AT)
    assert found.passed, found.detail
    assert (found.check, found.at) == ("stored_nights", AT)
    assert re.match(r"27 .*nights.* 27 .*fold", found.detail)
    assert data_folder() == tmp_path / "data"
    assert not data_folder().exists()


def as_known_now(honest):
    """A read of the store that ignores the moment as known at which bars are asked for."""

    def leaky(context, first, last, known_at=None):
        return honest(context, first, last)

    return leaky


def with_tomorrows_prices(bars, last):
    """The bars up to a session, whose closes are those of the session after."""
    prices = ["close", "adj_close"]
    bars = bars.assign(**bars.groupby("symbol")[prices].shift(-1).fillna(bars[prices]))
    return bars[bars["session"] <= pd.Timestamp(last)]


def foretelling(context, first, last, known_at=None):
    bars, watermark = reading_on(stored_bars)(context, first, last, known_at)
    return with_tomorrows_prices(bars, last), watermark


def foretelling_in_a_fold(nights, as_of):
    return with_tomorrows_prices(BARS_OF(nights, next_session("XNYS", as_of)), as_of)


def newest(conn, relation, market, **_):
    return latest_trained(conn, relation, market)


BARS_OF = Nights.bars_of
LEAKS = {
    "later fetches in a night": (
        Tonight,
        "known",
        known_by(as_known_now(stored_bars)),
        r"single nights.*\(27 of 27, ",
    ),
    "later fetches in a training": (
        Tonight,
        "known",
        known_by(as_known_now(stored_bars), of_training=True),
        "reads .*later .*fetches",
    ),
    "later fetches in a fold": (
        folds_module,
        "read_bars",
        as_known_now(read_bars),
        r"fold.*\(27 of 27, ",
    ),
    "a session more in a training": (
        Tonight,
        "known",
        known_by(reading_on(stored_bars), of_training=True),
        "training.*2024-03-05.*later sessions",
    ),
    "a session more in a night": (
        Tonight,
        "known",
        known_by(reading_on(stored_bars)),
        "single nights change",
    ),
    "tomorrow's prices in a night": (
        Tonight,
        "known",
        known_by(foretelling),
        r"single nights.*\(9 of 27, ",  # those of the last night
    ),
    "tomorrow's prices in a fold": (Nights, "bars_of", foretelling_in_a_fold, r"fold.*\(9 of 27, "),
    "a later model": (train_module, "latest_trained", newest, "later model"),
}


@pytest.mark.one_case("later fetches in a night")
@pytest.mark.parametrize("name", LEAKS)
def test_a_night_that_reads_what_came_later_is_caught(context, history, monkeypatch, name):
    owner, read, leaky, detail = LEAKS[name]
    monkeypatch.setattr(owner, read, leaky)
    found = stored_nights(context, history, AT)
    assert not found.passed
    assert re.search(detail, found.detail)


@pytest.mark.soak
def test_nights_that_are_all_refused_are_no_evidence(context, history):
    halted = (history.bars["symbol"] == "L01") & (
        history.bars["session"] > AT - pd.Timedelta(60, "D")
    )
    strict = replace(context.market, checks=replace(context.market.checks, max_missing=0.0))
    halting = replace(history, bars=history.bars[~halted], market=strict)
    found = stored_nights(replace(context, market=strict), halting, AT)
    assert not found.passed
    assert re.search("no night.*: 1 of 9 .*2024-03-01", found.detail)


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_audit_of_a_market_holds_its_nights_and_leaves_the_store_as_it_was(
    run_request, monkeypatch, capsys
):
    # the second audit differs in its nights alone
    monkeypatch.setattr(look_ahead, "audit", kept(look_ahead.audit))
    before, files = counts(context_of(run_request).engine), set(data_folder().rglob("*"))
    audit.__wrapped__(run_request, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert {row["audited"] for row in found["findings"]} == {
        *("pipeline", "nights", "list", "ranking")
    }
    assert [row["check"] for row in found["findings"]].count("stored_nights") == 1
    assert set(data_folder().rglob("*")) == files
    assert counts(context_of(run_request).engine) == before
    monkeypatch.setattr(Tonight, "known", known_by(reading_on(stored_bars)))
    with pytest.raises(LookAheadError, match="`detail` of stored_nights"):
        audit.__wrapped__(run_request)
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search("50 stocks .*1,000 sessions", printed)
    assert "FAILED" in printed


def kept(work):
    """What a work finds the first time, whenever it is asked."""
    found = []

    def asked(*given, **how):
        if not found:
            found.append(work(*given, **how))
        return found[0]

    return asked
