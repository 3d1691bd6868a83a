"""How much the dashboard does at once; who comes when that much is being done is told to come again."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, HTTPException, Request

WORKERS = 4  # threads that read the store, each with one connection: fewer than the engine's pool holds
WAITING = 24  # pages that are made or wait for a worker: a second or a few of them
DOWNLOADS = 8  # tables that are made or sent
COME_AGAIN_S = 1


class Bound:
    """So many at a time, counted by the event loop alone."""

    def __init__(self, most: int, what: str) -> None:
        self.most, self.what, self.taken = most, what, 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place that is given back however its taker ends; raises HTTPException, a 429, when none is free."""
        if self.taken >= self.most:
            said = f"{self.most} {self.what} are under way: try again"
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, said, {"retry-after": str(COME_AGAIN_S)})
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


@asynccontextmanager
async def workers(_app: FastAPI) -> AsyncIterator[None]:
    """As long as an application runs, no more threads than there are connections: none waits for one in vain."""
    current_default_thread_limiter().total_tokens = WORKERS
    yield


async def page_place(request: Request) -> AsyncIterator[None]:
    """Hold a place among the pages until the answer is sent."""
    with request.app.state.pages.place():
        yield


async def download_place(request: Request) -> AsyncIterator[None]:
    """Hold a place among the downloads until the last byte is sent, or its reader has left."""
    with request.app.state.downloads.place():
        yield
