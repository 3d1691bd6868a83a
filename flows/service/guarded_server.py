"""Run Prefect's own server, only for users of this machine who know its login.

The number and the time of connections that send nothing, or only a part of a request, are limited.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from threading import Thread
from typing import Any

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_UNFINISHED = 64  # connections; with more, the oldest is closed, so that new clients get in
PATIENCE_S = 10.0  # between two checks; a request that is incomplete at both is given up


class BoundedConnection(H11Protocol):
    """Serve HTTP on a connection, and close it if a request stays incomplete for too long.

    Too long is between `PATIENCE_S` and twice that.
    """

    begun: float
    check: asyncio.TimerHandle
    # What was unfinished at the last check: a request, this connection, or None.
    unfinished_before: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, and close the oldest unfinished one if there are too many."""
        super().connection_made(transport)
        self.begun = self.loop.time()
        self.check = self.loop.call_later(PATIENCE_S, self._hang_up_on_the_unfinished)
        all_connections: set[Any] = self.connections
        unfinished_connections = [
            connection
            for connection in all_connections
            if isinstance(connection, BoundedConnection) and connection.unfinished
        ]
        if len(unfinished_connections) > MOST_UNFINISHED:
            oldest = min(unfinished_connections, key=lambda connection: connection.begun)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        self.check.cancel()
        super().connection_lost(exc)

    @property
    def unfinished(self) -> object:
        """Return the request whose body is incomplete, this connection, or None.

        It is this connection if the server has not received the whole head of a request: of the
        first one, or of the next one after an answer, if a part of that has come. It is None if the
        request is complete, or if the connection is kept alive and has sent nothing since the last
        answer.
        """
        # In uvicorn, `cycle` is the current request with its answer, None before the first.
        if self.cycle is None:
            return self
        if self.cycle.response_complete:
            # This timer runs from the answer until the first byte of the next request. `cycle` is
            # that of the old request until the whole head of the next one has come.
            is_kept_alive = self.timeout_keep_alive_task is not None
            return None if is_kept_alive else self
        return self.cycle if self.cycle.more_body else None

    def _hang_up_on_the_unfinished(self) -> None:
        """Close this connection if the same thing is unfinished as at the last check."""
        if self.transport.get_protocol() is not self:
            return  # it has become a WebSocket, which has its own pings
        unfinished = self.unfinished
        # The same object as at the last check: the same request is incomplete, or none has come.
        if unfinished is not None and unfinished is self.unfinished_before:
            self.transport.abort()
            return
        self.unfinished_before = unfinished
        self.check = self.loop.call_later(PATIENCE_S, self._hang_up_on_the_unfinished)


HOST = "127.0.0.1"  # localhost may also be ::1, where another program may have the port
END_LIMIT_S = 10  # for the server to record the last runs of tasks


class OwnPagesOnly:
    """Reject the requests that pages of other origins make.

    Browsers send the origin of the page in a header; other programs send no such header and pass.
    """

    def __init__(self, app: ASGIApp, origin: str) -> None:
        self.app = app
        self.origin = origin.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the requests of the server's own pages, and those without an origin."""
        if scope["type"] in ("http", "websocket"):
            origins = [value for name, value in scope["headers"] if name == b"origin"]
            if any(origin != self.origin for origin in origins):
                return await _refuse(scope, receive, send)
        return await self.app(scope, receive, send)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    response = PlainTextResponse("this server rejects cross-origin requests", 403)
    await response(scope, receive, send)


def guarded(app: ASGIApp, origin: str) -> ASGIApp:
    """Return the application behind two checks of each request.

    Its Host header must be 127.0.0.1, and a page that sends it must be of `origin`, the server's.
    """
    by_name = TrustedHostMiddleware(app, allowed_hosts=[HOST], www_redirect=False)
    return OwnPagesOnly(by_name, origin)


def main() -> None:
    """Serve Prefect's own application on an inherited socket, until a signal or the parent's end.

    The argument of the process is the number of the socket.
    """
    listening = socket.socket(fileno=int(sys.argv[1]))
    origin = f"http://{HOST}:{listening.getsockname()[1]}"
    Thread(target=_end_with_parent, daemon=True).start()
    # By default Prefect allows every origin.
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = origin
    # Imported after the variable is set, which Prefect reads once. `create_app` is what `prefect
    # server start` serves; no setting of Prefect checks the origin and the host of a request, and
    # limits connections.
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    config = uvicorn.Config(
        guarded(create_app(final=True), origin),
        http=BoundedConnection,
        lifespan="on",
        log_level=settings.logging_level.lower(),
        timeout_keep_alive=settings.api.keepalive_timeout,
        # Half of the time is for open requests, half for the services of Prefect's server.
        timeout_graceful_shutdown=END_LIMIT_S // 2,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _end_with_parent() -> None:
    """End when the parent has ended: only then is the other end of standard input closed."""
    # Not by sys.stdin: its buffer would be locked while this waits, and Python could not exit.
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_LIMIT_S)
    os._exit(1)  # the signal has not ended it


if __name__ == "__main__":
    main()
