"""The tables of the dashboard as CSV, from a statement's rows or a computed frame, and how they are sent.

A table is first written whole to a temporary file, from one moment of the store. Sending it afterwards, however slowly
it is read, holds no connection and no thread.
"""

import asyncio
import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from tempfile import SpooledTemporaryFile
from typing import Any

import pandas as pd
from fastapi.responses import Response
from sqlalchemy import Connection
from starlette.types import Receive, Scope, Send

from db.connection.frames import Statement, head, stream
from db.rows import attention, nights, predictions, runs
from db.rows import prices as stored_prices
from db.rows import scores as stored_scores
from dtml.errors import UsageError
from flows.console import plain
from flows.dashboard import compare
from flows.dashboard.market import NotThereError, gaps_of, night_of, require_level, require_market
from flows.dashboard.markets import market_rows
from flows.dashboard.stock import ATTENDED, LONGEST, SOURCES, require_span, require_stock, span_scores

log = logging.getLogger(__name__)

LARGEST = 128 * 2**20  # bytes of a table
IN_MEMORY = 2**20  # bytes of a table that stays in memory
CHUNK = 2**16  # bytes sent at once
READER_LIMIT_S = 30  # for a reader to take a chunk

Table = Statement | pd.DataFrame
Rows = Sequence[Sequence[Any]]
File = SpooledTemporaryFile[bytes]


def written(conn: Connection, table: Table) -> File:
    """Write the rows below their names to a file: dates and moments in ISO 8601, missing empty, lists as JSON.

    Raises UsageError for a table of more than LARGEST bytes.
    """
    file = File(IN_MEMORY)
    try:
        for rows in _of_frame(table) if isinstance(table, pd.DataFrame) else _of_statement(conn, table):
            file.write(_lines(rows).encode())
            if file.tell() > LARGEST:
                raise UsageError(
                    f"this table has more than {LARGEST:,} bytes: name a span, or ask with dtml query --csv"
                )
    except BaseException:
        file.close()
        raise
    return file


def _of_frame(table: pd.DataFrame) -> Iterator[Rows]:
    yield [tuple(table.columns), *table.itertuples(index=False, name=None)]


def _of_statement(conn: Connection, statement: Statement) -> Iterator[Rows]:
    yield [tuple(column.name for column in statement.selected_columns)]
    yield from stream(conn, statement)


class Download(Response):
    """Send a file no faster than it is read, and close it however that ends.

    It is left unfinished when its reader takes longer than READER_LIMIT_S for CHUNK bytes.
    """

    def __init__(self, file: File) -> None:
        self.file, size = file, file.tell()
        said = {"content-disposition": "attachment; filename=rows.csv", "content-length": str(size)}
        super().__init__(media_type="text/csv", headers=said)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer a request."""
        with self.file as file:
            file.seek(0)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                while chunk := file.read(CHUNK):
                    async with asyncio.timeout(READER_LIMIT_S):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await asyncio.sleep(0)  # after a hang-up, send returns at once
            except TimeoutError:
                log.warning("%s: left unfinished, nobody read it for %s s", scope["path"], READER_LIMIT_S)
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    told = plain(value)
    return json.dumps(told, ensure_ascii=False) if isinstance(told, (list, dict)) else told


def markets_table(conn: Connection, today: date) -> Table:
    """Return the table of all markets."""
    return market_rows(conn, today)


def market_table(conn: Connection, table: str, market: str, as_of: date | None, level: float | None) -> Table:
    """Return a table of a market's page; raise NotThereError for an unknown one, and for a missing night."""
    require_level(level)
    require_market(conn, market)
    if table == "models":
        return runs.models(market)
    night = night_of(conn, market, as_of)
    if night is None:
        raise NotThereError(f"market {market} has no night yet: dtml nightly {market}")
    run_id, target = night["run_id"] or "", night["target"]
    if table == "directions" and level is not None:
        return predictions.band_directions(market, run_id, target, level)
    tables: dict[str, Table] = {
        "directions": predictions.session_directions(market, run_id, target),
        "nights": nights.night_log(market, night["as_of"]),
        "scores": stored_scores.daily_scores(market, target),
        "rejected": stored_prices.rejected(market, night["as_of"], night["as_of"]),
        "gaps": gaps_of(night),
    }
    return _named(tables, table)


def stock_table(
    conn: Connection, table: str, market: str, symbol: str, kind: str, first: date | None, last: date | None
) -> Table:
    """Return a table of a stock's page over a span of sessions; raise NotThereError for an unknown one."""
    require_span(kind, first, last)
    require_stock(conn, market, symbol)
    if table in ("looks", "looked"):
        kept = attention.attended(conn, market, ATTENDED)
        return attention.mean_weights(conn, market, symbol, kept, looks=table == "looks", most=SOURCES)
    directions = predictions.stock_directions(market, symbol, kind, first, last)
    if table == "span":
        return span_scores(head(conn, directions, LONGEST))
    scores, prices = (
        stored_scores.symbol_scores(market, symbol),
        stored_prices.newest_prices(market, symbol, first, last),
    )
    return _named({"directions": directions, "prices": prices, "scores": scores}, table)


def compare_table(conn: Connection, table: str, a: str | None, b: str | None) -> Table:
    """Return a table of two runs side by side; raise UsageError unless both are named."""
    if a is None or b is None:
        raise UsageError("name two runs, as in ?a=RUN&b=RUN")
    one, two = compare.run_of(conn, a), compare.run_of(conn, b)
    if table == "settings":
        return compare.settings(one, two)
    shared = compare.shared_span(conn, a, b)
    if shared is None:
        raise NotThereError(f"{a} and {b} predicted no session in common")
    if table == "directions":
        return compare.last_directions(conn, a, b, shared)
    if table == "scores":
        return pd.DataFrame(compare.scores(compare.days(conn, a, b, shared))["rows"])
    return _named({"days": predictions.common_days(a, b, *shared)}, table)


def _named(tables: dict[str, Table], name: str) -> Table:
    if name not in tables:
        raise NotThereError(f"there is no table {name!r} here")
    return tables[name]
