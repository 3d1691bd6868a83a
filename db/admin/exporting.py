"""Documented views in parts, one for each market and year, as `dtml db export` writes them.

This module finds the parts of a view, the fingerprint that shows whether a part has changed, and
its rows.
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
# The columns that may say which year a row of a view belongs to: the first that the view has.
DAY_COLUMNS: Final = ("target", "session", "as_of")
TYPES: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "integer": pa.int64(),
    "json": pa.string(),
    "number": pa.float64(),
    "text": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}

# The views whose parts have a fingerprint, and the tables that each reads, without those whose
# columns shown there never change (run, ranker, most of instrument). A year's rows of such a view
# come only from these tables' rows of that year, by the date column named here, and whatever
# changes a row of them in place changes one of its moments too. A table without a date column
# (None) is read whole. The parts of all other views are written again by each export.
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
    """The rows of a view that are of one market and year.

    The caller opens the connection that the methods read on. Opened by `snapshot`, it gives them
    the store at one moment, so that the fingerprint is that of the rows.
    """

    view: str
    market: str
    year: int

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the columns of the part's file: those of the view without the market.

        The name of the file's folder says the market.
        """
        fields = [
            (column.name, TYPES[column.type])
            for column in views()[self.view].columns
            if column.name != "market"
        ]
        return pa.schema(fields)

    @property
    def span(self) -> tuple[date, date]:
        """Return the first and the last day of the part's year."""
        return date(self.year, 1, 1), date(self.year, 12, 31)

    def fingerprint(self, conn: Connection) -> str:
        """Return a text that changes whenever a row of the part changes, or the view's SQL.

        '' for a view that is not in GROWING: its changes show only in its rows.
        """
        if self.view not in GROWING:
            return ""
        states = [
            self._state(conn, tables.metadata.tables[name], day_column)
            for name, day_column in GROWING[self.view].items()
        ]
        content = json.dumps([views()[self.view].sql, states], default=str)
        return sha256(content.encode()).hexdigest()

    def _state(self, conn: Connection, table: Table, day_column: str | None) -> list[Any]:
        """Return values of a table that change whenever a row of the part changes there.

        For a table with a `day_column`, they are taken from the rows of the part's market and year:
        the number of rows, and for each column of moments its maximum and its sum. For a table
        without one (None), they are all rows of the market.
        """
        is_of_market = of_market(table, self.market)
        if day_column is None:
            rows = conn.execute(sa.select(table).where(is_of_market))
            # Sorted, as a database may return the same rows in another order next time.
            return sorted(list(row) for row in rows)
        moments = [column for column in table.c if isinstance(column.type, UtcTimestamp)]
        # The sum changes with the moment of any row, but on SQLite it is one of whole seconds. The
        # maximum has the fractions of the newest.
        last_moments = [sa.func.max(moment) for moment in moments]
        sums = [sa.func.sum(sa.extract("epoch", moment)) for moment in moments]
        statement = (
            sa.select(sa.func.count(), *last_moments, *sums)
            .select_from(table)
            .where(is_of_market, *within(table.c[day_column], *self.span))
        )
        return list(conn.execute(statement).one())

    def tables(self, conn: Connection) -> Iterator[pa.Table]:
        """Yield the part's rows in the order of their day, in tables of about ROWS rows.

        Only the last table may have fewer than ROWS. A table's rows are read only once the caller
        asks for the table. A part without rows yields none.
        """
        shown = view(self.view).c
        columns = [column for column in shown if column.name != "market"]
        day = shown[day_column_of(self.view)]
        statement = (
            sa.select(*columns)
            .where(shown.market == self.market, *within(day, *self.span))
            .order_by(day)
        )
        record_batches: list[pa.RecordBatch] = []
        row_count = 0
        for rows in stream(conn, statement):
            values_by_column = zip(*rows, strict=True)
            arrays = []
            for column, field in zip(values_by_column, self.schema, strict=True):
                values = list(column)
                if any(isinstance(value, dict | list) for value in values):  # JSON becomes text
                    values = [None if value is None else json.dumps(value) for value in values]
                arrays.append(pa.array(values, field.type))
            record_batches.append(pa.record_batch(arrays, schema=self.schema))
            row_count += len(rows)
            if row_count >= ROWS:
                yield pa.Table.from_batches(record_batches)
                record_batches = []
                row_count = 0
        if record_batches:
            yield pa.Table.from_batches(record_batches)


def exportable() -> dict[str, str]:
    """Return the views that have a market and a day, each with the name of its day column."""
    column_by_view = {name: day_column_of(name) for name in views()}
    return {
        name: column
        for name, column in column_by_view.items()
        if column and "market" in views()[name].meanings()
    }


def day_column_of(name: str) -> str:
    """Return the column of a view that says which year a row belongs to; '' without one."""
    dates = [column.name for column in views()[name].columns if column.type == "date"]
    for column in DAY_COLUMNS:
        if column in dates:
            return column
    return dates[0] if dates else ""


def parts(conn: Connection, name: str, markets: frozenset[str]) -> Iterator[Part]:
    """Yield the parts of a view that may have rows, by market and year.

    The parts are those of `markets`; an empty set means all markets. Raises StoreUsageError, once
    the first part is asked for, for a view that cannot be exported.
    """
    if name not in exportable():
        raise StoreUsageError(
            f"{name!r} cannot be exported, as it is not a view that has a market and a day: "
            f"choose one of {', '.join(exportable())}"
        )
    if name in GROWING:
        # The table that GROWING names first has rows on each of the view's days, and so always a
        # date column: `str` only excludes None for the type checker.
        table_name, day_column = next(iter(GROWING[name].items()))
        table = tables.metadata.tables[table_name]
        # Of the whole table, as an index has these two days; each market's own would take all its
        # rows. So a part may have no rows.
        first_day = conn.execute(sa.select(sa.func.min(table.c[str(day_column)]))).scalar()
        last_day = conn.execute(sa.select(sa.func.max(table.c[str(day_column)]))).scalar()
        found = conn.execute(sa.select(owner_of(table).c.market).distinct()).scalars()
        spans: list[tuple[Any, ...]] = [(market, first_day, last_day) for market in found]
    else:
        shown = view(name)
        day = shown.c[day_column_of(name)]
        statement = sa.select(
            shown.c.market,
            sa.func.min(day),
            sa.func.max(day),
        ).group_by(shown.c.market)
        spans = [tuple(span) for span in conn.execute(statement)]
    for market, first, last in sorted(spans):
        # Without a first day, no row of the view has a day: there is nothing to export.
        if first is not None and (not markets or market in markets):
            for year in range(first.year, last.year + 1):
                yield Part(view=name, market=market, year=year)
