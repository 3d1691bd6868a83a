"""What was known at a moment never changes; one night of a market at a time; an alert is raised once."""

import multiprocessing
import os
import signal
from datetime import UTC, date, datetime, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from db import repositories, schema, service
from db.engine import open_engine, reading, transaction, upgrade
from db.errors import StoreBusyError
from db.frames import frame
from db.locks import market_lock

DAY = date(2024, 1, 5)
SOON = datetime(2124, 1, 5, tzinfo=UTC)  # a machine whose clock is a century fast
FETCH = {"market": "toy", "as_of": DAY, "source": "files", "asked": 2, "fetched": 9, "stored": 3, "refused": 1}
LISTS = {"restated": ["A"], "failures": [{"symbol": "B", "status": "no_data", "detail": "B: nothing"}]}


def hold(url: str, held: Event, over: Event) -> None:
    with market_lock(open_engine(url), "toy"):
        held.set()
        over.wait(60)


def test_a_fetch_is_known_later_than_every_one_before_it_whatever_the_clock_says(engine: Engine) -> None:
    with transaction(engine) as conn:
        assert abs(service.next_known_at(conn, "toy") - datetime.now(UTC)) < timedelta(minutes=1)
        assert service.save_fetch(conn, FETCH | LISTS | {"known_at": SOON}) == 1
        assert service.next_known_at(conn, "toy") == SOON + timedelta(microseconds=1)
        assert service.next_known_at(conn, "other") < SOON
    with reading(engine) as conn:
        kept = frame(conn, sa.select(schema.price_fetch)).to_dict("records")
    assert kept == [FETCH | LISTS | {"known_at": pd.Timestamp(SOON), "as_of": pd.Timestamp(DAY)}]


def test_a_store_without_fetches_goes_by_its_bars(engine: Engine) -> None:
    stock = pd.DataFrame({"symbol": ["A"], "kind": "stock", "source_symbol": "A", "name": None, "sector": None})
    bar = pd.DataFrame({"symbol": ["A"], "session": pd.to_datetime(["2024-01-05"])})
    values = dict.fromkeys(("open", "high", "low", "close", "adj_close", "volume"), 2.0)
    with transaction(engine) as conn:
        repositories.save_instruments(conn, "toy", stock)
        bars = bar.assign(**values, dividend=float("nan"), split=float("nan"))
        repositories.append_prices(conn, "toy", bars, source="files", known_at=SOON)
        assert service.next_known_at(conn, "toy") == SOON + timedelta(microseconds=1)


def test_a_market_is_held_by_one_and_let_go_when_its_holder_is_killed(engine: Engine, store_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    held, over = spawn.Event(), spawn.Event()
    other = spawn.Process(target=hold, args=(store_url, held, over))
    other.start()
    assert held.wait(60)
    with pytest.raises(StoreBusyError, match="another process is at work on toy"), market_lock(engine, "toy"):
        pass
    with market_lock(engine, "another"):
        pass
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    with market_lock(engine, "toy"), transaction(engine) as conn:  # a night writes while it holds its market
        service.save_fetch(conn, FETCH | LISTS | {"known_at": SOON})
    with market_lock(engine, "toy"):
        pass


def test_an_alert_is_raised_once_and_waits_until_it_is_sent(engine: Engine) -> None:
    moment = datetime(2024, 1, 6, tzinfo=UTC)
    with transaction(engine) as conn:
        assert service.raise_alert(conn, "toy", DAY, "refused", message="no index", raised_at=moment)
        assert not service.raise_alert(conn, "toy", DAY, "refused", message="again", raised_at=SOON)
        assert service.raise_alert(conn, "toy", DAY, "late", message="not yet", raised_at=SOON)
        service.mark_sent(conn, "toy", DAY, "refused", sent_at=SOON)
        assert service.alerts(conn)["message"].tolist() == ["no index", "not yet"]
        assert service.alerts(conn, "toy", unsent=True)["kind"].tolist() == ["late"]
        assert service.alerts(conn, "other").empty


def test_a_market_is_held_in_a_folder_of_any_name_for_readers_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a%20b/store.sqlite"
    writer = open_engine(url)
    upgrade(writer)
    reader = open_engine(url, read_only=True)
    with market_lock(writer, "toy"), pytest.raises(StoreBusyError), market_lock(reader, "toy"):
        pass
    assert [folder.name for folder in tmp_path.iterdir()] == ["a%20b"]
