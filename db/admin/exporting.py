"""Documented views in parts, one a market and year: which there are, what shows
that one is as it was, and its rows.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection, Table

from db import tables
from db.connection.frames import stream, within
from db.errors import StoreUsageError
from db.rows.markets import of_market, owner_of
from db.tables import UtcTimestamp
from db.views import view, views

ROWS: Final = 100_000  # of a row group, about 40 MB in memory
# of a view's dates, the one that says which year a row is of
DAYS: Final = (
    "target",
    "session",
    "as_of",
)
TYPES: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "integer": pa.int64(),
    "json": pa.string(),
    "number": pa.float64(),
    "text": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}

# The views that only grow, and the tables that they read: a row of a year is of these tables' rows
# of that year alone, by the column that is named, and what changes there in place changes a moment
# too. A table without a column is read whole. Another view's parts are written anew each time.
GROWING: Final[Mapping[str, Mapping[str, str | None]]] = {
    "prediction_history": {
        "prediction": "target",
        "outcome": "session",
        "rule_direction": "target",
        "stock_rank": "target",
    },
    "daily_score": {"score": "target"},
    "rank_score_log": {"rank_score": "target"},
    "ranking_history": {"stock_rank": "target", "outcome": "session", "instrument": None},
    "price_latest": {"price": "session"},
}


@dataclass(frozen=True)
class Part:
    """The rows of a view that are of one market and year, as they are while a snapshot is open."""

    view: str
    market: str
    year: int

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the columns of a file of it: those of the view, without the
        market, which its folder names.
        """
        columns = views()[self.view].columns
        return pa.schema(
            [(each.name, TYPES[each.type]) for each in columns if each.name != "market"]
        )

    @property
    def span(self) -> tuple[date, date]:
        """Return the first and the last day of its year."""
        return date(self.year, 1, 1), date(self.year, 12, 31)

    def fingerprint(self, conn: Connection) -> str:
        """Return what is another text once a row is another; '' for a view of
        which nothing shows that.
        """
        if self.view not in GROWING:
            return ""
        read = [
            self._state(conn, tables.metadata.tables[name], day)
            for name, day in GROWING[self.view].items()
        ]
        return sha256(json.dumps([views()[self.view].sql, read], default=str).encode()).hexdigest()

    def _state(self, conn: Connection, table: Table, day: str | None) -> list[Any]:
        """Return how many rows of a table it reads, and their moments: the last
        and the sum, which all changes move.
        """
        if day is None:
            return sorted(
                map(list, conn.execute(sa.select(table).where(of_market(table, self.market))))
            )
        moments = [each for each in table.c if isinstance(each.type, UtcTimestamp)]
        sums = (sa.func.sum(sa.extract("epoch", each)) for each in moments)
        told = sa.select(sa.func.count(), *map(sa.func.max, moments), *sums).select_from(table)
        return list(
            conn.execute(
                told.where(of_market(table, self.market), *within(table.c[day], *self.span))
            ).one()
        )

    def tables(self, conn: Connection) -> Iterator[pa.Table]:
        """Yield its rows in the order of their day, ROWS at a time; what a
        reader is not done with is not read yet.
        """
        shown = view(self.view)
        columns = [each for each in shown.c if each.name != "market"]
        day = shown.c[day_of(self.view)]
        mine = (
            sa.select(*columns)
            .where(shown.c.market == self.market, *within(day, *self.span))
            .order_by(day)
        )
        held, rows = list[pa.RecordBatch](), 0
        for batch in stream(conn, mine):
            arrays = map(_array, zip(*batch, strict=True), self.schema)
            held.append(pa.record_batch(list(arrays), schema=self.schema))
            rows += len(batch)
            if rows >= ROWS:
                yield pa.Table.from_batches(held)
                held, rows = [], 0
        if held:
            yield pa.Table.from_batches(held)


def exportable() -> dict[str, str]:
    """Return the views that have a market and a day, and the column of that day."""
    return {
        name: day
        for name in views()
        if (day := day_of(name)) and "market" in views()[name].meanings()
    }


def day_of(name: str) -> str:
    """Return the column of a view that says of which year a row is; '' without one."""
    dates = [each.name for each in views()[name].columns if each.type == "date"]
    return next((each for each in DAYS if each in dates), (dates or [""])[0])


def parts(conn: Connection, name: str, markets: frozenset[str]) -> Iterator[Part]:
    """Yield what a view may hold rows of, by market and year: of these markets, or of all without a
    name.

    Raises StoreUsageError for a view that cannot be exported.
    """
    if name not in exportable():
        raise StoreUsageError(
            f"no view {name!r} with a market and a day to export: choose one of "
            f"{', '.join(exportable())}"
        )
    if name in GROWING:
        table, day = next(iter(GROWING[name].items()))
        spans = _spans_of(conn, tables.metadata.tables[table], str(day))
    else:
        shown = view(name)
        days = shown.c[day_of(name)]
        spans = [
            tuple(each)
            for each in conn.execute(
                sa.select(shown.c.market, sa.func.min(days), sa.func.max(days)).group_by(
                    shown.c.market
                )
            )
        ]
    for market, first, last in sorted(spans):
        if first is not None and (not markets or market in markets):
            yield from (Part(name, market, year) for year in range(first.year, last.year + 1))


def _spans_of(conn: Connection, table: Table, day: str) -> list[tuple[Any, ...]]:
    """Return the markets of a table, with its first and last day: asked one by
    one, an index answers.
    """
    named = sa.select(owner_of(table).c.market).distinct()
    first, last = (
        conn.execute(sa.select(ends(table.c[day]))).scalar() for ends in (sa.func.min, sa.func.max)
    )
    return [(market, first, last) for market in conn.execute(named).scalars()]


def _array(values: tuple[Any, ...], field: pa.Field) -> pa.Array:
    if any(isinstance(each, dict | list) for each in values):
        values = tuple(each if each is None else json.dumps(each) for each in values)
    return pa.array(values, field.type)
