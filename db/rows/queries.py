"""Reads of markets, prices, models, predictions, scores and nights, and SQL that a user typed.

DataFrames have documented columns, dates as datetime64[ns], timestamps aware in UTC. Rows come sorted by what names
them. An unknown market has no rows; an unknown symbol or run is an error. Other reads lie by topic: backtests.py,
benchmarks.py, calls.py, evidence.py, service.py, standing.py, translations.py and translation_queue.py, and what the
dashboard shows in browsing.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, datetime
from sys import getsizeof
from typing import Any, cast

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from db.connection.frames import BAR_VALUES, bars, frame, row, typed
from db.connection.sandbox import asked
from db.errors import StoreUsageError
from db.tables import schema
from db.views.typed_views import view

# What an answer to SQL of a user may hold in memory at once.
HELD_ROWS, HELD_BYTES = 1_000_000, 200_000_000


def instruments(conn: Connection, market: str) -> pd.DataFrame:
    """A market's stocks and its index: symbol, kind, source_symbol, name, sector, asked_from (NaT: never)."""
    named = schema.instrument
    columns = (each for each in named.c if each.name not in ("id", "market"))
    return frame(conn, sa.select(*columns).where(named.c.market == market).order_by(named.c.symbol))


def memberships(conn: Connection, market: str) -> pd.DataFrame:
    """Stays in a market: symbol, spell, valid_from (NaT: unknown), valid_to (NaT: it lasts), source."""
    stay, named = schema.membership, schema.instrument
    columns = (named.c.symbol, stay.c.spell, stay.c.valid_from, stay.c.valid_to, stay.c.source)
    statement = sa.select(*columns).join_from(stay, named).where(named.c.market == market)
    return frame(conn, statement.order_by(named.c.symbol, stay.c.spell))


def prices(
    conn: Connection,
    market: str,
    first: date,
    last: date,
    *,
    known_at: datetime | None = None,
    symbols: Collection[str] | None = None,
) -> pd.DataFrame:
    """The bars of first..last, both included, in the newest version known at `known_at` (default: newest).

    Columns: symbol, session, open, high, low, close, adj_close, volume, dividend, split, known_at; missing is
    NaN. Sorted by symbol and session. `symbols` leaves out the others.
    """
    ids = instrument_ids(conn, market)
    if symbols is not None:
        ids = ids[ids.index.isin(list(symbols))]
    price = schema.price
    columns = [price.c.instrument_id, price.c.session, price.c.known_at, *(price.c[n] for n in BAR_VALUES)]
    statement = sa.select(*(sa.type_coerce(each, sa.types.NullType()) for each in columns)).where(
        price.c.instrument_id.in_(ids.tolist()), price.c.session.between(first, last), ~_restated(known_at)
    )
    if known_at is not None:
        statement = statement.where(price.c.known_at <= known_at)
    return bars(conn.execute(statement), ids)


def instrument_ids(conn: Connection, market: str) -> pd.Series[int]:
    """The store's number of each symbol of a market, index included, by symbol."""
    named = schema.instrument
    statement = sa.select(named.c.symbol, named.c.id).where(named.c.market == market).order_by(named.c.symbol)
    return cast("pd.Series[int]", frame(conn, statement).set_index("symbol")["id"])


def last_sessions(conn: Connection, market: str) -> pd.Series[pd.Timestamp]:
    """The last stored session of each symbol, by symbol; symbols without a bar are left out."""
    price, named = schema.price, schema.instrument
    last = sa.select(sa.func.max(price.c.session)).where(price.c.instrument_id == named.c.id).scalar_subquery()
    statement = sa.select(named.c.symbol, last.label("last")).where(named.c.market == market)
    found = frame(conn, statement.order_by(named.c.symbol)).dropna()
    return cast("pd.Series[pd.Timestamp]", found.set_index("symbol")["last"])


def runs(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Trained models, oldest first: the columns of run but its losses."""
    columns = [each for each in schema.run.c if each.name != "losses"]
    statement = sa.select(*columns).order_by(schema.run.c.created_at, schema.run.c.id)
    if market is not None:
        statement = statement.where(schema.run.c.market == market)
    return frame(conn, statement)


def run(conn: Connection, run_id: str) -> dict[str, Any]:
    """One trained model: every column of run. Raises StoreUsageError when there is none of that name."""
    found = row(conn, sa.select(schema.run).where(schema.run.c.id == run_id))
    if found is None:
        raise StoreUsageError(f"no run {run_id!r} in the store: dtml runs lists them")
    return found


def latest_run(conn: Connection, market: str, *, on_or_before: date | None = None) -> dict[str, Any] | None:
    """The nightly model trained on the latest sessions, none after `on_or_before`; None when there is none."""
    model = schema.run
    statement = sa.select(model).where(model.c.market == market, model.c.kind == "nightly")
    if on_or_before is not None:
        statement = statement.where(model.c.train_last <= on_or_before)
    newest = (model.c.train_last.desc(), model.c.created_at.desc(), model.c.id.desc())
    return row(conn, statement.order_by(*newest).limit(1))


def predictions(
    conn: Connection, market: str, *, target: date | None = None, run_id: str | None = None
) -> pd.DataFrame:
    """Predictions: run_id, as_of, target, symbol, known_at, made_at and what was said; NaN is missing.

    Said are probability, spread, calibrated, lowest, highest, rising_share.
    """
    statement = _predictions(market)
    if target is not None:
        statement = statement.where(schema.prediction.c.target == target)
    if run_id is not None:
        statement = statement.where(schema.prediction.c.run_id == run_id)
    return frame(conn, statement)


def prediction_history(
    conn: Connection,
    *,
    market: str | None = None,
    symbol: str | None = None,
    first: date | None = None,
    last: date | None = None,
    kind: str = "nightly",
    newest: int | None = None,
) -> pd.DataFrame:
    """The view prediction_history, targets first..last: columns in db.views.views; `kind` is the model's purpose.

    With `newest`, no more rows than that, those of the latest targets: older ones are not read. Raises StoreUsageError
    for a symbol that is not stored.
    """
    told = view("prediction_history")
    statement = sa.select(told).where(told.c.kind == kind)
    if symbol is not None:
        _require_symbol(conn, symbol, market)
        statement = statement.where(told.c.symbol == symbol)
    if market is not None:
        statement = statement.where(told.c.market == market)
    if first is not None:
        statement = statement.where(told.c.target >= first)
    if last is not None:
        statement = statement.where(told.c.target <= last)
    order = ["market", "target", "symbol", "made_at"]
    if newest is None:
        return frame(conn, statement.order_by(*(told.c[name] for name in order)))
    backwards = (told.c.target.desc(), told.c.made_at.desc(), told.c.market, told.c.symbol)
    return frame(conn, statement.order_by(*backwards).limit(newest)).sort_values(order, ignore_index=True)


def scores(conn: Connection, market: str, *, last: date | None = None, span: str | None = None) -> pd.DataFrame:
    """Scores of a market up to target `last`: the columns of score; `span` keeps 'night' or 'running' alone."""
    table = schema.score
    statement = sa.select(table).where(table.c.market == market)
    if last is not None:
        statement = statement.where(table.c.target <= last)
    if span is not None:
        statement = statement.where(table.c.span == span)
    return frame(conn, statement.order_by(table.c.target, table.c.span, table.c.protocol, table.c.predictor))


def nights(conn: Connection, market: str | None = None) -> pd.DataFrame:
    """Nights by market and as_of: the columns of night."""
    statement = sa.select(schema.night).order_by(schema.night.c.market, schema.night.c.as_of)
    if market is not None:
        statement = statement.where(schema.night.c.market == market)
    return frame(conn, statement)


def night(conn: Connection, market: str, as_of: date) -> dict[str, Any] | None:
    """One night, every column of night; None when it was never begun."""
    return row(conn, sa.select(schema.night).where(schema.night.c.market == market, schema.night.c.as_of == as_of))


def refused_bars(conn: Connection, market: str, first: date, last: date) -> pd.DataFrame:
    """The view refused of a market, sessions first..last."""
    found = view("refused")
    statement = sa.select(found).where(found.c.market == market, found.c.session.between(first, last))
    return frame(conn, statement.order_by(found.c.session, found.c.symbol, found.c.reason))


def rows_of(conn: Connection, table: sa.Table, owner: str, name: str, *, order: Sequence[str] = ()) -> pd.DataFrame:
    """The rows whose column `owner` is `name`, without that column, by `order` or the rest of the primary key."""
    sought = order or [each.name for each in table.primary_key if each.name != owner]
    columns = (each for each in table.c if each.name != owner)
    mine = sa.select(*columns).where(table.c[owner] == name)
    return frame(conn, mine.order_by(*(table.c[each] for each in sought)))


def table_counts(conn: Connection) -> dict[str, int]:
    """The number of rows of each table, by its name."""
    return {
        each.name: conn.execute(sa.select(sa.func.count()).select_from(each)).scalar_one()
        for each in schema.metadata.sorted_tables
    }


def select(engine: Engine, sql: str, most: int | None = None, *, own: bool = False) -> pd.DataFrame:
    """The rows of SQL that a user typed, as the engine gives them: SQLite keeps dates and timestamps as text.

    With `most`, the first rows, no more than that. A statement that is this program's `own` may be asked as a superuser
    of PostgreSQL too. Raises StoreUsageError, in one line, for what `asked` refuses and for an answer of more than
    HELD_ROWS or about HELD_BYTES.
    """
    rows, size = list[Sequence[Any]](), 0
    with asked(engine, sql, own=own) as answer:
        for batch in answer.batches:
            rows += batch
            if most is not None and len(rows) >= most:
                break
            size += sum(getsizeof(value) for row in batch for value in row)
            if len(rows) > HELD_ROWS or size > HELD_BYTES:
                raise StoreUsageError(
                    f"an answer of more than {HELD_ROWS:,} rows or {HELD_BYTES:,} bytes is not held at once: ask for"
                    " less, or for CSV or JSON, which are written as the rows come"
                )
    return typed(rows[:most], answer.names)


def _predictions(market: str) -> sa.Select[Any]:
    made, named = schema.prediction, schema.instrument
    said = (made.c[name] for name in ("probability", "spread", "calibrated", "lowest", "highest", "rising_share"))
    columns = (made.c.run_id, made.c.as_of, made.c.target, named.c.symbol, *said)
    statement = sa.select(*columns, made.c.known_at, made.c.made_at).join_from(made, named)
    return statement.where(named.c.market == market).order_by(made.c.target, named.c.symbol, made.c.made_at)


def _require_symbol(conn: Connection, symbol: str, market: str | None) -> None:
    named = schema.instrument
    statement = sa.select(named.c.id).where(named.c.symbol == symbol)
    if market is not None:
        statement = statement.where(named.c.market == market)
    if row(conn, statement) is None:
        where = f" for market {market}" if market else ""
        raise StoreUsageError(f"no symbol {symbol!r} in the store{where}: check its spelling, or fetch it first")


def _restated(known_at: datetime | None) -> sa.Exists:
    """Whether a later version of the bar was known."""
    price, later = schema.price, schema.price.alias("later")
    restated = sa.exists().where(
        later.c.instrument_id == price.c.instrument_id,
        later.c.session == price.c.session,
        later.c.known_at > price.c.known_at,
    )
    return restated if known_at is None else restated.where(later.c.known_at <= known_at)
