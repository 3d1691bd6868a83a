"""Readers that hang up, that do not read, and that are too many: the dashboard
goes on answering, and keeps nothing.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.pool import QueuePool

from flows.dashboard.app import DOWNLOADS, WAITING, link
from tests.support.browser import opened, until
from tests.support.dashboard_process import ask, port_of, started
from tests.support.dashboard_store import (
    BARE,
    MARKET,
    STOCKS,
    fill,
    served_site,  # noqa: F401 - the fixture `site`
)

pytestmark = pytest.mark.soak

ASKED = f"select * from price_latest where market = '{MARKET}' and symbol = '{STOCKS[0]}'"
# The buffers of a connection may hold 4 MB, or what the system allows, before its reader reads:
# eight rows of a million characters each, which both engines make in no time.
ROWS = 8
LONG_TEXT = f"replace(replace('{'x' * 100}', 'x', '{'y' * 100}'), 'y', '{'z' * 100}')"
NUMBERS = " union all ".join(["select 1 as n"] * ROWS)
LONG = f"select {LONG_TEXT} as long_text from ({NUMBERS}) numbers"
LONG_ANSWER = link(["sql", "rows.csv"], {"q": LONG})
HANG_UPS = 360
PATIENCE_S = 600  # on a busy machine a test takes longer than the server waits for a reader

sqlite_alone = pytest.mark.parametrize("site", ["sqlite"], indirect=True)


def hang_up(port, number):
    """Ask for a long answer and reset the connection: at once, after the first
    bytes, or after some more.
    """
    with contextlib.suppress(ConnectionError), opened(port, LONG_ANSWER) as asking:
        for _ in range(number % 3):
            asking.recv(4096)


@contextlib.contextmanager
def unread(site, count, address=LONG_ANSWER):
    """Readers that have the first byte of their answer and read no other."""
    with contextlib.ExitStack() as stack:
        readers = []
        for _ in range(
            count
        ):  # one after another: fewer statements than downloads may be under way
            reader = stack.enter_context(contextlib.closing(opened(site.port, address)))
            assert reader.recv(1) == b"H"
            readers.append(reader)
        yield readers


def pool_of(site):
    pool = site.engine.pool
    assert isinstance(pool, QueuePool)
    return pool


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_a_server_outlives_readers_that_hang_up(engine, store_url):
    fill(engine)
    pages = ("/alive", "/", f"/market/{MARKET}", LONG_ANSWER)
    with started(store_url, "--port", "0") as process:
        port = port_of(process)
        with ThreadPoolExecutor(16) as readers:
            list(readers.map(lambda number: hang_up(port, number), range(HANG_UPS)))
        assert process.poll() is None, process.communicate()[1]
        until(lambda: ask(port, LONG_ANSWER)[0] != 429)
        assert [ask(port, address)[0] for address in pages] == [200] * len(pages)


@pytest.mark.timeout(600)
def test_readers_that_do_not_read_hold_up_downloads_alone_and_who_is_refused_may_come_again(
    site, monkeypatch
):
    """They hold no connection, every page is answered, and one download more is refused."""
    monkeypatch.setattr("flows.dashboard.explore.READER_LIMIT_S", PATIENCE_S)
    whole = site.get(LONG_ANSWER)
    assert len(whole.body) == int(whole.headers["content-length"]) > 2**20
    with unread(site, DOWNLOADS):
        assert pool_of(site).checkedout() == 0
        for address in ("/alive", "/", f"/market/{MARKET}", f"/market/{MARKET}/stock/{STOCKS[0]}"):
            assert site.get(address).status == 200
        refused = site.get(LONG_ANSWER)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert f"{DOWNLOADS} downloads are being served" in refused.body
        assert pool_of(site).checkedout() == 0
    until(lambda: site.get(LONG_ANSWER).status == 200)
    assert site.get(LONG_ANSWER).body == whole.body


@pytest.mark.timeout(600)
@pytest.mark.soak
@sqlite_alone
def test_a_reader_that_does_not_read_is_hung_up_on(site, monkeypatch, caplog):
    monkeypatch.setattr("flows.dashboard.explore.READER_LIMIT_S", 0.2)
    with unread(site, DOWNLOADS) as readers:
        until(
            lambda: sum("because nobody read it" in said for said in caplog.messages) == DOWNLOADS
        )
        assert site.get(LONG_ANSWER).status == 200
        for each in readers:
            got = b"".join(iter(lambda each=each: each.recv(2**16), b""))
            assert b"\r\n\r\n" in got
            assert len(got) < 2**20


@pytest.mark.timeout(600)
def test_that_it_is_alive_is_answered_when_every_connection_and_every_worker_is_taken(site):
    pool = pool_of(site)
    with contextlib.ExitStack() as stack:
        for _ in range(pool.size() + pool._max_overflow):
            stack.enter_context(site.engine.connect())
        waiting = [
            stack.enter_context(contextlib.closing(opened(site.port, link(["market", BARE]))))
            for _ in range(WAITING)
        ]
        until(lambda: site.get("/").status == 429)
        refused = site.get("/")
        assert (
            refused.headers["retry-after"],
            f"{WAITING} pages are being served" in refused.body,
        ) == ("1", True)
        assert [site.get("/alive").body for _ in range(3)] == ["ok"] * 3
        for each in waiting[WAITING // 2 :]:
            each.close()
    until(lambda: site.get("/").status == 200)
    until(lambda: pool.checkedout() == 0)


@pytest.mark.timeout(600)
@sqlite_alone
def test_a_table_that_is_too_long_is_refused_and_not_cut(site, monkeypatch):
    monkeypatch.setattr("flows.dashboard.explore.LARGEST", 100_000)
    refused = site.get(LONG_ANSWER)
    assert refused.status == 400
    assert "MiB as " in refused.body
    assert site.get(link(["sql", "rows.csv"], {"q": f"{ASKED} limit 9"})).status == 200
