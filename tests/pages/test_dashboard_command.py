"""`dtml dashboard` as a process: it answers, ends when it is told to, and loads
neither torch nor Prefect.
"""

import re
import signal
import socket

import pytest

from tests.support.dashboard_process import ask, port_of, started
from tests.support.dashboard_store import MARKET, fill

pytestmark = pytest.mark.soak


@pytest.mark.by_quarters
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_and_ends_calmly(engine, store_url, number):
    fill(engine)
    with started(store_url, "--port", "0") as process:
        port = port_of(process)
        assert ask(port, "/alive") == (200, "ok")
        for address in (
            "/",
            f"/market/{MARKET}?every=60",
            f"/market/{MARKET}/stock/S01",
            "/table/run_log?run_id=toy-first",
        ):
            status, page = ask(port, address)
            assert status == 200
            assert MARKET in page
        process.send_signal(number)
        said, complained = process.communicate(timeout=550)
    assert (process.returncode, complained) == (0, "")
    assert said.splitlines() == ["ended", "loaded []"]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_port_that_is_taken_is_said_in_a_line(engine, store_url):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(store_url, "--port", str(port)) as process:
            said, complained = process.communicate(timeout=550)
    assert (process.returncode, said) == (1, "loaded []\n")
    assert re.fullmatch(
        rf"error: [^\n]*127\.0\.0\.1, port {port}: [^\n]*\n",
        complained,
    )


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_an_address_that_others_reach_is_warned_of_and_answers_to_any_name(engine, store_url):
    with started(store_url, "--port", "0", "--host", "0.0.0.0") as process:
        port = port_of(process)
        assert [ask(port, "/", host)[0] for host in ("0.0.0.0", "localhost", "desk.example")] == [
            200,
            200,
            200,
        ]
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=550)
    assert re.fullmatch(r"warning: [^\n]*0\.0\.0\.0 [^\n]*no login[^\n]*\n", complained)


def test_without_a_store_it_says_what_to_do(tmp_path):
    with started(f"sqlite:///{tmp_path / 'none.sqlite'}") as process:
        said, complained = process.communicate(timeout=550)
    assert (process.returncode, said) == (2, "loaded []\n")
    assert "run a night first" in complained
    assert complained.count("\n") == 1
