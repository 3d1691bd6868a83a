"""Limit the requests that are served at once; run visitors' SQL in separate threads, and end it
when its client disconnects.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from http import HTTPStatus
from threading import Thread, get_native_id
from typing import Any, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, Request
from starlette.exceptions import HTTPException
from starlette.types import Receive

from db.connection.user_sql import Interruption
from flows.dashboard.guard import is_of_another_site

STATEMENTS = 2  # at once, each with a thread and a connection of its own
COME_AGAIN_S = 1  # the time after which a refused client should try again
NICENESS = 10  # added to that of their threads, so that pages have priority

Result = TypeVar("Result")
Work = Callable[[Interruption], Result]  # runs in a thread, until it ends or is interrupted


def place_among(kind: str, most: int) -> Any:
    """Return a dependency for FastAPI: one of `most` places of a kind, held during a request.

    The place becomes free when the last byte is sent or the client has left. A request that finds
    no free place is answered with 429.
    """

    async def place(request: Request) -> AsyncIterator[None]:
        places: asyncio.Semaphore = request.app.state.places[kind]
        if places.locked():
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS,
                detail=f"{most} {kind} are being served already: try again",
                headers={"retry-after": str(COME_AGAIN_S)},
            )
        async with places:
            yield

    return Depends(place)


class Statements:
    """Run the SQL that visitors type, at most `STATEMENTS` at once.

    A further statement is refused and does not wait.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(STATEMENTS)
        self._cancellers = CapacityLimiter(STATEMENTS)

    async def run(self, request: Request, work: Work[Result]) -> Result:
        """Return the result of `work`, a visitor's statement, which runs in a new thread.

        It is interrupted when its client disconnects. Raises HTTPException: a 403 for a link of
        another site, a 429 when STATEMENTS are running.
        """
        if is_of_another_site(request.headers):
            raise HTTPException(
                HTTPStatus.FORBIDDEN,
                detail="a link from another site cannot run SQL here: copy its address into the "
                "browser's address bar",
            )
        if self._places.locked():
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS,
                detail=f"{STATEMENTS} statements are running already: try again",
                headers={"retry-after": str(COME_AGAIN_S)},
            )
        interruption = Interruption()
        async with self._places, self._ended_with_its_reader(request.receive, interruption):
            return await _in_own_thread(lambda: work(interruption))

    async def run_while_read(self, request: Request, work: Work[Result]) -> Result:
        """Return the result of `work`, which runs in a thread for pages.

        It is interrupted when its client disconnects.
        """
        interruption = Interruption()
        async with self._ended_with_its_reader(request.receive, interruption):
            return await run_sync(work, interruption)

    @asynccontextmanager
    async def _ended_with_its_reader(
        self, receive: Receive, interruption: Interruption
    ) -> AsyncIterator[None]:
        """Interrupt the work inside when its client disconnects, and when the server ends."""

        async def interrupt() -> None:
            # It runs in a thread, because the request to PostgreSQL needs a connection.
            await run_sync(interruption.request, limiter=self._cancellers)

        async def interrupt_at_disconnect() -> None:
            message = await receive()
            while message["type"] != "http.disconnect":
                message = await receive()
            await interrupt()

        watcher = asyncio.create_task(interrupt_at_disconnect())
        try:
            yield
        except asyncio.CancelledError:  # the server ends
            await interrupt()
            raise
        finally:
            watcher.cancel()


async def _in_own_thread(work: Callable[[], Result]) -> Result:
    """Return the result of work in a new thread of low priority.

    The thread does nothing else afterwards, because its priority could not be raised again.
    """
    result: Future[Result] = Future()
    # As a running future it cannot be cancelled: the thread sets its result in any case.
    result.set_running_or_notify_cancel()

    def run() -> None:
        # On Linux each thread has its own priority.
        if sys.platform == "linux":
            thread = get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, niceness + NICENESS)
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the work is awaited
            result.set_exception(error)

    Thread(target=run, name="statement", daemon=True).start()
    return await asyncio.wrap_future(result)
