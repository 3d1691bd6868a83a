"""Limit the number and the time of connections that send nothing, or only a part of a request."""

import asyncio
from typing import Any

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
