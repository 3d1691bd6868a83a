"""Serve the prediction history as pages to browse, from a store that is opened read-only.

Every page has an address of its own and can be read without a script; charts become interactive in
a browser that runs this server's one script.

Requests that pages of other sites make, as browsers tell in a header, are rejected; followed links
and other programs are answered. Headers forbid a browser to do anything but show an answer.
Visitors' SQL runs in a limited number of threads, and ends when its client disconnects.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import get_native_id
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

import jinja2
from anyio import CapacityLimiter, move_on_after
from anyio.to_thread import current_default_thread_limiter, run_sync
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from pydantic import AfterValidator, BeforeValidator, Field
from sqlalchemy import Engine
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from db.connection.user_sql import Interruption
from db.engine import reading
from db.errors import StoreError, StoreUsageError
from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import LEVELS
from dtml.pages.charts import script
from dtml.pages.rendering import environment, link
from flows.dashboard import monitoring
from flows.dashboard.explore import (
    Download,
    answer_file,
    rows_link,
    sql_page,
    table_page,
    topics,
)
from flows.dashboard.market import market_page
from flows.dashboard.markets import (
    NotThereError,
    markets_page,
    require_market,
)
from flows.dashboard.ranking import market_ranking_page
from flows.dashboard.running import LONGEST_REFRESH_S, live_page, running_page
from flows.dashboard.stock import meant_symbol, stock_page
from flows.dashboard.studies import report_page, study_page
from flows.dashboard.terms import TERMS
from flows.failures import innermost_lines
from flows.service.timeliness import Timeliness
from translation.definitions import expectation

log = logging.getLogger(__name__)

# Values of the header Sec-Fetch-Site: "none" is a person who typed an address or chose a bookmark.
# Another port of this machine is "same-site", and may belong to another program.
OWN = ("same-origin", "none")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
REFUSAL = "this dashboard rejects requests from other sites: open the address in a new window\n"


def is_of_another_site(headers: Headers) -> bool:
    """Return whether a page of another site requests this; False without a browser's headers."""
    origin = headers.get("origin")
    if origin is not None:
        host = headers.get("host", "")
        if urlsplit(origin).netloc.lower() != host.lower():
            return True
    return headers.get("sec-fetch-site", "none") not in OWN


def is_followed_link(headers: Headers) -> bool:
    """Return whether a browser requests a page to show in a window, as after a click on a link."""
    return (
        "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "sec-purpose" not in headers
    )


def guarded(app: ASGIApp) -> ASGIApp:
    """Return the application behind a guard, with undecoded paths and HEADERS on every answer.

    Requests by pages of other sites get 403. A slash in a name, sent as %2F, is no separator.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                # An answer may have a header of its own: a browser may keep the script of charts.
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] != "http":  # such as the start and the end of the server
            return await app(scope, receive, send)
        headers = Headers(scope=scope)
        is_refused = is_of_another_site(headers) and not is_followed_link(headers)
        inner = PlainTextResponse(REFUSAL, HTTPStatus.FORBIDDEN) if is_refused else app
        path_as_sent = scope["raw_path"].decode("latin-1")
        return await inner({**scope, "path": path_as_sent}, receive, send_with_headers)

    return answer


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
KEPT = {"cache-control": "max-age=3600"}  # scripts change only with the program
# Threads that read the store, each with one connection: fewer than the engine's pool holds.
WORKERS = 4
MONITORS = 2  # further threads, for /health and /metrics alone
MONITORING_LIMIT_S = 20
READY_LIMIT_S = 10  # that the start may take
WAITING = 24  # pages, at most, that are being rendered or wait for a worker
DOWNLOADS = 8  # files, at most, that are being made or sent
STATEMENTS = 2  # of visitors at once, each with a thread and a connection of its own
PLACES = {"pages": WAITING, "downloads": DOWNLOADS, "statements": STATEMENTS}
COME_AGAIN_S = 1  # the time after which a refused client should try again
NICENESS = 10  # added to that of the threads of statements, so that pages have priority
TEMPLATES = Path(__file__).parent / "templates"

T = TypeVar("T")
Work = Callable[[Interruption], T]  # runs in a thread, until it ends or is interrupted


@asynccontextmanager
async def place(request: Request, kind: str) -> AsyncIterator[None]:
    """Hold one of the PLACES of a kind; raise HTTPException, a 429, if all are taken."""
    places: asyncio.Semaphore = request.app.state.places[kind]
    if places.locked():
        raise HTTPException(
            HTTPStatus.TOO_MANY_REQUESTS,
            detail=f"{PLACES[kind]} {kind} are being served already: try again",
            headers={"retry-after": str(COME_AGAIN_S)},
        )
    async with places:
        yield


def router_of(kind: str) -> APIRouter:
    """Return a router whose requests hold a place until the last byte is sent."""

    async def hold(request: Request) -> AsyncIterator[None]:
        async with place(request, kind):
            yield

    return APIRouter(dependencies=[Depends(hold)])


async def run_statement(request: Request, work: Work[T]) -> T:
    """Return the result of a visitor's statement, in a thread of low priority, until he
    disconnects.

    Raises HTTPException: 403 for a link of another site, 429 when STATEMENTS are running.
    """
    if is_of_another_site(request.headers):
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            detail="a link from another site cannot run SQL here: copy its address into the "
            "browser's address bar",
        )
    interruption = Interruption()
    async with place(request, "statements"), ended_with_its_reader(request, interruption):
        loop, threads = asyncio.get_running_loop(), request.app.state.threads
        return await loop.run_in_executor(threads, work, interruption)


async def run_while_read(request: Request, work: Work[T]) -> T:
    """Return the result of `work`, in a thread for pages, until its client disconnects."""
    interruption = Interruption()
    async with ended_with_its_reader(request, interruption):
        return await run_sync(work, interruption)


@asynccontextmanager
async def ended_with_its_reader(
    request: Request, interruption: Interruption
) -> AsyncIterator[None]:
    """Interrupt the work inside when its client disconnects, and when the server ends."""

    async def interrupt() -> None:
        # It runs in a thread, because the request to PostgreSQL needs a connection.
        await run_sync(interruption.request, limiter=request.app.state.cancellers)

    async def interrupt_at_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        await interrupt()

    watcher = asyncio.create_task(interrupt_at_disconnect())
    try:
        yield
    except asyncio.CancelledError:  # the server ends
        await interrupt()
        raise
    finally:
        watcher.cancel()


def _give_way() -> None:
    """Lower the priority of this thread; on Linux each has its own."""
    if sys.platform == "linux":
        thread = get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, niceness + NICENESS)


@asynccontextmanager
async def workers(app: FastAPI) -> AsyncIterator[None]:
    """Set what an application needs while it runs, and make its first page before it is served.

    Pages have at most `WORKERS` threads, so that each gets a connection. A store that does not
    answer delays the start by READY_LIMIT_S.
    """
    app.state.threads = ThreadPoolExecutor(STATEMENTS, "statement", _give_way)
    app.state.cancellers = CapacityLimiter(STATEMENTS)
    app.state.monitors = CapacityLimiter(MONITORS)
    current_default_thread_limiter().total_tokens = WORKERS
    with move_on_after(READY_LIMIT_S):
        await run_sync(
            monitoring.warm_up, app.state.engine, abandon_on_cancel=True, limiter=CapacityLimiter(1)
        )
    yield
    app.state.threads.shutdown(wait=False, cancel_futures=True)


pages = router_of("pages")
tables = router_of("downloads")


def _name(text: str) -> str:
    """Return a name; refuse a NUL, which some databases do not accept."""
    if "\x00" in text:
        raise NotThereError("a name cannot contain a NUL: remove %00 from the address")
    return text


def _known_level(level: float | None) -> float | None:
    if level not in (None, *LEVELS):
        raise ValueError(f"it is not one of {', '.join(map(str, LEVELS))}: choose one of these")
    return level


PathName = Annotated[str, AfterValidator(lambda text: _name(unquote(text)))]
OptionalName = Annotated[str | None, AfterValidator(lambda text: _name(text) if text else None)]
# A form sends an empty text.
EMPTY_IS_NONE = BeforeValidator(lambda text: text or None)
OptionalDay = Annotated[date | None, EMPTY_IS_NONE]
Level = Annotated[float | None, EMPTY_IS_NONE, AfterValidator(_known_level)]
Every = Annotated[int, Field(ge=0, le=LONGEST_REFRESH_S)]
From = Annotated[OptionalDay, Query(alias="from")]
To = Annotated[OptionalDay, Query(alias="to")]
Markets = Annotated[Sequence[str], Query()]


def dashboard(engine: Engine, hosts: Sequence[str] = LOOPBACK) -> ASGIApp:
    """Return the application that serves a store, for requests whose Host is one of `hosts` ("*":
    any).

    Otherwise another site could point its name to this machine, and read the answers.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=workers,
    )
    app.state.engine = engine
    app.state.templates = templates()
    app.state.places = {kind: asyncio.Semaphore(most) for kind, most in PLACES.items()}
    # These are not in `pages`: neither a program that watches the server nor the script of the
    # charts may be refused because many pages are being read.
    app.add_api_route("/alive", alive)
    app.add_api_route("/health", health)
    app.add_api_route("/metrics", metrics)
    app.add_api_route("/charts.js", charts_script)
    app.add_api_route("/live.js", live_script)
    app.include_router(pages)
    app.include_router(tables)
    for kind in (DtmlError, StoreError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _show_failure)
    return guarded(TrustedHostMiddleware(app, allowed_hosts=list(hosts), www_redirect=False))


async def alive() -> PlainTextResponse:
    """Answer that this process is alive, without waiting for a thread or a connection."""
    return PlainTextResponse("ok")


async def health(request: Request, market: Markets = ()) -> JSONResponse:
    """Answer whether the nights of these markets, or all, are in time: 200, else 503 with the
    reasons.

    404 for a named market without a night.
    """
    try:
        report = await _monitored(request, monitoring.health_report, market)
    except StoreError as error:
        report = {"status": "failed", "reasons": [str(error)], "markets": []}
    is_well = report["status"] == "ok"
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse(report, status)


async def metrics(request: Request) -> Response:
    """Send the figures of the store to Prometheus."""
    text = await _monitored(request, monitoring.metrics)
    return Response(text, media_type=monitoring.VERSION)


async def _monitored(request: Request, work: Callable[..., T], *asked: object) -> T:
    """Return what `work` tells of the engine by now, in a thread that no page waits for.

    Raises StoreError if it takes longer than MONITORING_LIMIT_S.
    """
    state = request.app.state
    with move_on_after(MONITORING_LIMIT_S):
        told = partial(work, state.engine, datetime.now(UTC), *asked)
        return await run_sync(told, limiter=state.monitors, abandon_on_cancel=True)
    # The time limit has ended the block above without a result.
    raise StoreError(
        f"the store did not answer within {MONITORING_LIMIT_S} s: check its server or its disk"
    )


def charts_script() -> Response:
    """Send the script that makes the charts interactive."""
    return Response(script(), media_type="text/javascript", headers=KEPT)


def live_script() -> Response:
    """Send the script that keeps the state of nights on a page up to date."""
    text = (TEMPLATES / "live.js").read_text(encoding="utf-8")
    return Response(text, media_type="text/javascript", headers=KEPT)


@pages.get("/")
def markets(request: Request, every: Every = 0) -> HTMLResponse:
    """Show every market; the page reloads after `every` seconds, or never if 0."""
    return _page(request, "markets", markets_page, every, *_times(request))


@pages.get("/live")
def live(request: Request) -> HTMLResponse:
    """Show the state of every market and what is running, for the script of live pages."""
    return _page(request, "live", live_page, *_times(request))


@pages.get("/terms")
def terms(request: Request) -> HTMLResponse:
    """Show what the words of the pages mean."""
    return _rendered(request, "terms", {})


@pages.get("/running")
def running(request: Request, every: Every = 0) -> HTMLResponse:
    """Show the nights that are running; the page reloads after `every` seconds, or never if 0."""
    return _page(request, "running", running_page, every, *_times(request))


@pages.get("/market/{market}")
def market(
    request: Request, market: PathName, as_of: OptionalDay = None, every: Every = 0
) -> HTMLResponse:
    """Show a night of a market."""
    times = _times(request, market)
    return _page(request, "market", market_page, market, as_of, every, *times)


@pages.get("/market/{market}/ranking")
def market_ranking(request: Request, market: PathName) -> HTMLResponse:
    """Show how well the nights of a market ranked its stocks."""
    return _page(request, "market_ranking", market_ranking_page, market)


@pages.get("/market/{market}/stock")
def find_stock(request: Request, market: PathName, symbol: OptionalName = None) -> Response:
    """Redirect from the form that picks a stock, in any case, to its page, or the market's."""
    with reading(request.app.state.engine) as conn:
        require_market(conn, market)  # NotThereError, before a redirect to a page that is not there
        segments = ["market", market]
        if symbol is not None:
            segments.extend(["stock", meant_symbol(conn, market, symbol.strip())])
    return RedirectResponse(link(segments), HTTPStatus.SEE_OTHER)


@pages.get("/market/{market}/stock/{symbol}")
def stock(
    request: Request,
    market: PathName,
    symbol: PathName,
    first: From = None,
    last: To = None,
    kind: str = "nightly",
) -> HTMLResponse:
    """Show a stock of a market."""
    return _page(request, "stock", stock_page, market, symbol, kind, first, last)


@pages.get("/tables")
def tables_list(request: Request) -> HTMLResponse:
    """Show every view, by topic."""
    return _rendered(request, "tables_list", topics())


@pages.get("/table/{name}")
async def table(request: Request, name: PathName) -> HTMLResponse:
    """Show the rows of a view, those in which each column of the address has its value."""

    def work(interruption: Interruption) -> HTMLResponse:
        where = dict(request.query_params)
        page = table_page(request.app.state.engine, name, where, interruption)
        return _rendered(request, "sql", page)

    return await run_while_read(request, work)


@pages.get("/sql")
async def sql(request: Request, q: str = "", market: OptionalName = None) -> HTMLResponse:
    """Show the box for SQL, and the answer to the statement in it."""

    def work(interruption: Interruption) -> HTMLResponse:
        page = sql_page(request.app.state.engine, q, market, interruption)
        return _rendered(request, "sql", page)

    # In an empty box no statement runs, so none of the places for statements is needed.
    return await (run_statement if q.strip() else run_while_read)(request, work)


@tables.get("/sql/rows.{form}")
async def sql_file(request: Request, form: str, q: str) -> Response:
    """Send the answer to SQL as a file."""

    file = await run_statement(request, partial(answer_file, request.app.state.engine, q, form))
    return Download(file, form)


@pages.get("/run/{name}")
def run(name: PathName) -> Response:
    """Redirect to what the store holds of a run."""
    return RedirectResponse(rows_link("run_log", {"run_id": name}), HTTPStatus.SEE_OTHER)


@pages.get("/backtest/{name}")
@pages.get("/benchmark/{name}")
@pages.get("/ranking/{name}")
def study(request: Request, name: PathName) -> HTMLResponse:
    """Show a backtest, a benchmark or a ranking."""
    kind = request.url.path.split("/")[1]
    with reading(request.app.state.engine) as conn:
        return HTMLResponse(study_page(conn, kind, name))


@pages.get("/market/{market}/night/{as_of}")
def report(request: Request, market: PathName, as_of: date, level: Level = None) -> HTMLResponse:
    """Show the page that a night writes to a file."""
    with reading(request.app.state.engine) as conn:
        return HTMLResponse(report_page(conn, market, as_of, level))


def templates() -> jinja2.Environment:
    """Return the dashboard's templates, over the pages that the reports share."""
    page_templates = environment(folder=TEMPLATES)
    page_templates.globals.update(
        rows_link=rows_link,
        terms=TERMS,
        live=True,
        served=True,
    )
    return page_templates


def _times(request: Request, *names: str) -> tuple[datetime, dict[str, Timeliness]]:
    now = datetime.now(UTC)
    return now, monitoring.times_of(request.app.state.engine, now, names)


def _page(
    request: Request, name: str, make: Callable[..., Mapping[str, Any]], *values_asked: Any
) -> HTMLResponse:
    """Render the template of a name with what a function of a connection and values makes."""
    with reading(request.app.state.engine) as conn:
        values = make(conn, *values_asked)
    return _rendered(request, name, values)


def _rendered(
    request: Request, name: str, values: Mapping[str, Any], status: int = HTTPStatus.OK
) -> HTMLResponse:
    template = request.app.state.templates.get_template(f"{name}.html")
    return HTMLResponse(template.render(values), status)


def _mistake(error: Any) -> str:
    """Say what is wrong with a value of an address, by pydantic's error."""
    name = error["loc"][-1]
    if error["type"] == "missing":
        return f"{name}: missing; add ?{name}=... to the address"
    is_own = error["type"] == "value_error"  # of a validator of this module
    complaint = error["ctx"]["error"] if is_own else f"expected {expectation(error)}"
    return f"{name}={error['input']}: {complaint}"


async def _show_failure(request: Request, error: Exception) -> HTMLResponse:
    """Show an error in one line on a page, and log it from status 500 on; without a thread."""
    status, message = HTTPStatus.INTERNAL_SERVER_ERROR, str(error)
    headers: Mapping[str, str] = {}
    if isinstance(error, RequestValidationError):
        status = HTTPStatus.BAD_REQUEST
        message = "; ".join(map(_mistake, error.errors()))
    elif isinstance(error, HTTPException):
        status, message, headers = HTTPStatus(error.status_code), error.detail, error.headers or {}
        if status is HTTPStatus.NOT_FOUND:  # Starlette says only "Not Found"
            message = "no page has this address: begin at /, which lists all markets"
    elif isinstance(error, (DtmlError, StoreError)):
        status = next((code for kind, code in STATUSES.items() if isinstance(error, kind)), status)
    else:
        # The request is gone and cannot be repeated with --debug, so the log says where it failed.
        message = f"unexpected {type(error).__name__}"
        log.warning("%s: %s, at %s", request.url.path, message, innermost_lines(error))
        message += "; the log of `dtml dashboard` says where it failed"
    message = " ".join(message.split())
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and isinstance(error, (DtmlError, StoreError)):
        log.warning("%s: %s", request.url.path, message)
    response = _rendered(request, "failure", {"status": status, "said": message}, status)
    response.headers.update(headers)
    return response


STATUSES: Mapping[type[Exception], HTTPStatus] = {  # the first that fits an error
    NotThereError: HTTPStatus.NOT_FOUND,
    UsageError: HTTPStatus.BAD_REQUEST,
    StoreUsageError: HTTPStatus.BAD_REQUEST,
    StoreError: HTTPStatus.SERVICE_UNAVAILABLE,
}
