"""Checks of a store: those of the database itself, and laws that the store's rows must keep."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Engine, text

from db import where
from db.admin import statements
from db.connection.locks import is_free
from db.engine import reading, require_current_schema
from db.errors import StoreError
from db.migrations import REVISION
from db.read import selection
from db.rows import fetches

SHOWN = 5  # offending rows that a finding names

# SQL of each engine for what laws.sql leaves open: the elements of a JSON list g, and the symbol of
# such an element.
JSON_WORDS: Mapping[str, Mapping[str, str]] = {
    "sqlite": {"elements": "json_each", "symbol": "json_extract(g.value, '$.symbol')"},
    "postgresql": {"elements": "json_array_elements", "symbol": "g.value ->> 'symbol'"},
}

State = Literal["ok", "failed", "note"]
Rows = list[dict[str, Any]]

# Checks that SQLite makes only when asked; PostgreSQL guards both by itself.
OF_THE_FILE: Mapping[str, str] = {
    "the file is intact": (
        "select integrity_check as said from pragma_integrity_check where said <> 'ok'"
    ),
    "every foreign key leads to a row": (
        'select "table", rowid, parent from pragma_foreign_key_check'
    ),
}

# Each law by its text, and a query for the rows that break it. Some queries say `cross join`, whose
# tables SQLite reads in the order written: predictions then come in the order of an index, so that
# millions of them need no sorting.
LAWS: Mapping[str, str] = statements("laws")


@dataclass(frozen=True)
class Finding:
    """The result of a check: up to `SHOWN` offending rows, and whether there are more.

    The state "note" is for what is worth knowing but no fault.
    """

    check: str
    state: State
    found: list[dict[str, Any]] = field(default_factory=list)
    more: bool = False


def check_store(engine: Engine) -> Iterator[Finding]:
    """Yield the finding of each check; a database error is a finding too.

    A store of another schema is checked no further.
    """
    if engine.dialect.name == "sqlite":
        for check, sql in OF_THE_FILE.items():
            yield _finding(check, partial(_rows, engine, text(sql)))
    schema = f"the schema is this program's ({REVISION})"
    try:
        require_current_schema(engine)
    except StoreError as error:
        yield finding_of(schema, [{"error": str(error)}])
        return  # All queries below name columns that another schema may lack.
    yield finding_of(schema, [])
    json_words = JSON_WORDS[engine.dialect.name]
    for law, sql in LAWS.items():
        yield _finding(law, partial(_rows, engine, text(sql.format_map(json_words))))
    yield _finding("no fetch is dated ahead of this clock", partial(_dated_ahead, engine))
    yield _finding("no night was interrupted", partial(_interrupted, engine), state="note")


def finding_of(check: str, offenders: list[dict[str, Any]], state: State = "failed") -> Finding:
    """Return the finding of a check: ok without offenders, else with this state."""
    return Finding(
        check=check,
        state=state if offenders else "ok",
        found=offenders[:SHOWN],
        more=len(offenders) > SHOWN,
    )


def _finding(check: str, search: Callable[[], Rows], state: State = "failed") -> Finding:
    try:
        return finding_of(check, search(), state)
    except StoreError as error:
        return finding_of(check, [{"error": str(error)}])


def _rows(engine: Engine, statement: sa.Executable) -> Rows:
    with reading(engine) as conn:
        rows = conn.execute(statement).mappings().fetchmany(SHOWN + 1)
    return [dict(row) for row in rows]


def _dated_ahead(engine: Engine) -> Rows:
    """Return fetches dated over a day ahead of this clock; their markets fetch nothing."""
    ahead = selection(
        "price_fetch",
        columns="market, source, known_at",
        order="market, known_at",
        known_at=where.after(datetime.now(UTC) + fetches.AHEAD),
    )
    advice = (
        "correct this machine's clock or, if it is right, restore a backup from before that fetch"
    )
    return [row | {"to do": advice} for row in _rows(engine, ahead)]


def _interrupted(engine: Engine) -> Rows:
    """Return running nights of markets on which no process works, and what to do."""
    running = selection("night", columns="market, as_of, started_at", status="running")
    with reading(engine) as conn:
        rows = conn.execute(running).mappings().all()
    markets = {row["market"] for row in rows}
    free = {market for market in markets if is_free(engine, market)}
    return [{**row, "to do": "run the night again"} for row in rows if row["market"] in free]
