"""What was known at a moment never changes; one night of a market at a time; an
alert is raised once.
"""

import os
import signal
import time
from datetime import UTC, date, datetime, timedelta

import pandas as pd
import pytest
import sqlalchemy as sa

from db.admin.checks import check_store
from db.connection.locks import is_held, market_lock
from db.engine import open_engine, reading, transaction
from db.errors import StoreBusyError, StoreError
from db.rows import fetches, prices
from db.save import save
from tests.support.kinds import postgresql_alone
from tests.support.prediction_rows import save_stocks

DAY = date(2024, 1, 5)
PATIENCE_S = 30.0
SOON = datetime(2124, 1, 5, tzinfo=UTC)  # a machine whose clock is a century fast
FETCH = {
    "market": "toy",
    "as_of": DAY,
    "source": "files",
    "asked": 2,
    "fetched": 9,
    "stored": 3,
    "rejected": 1,
    "code": "def fetch(first, last): ...",
}
LISTS = {
    "restated": ["A"],
    "failures": [{"symbol": "B", "status": "no_data", "detail": "B: nothing"}],
}


def hold(url, held, over):
    with market_lock(open_engine(url), "toy"):
        held.set()
        over.wait(60)


def save_bar(conn, known_at, close=2.0):
    bar = pd.DataFrame({"symbol": ["A"], "session": pd.to_datetime(["2024-01-05"])})
    values = dict.fromkeys(("open", "high", "low", "close", "adj_close", "volume"), close)
    save_stocks(conn, ["A"])
    bars = bar.assign(**values, dividend=float("nan"), split=float("nan"))
    prices.append_prices(conn, "toy", bars, source="files", known_at=known_at)


def test_a_fetch_a_year_ahead_is_said_and_dates_nothing_that_follows(engine):
    begun = datetime.now(UTC)
    first, later = begun + timedelta(days=365), begun + timedelta(days=366)
    with transaction(engine) as conn:
        save_bar(conn, begun, 2.0)
        for moment, close in ((first, 3.0), (later, 4.0)):
            save_bar(conn, moment, close)
            save(conn, "price_fetch", FETCH | LISTS | {"known_at": moment})
        with pytest.raises(
            StoreError,
            match=r"fetch of toy .*clock .*restore a backup",
        ):
            fetches.next_known_at(conn, "toy")
        with pytest.raises(StoreError, match=r"wrong,.*nothing was stored"):
            fetches.require_clocks_agree(conn, "toy")
        fetches.require_clocks_agree(conn, "other")
    assert finding(engine) == [first, later]


def finding(engine):
    said = next(each for each in check_store(engine) if "dated ahead" in each.check)
    assert said.state == ("failed" if said.found else "ok")
    return [row["known_at"] for row in said.found]


@pytest.mark.soak
def test_a_market_is_held_by_one_and_let_go_when_its_holder_is_killed(engine, store_url, forks):
    held, over = forks.Event(), forks.Event()
    other = forks.Process(target=hold, args=(store_url, held, over))
    other.start()
    assert held.wait(60)
    assert which_are_held(engine) == ["toy"]
    with (
        pytest.raises(StoreBusyError, match=r"another process .*toy"),
        market_lock(engine, "toy"),
    ):
        pass
    with market_lock(engine, "another"):
        pass
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    with (
        market_lock(engine, "toy"),
        transaction(engine) as conn,
    ):  # a night writes while it holds its market
        save(conn, "price_fetch", FETCH | LISTS | {"known_at": SOON})
    with market_lock(engine, "toy"):
        assert which_are_held(engine) == ["toy"]
    end = time.monotonic() + PATIENCE_S
    while which_are_held(engine) and time.monotonic() < end:
        time.sleep(0.05)  # PostgreSQL lets go when it notices that the connection has ended
    assert which_are_held(engine) == []


@pytest.mark.soak
@postgresql_alone
def test_a_lock_that_the_server_drops_is_taken_again_and_until_then_nothing_begins(
    engine, store_url
):
    other = open_engine(store_url)
    with market_lock(engine, "toy"):
        end_sessions_with_locks(other)
        wait_until(lambda: which_are_held(other) == ["toy"])
        with reading(engine):
            pass
        end_sessions_with_locks(other)
        with market_lock(other, "toy"):
            wait_until(lambda: is_refused(engine))
            with pytest.raises(StoreBusyError, match="toy"), transaction(engine):
                pass
        wait_until(lambda: not is_refused(engine))
        assert which_are_held(engine) == ["toy"]
    assert which_are_held(other) == []
    other.dispose()


def end_sessions_with_locks(engine):
    with reading(engine) as conn:
        conn.execute(
            sa.text(
                "select pg_terminate_backend(pid, 5000) from pg_locks where locktype = 'advisory'"
            )
        )


def is_refused(engine):
    try:
        with reading(engine) as conn:
            conn.execute(sa.text("select 1"))
    except StoreBusyError:
        return True
    return False


def wait_until(what):
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def which_are_held(engine):
    """Of three markets, the third of which nobody has ever locked."""
    with reading(engine) as conn:
        return [name for name in ("toy", "another", "none") if is_held(conn, name)]


def test_a_fetch_is_known_later_than_every_one_of_its_market_whatever_the_clock_says(engine):
    past, soon = datetime(2024, 1, 5, tzinfo=UTC), datetime.now(UTC) + timedelta(hours=12)
    with transaction(engine) as conn:
        for market, moments in (("toy", (soon, past)), ("far", (past, past - timedelta(days=1)))):
            for known_at in moments:
                fetch = {"market": market, "known_at": known_at}
                assert save(conn, "price_fetch", FETCH | LISTS | fetch) == 1
        assert fetches.next_known_at(conn, "toy") == soon + timedelta(microseconds=1)
        for market in ("far", "new"):
            now = datetime.now(UTC)
            assert abs(fetches.next_known_at(conn, market) - now) < timedelta(minutes=1)
