"""Whoever opens connections to Prefect's server and sends nothing, or half a
request, keeps nobody from it.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.request import urlopen

import pytest
import uvicorn

from flows.service import guarded_server as bounded_connections
from flows.service.guarded_server import BoundedConnection

pytestmark = pytest.mark.slow

HALF = {
    "nothing": b"",
    "half a line": b"GET /api/he",
    "half a header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "half a body": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{",
    "half of a second request": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /",
}


async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    while (await receive()).get("more_body"):
        pass
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server with little patience."""
    monkeypatch.setattr(bounded_connections, "PATIENCE_S", 0.3)
    monkeypatch.setattr(bounded_connections, "MOST_UNFINISHED", 5)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=BoundedConnection, lifespan="off", log_level="critical", timeout_keep_alive=3
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(30)


def ends(connection: socket.socket) -> bool:
    """Whether the server hangs up within half a minute."""
    connection.settimeout(30)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.one_case
@pytest.mark.parametrize("sent", HALF)
def test_a_request_that_is_not_whole_in_time_is_hung_up_on(port: int, sent: str) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(HALF[sent])
        assert ends(connection)


def test_one_who_sends_a_byte_now_and_then_is_hung_up_on(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        threading.Thread(target=dribble, args=(connection,), daemon=True).start()
        assert ends(connection)


def dribble(connection: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection.sendall(b"G")
            time.sleep(0.1)


def test_the_oldest_silent_connection_makes_room_and_a_caller_is_answered(port: int) -> None:
    with ExitStack() as opened:
        silent = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(30)
        ]
        begun = time.monotonic()
        with urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
            assert answer.read() == b"ok"
        assert time.monotonic() - begun < 10
        assert all(ends(each) for each in silent)


@pytest.mark.soak
def test_a_caller_who_asks_again_later_keeps_the_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(3):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b"ok"):
                answer += (got := connection.recv(4096))
                assert got, answer
            time.sleep(1.0)
