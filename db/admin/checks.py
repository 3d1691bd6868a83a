"""Whether a store is sound, by the database's checks and between its rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Engine, text

from db import tables
from db.admin import statements
from db.connection.locks import is_free
from db.engine import reading, require_current
from db.errors import StoreError
from db.migrations import REVISION
from db.rows import fetches

SHOWN = 5  # offending rows that a finding names

JSON_WORDS: Mapping[str, Mapping[str, str]] = {
    "sqlite": {"elements": "json_each", "symbol": "json_extract(g.value, '$.symbol')"},
    "postgresql": {"elements": "json_array_elements", "symbol": "g.value ->> 'symbol'"},
}

State = Literal["ok", "failed", "note"]
Rows = list[dict[str, Any]]

# PostgreSQL watches over both by itself.
OF_THE_FILE: Mapping[str, str] = {
    "the file is intact": "select integrity_check as said from pragma_integrity_check where "
    "said <> 'ok'",
    "every foreign key leads "
    "to a row": 'select "table", rowid, parent from pragma_foreign_key_check',
}

# What must hold, and a query for the rows that break it; JSON is read by each engine's own words.
# SQLite reads a cross join in the order written: predictions in that of an index, so that millions
# need no sorting.
LAWS: Mapping[str, str] = statements("laws")


@dataclass(frozen=True)
class Finding:
    """What a check says: the rows or things found, as many as `SHOWN`, and
    whether there are more.
    """

    check: str
    state: State
    found: list[dict[str, Any]] = field(default_factory=list)
    more: bool = False


def check_store(engine: Engine) -> Iterator[Finding]:
    """Yield the finding of each check as soon as it is known.

    The laws are checked only in a store of this program's schema.
    """
    if engine.dialect.name == "sqlite":
        for check, sql in OF_THE_FILE.items():
            yield _finding(check, partial(_asked, engine, sql))
    schema_finding = _finding(
        f"the schema is this program's ({REVISION})", partial(_of_another_schema, engine)
    )
    yield schema_finding
    if schema_finding.state == "ok":
        for law, sql in LAWS.items():
            yield _finding(
                law, partial(_asked, engine, sql.format_map(JSON_WORDS[engine.dialect.name]))
            )
        yield _finding("no fetch is dated ahead of this clock", partial(_dated_ahead, engine))
        yield _finding("no night was interrupted", partial(_interrupted, engine), "note")


def finding_of(check: str, found: list[dict[str, Any]], state: State = "failed") -> Finding:
    """Return the finding of a check: in order when nothing was found, else that state."""
    return Finding(check, state if found else "ok", found[:SHOWN], len(found) > SHOWN)


def _finding(check: str, search: Callable[[], Rows], state: State = "failed") -> Finding:
    try:
        return finding_of(check, search(), state)
    except StoreError as error:
        return finding_of(check, [{"error": str(error)}])


def _asked(engine: Engine, sql: str) -> Rows:
    with reading(engine) as conn:
        return [dict(row) for row in conn.execute(text(sql)).mappings().fetchmany(SHOWN + 1)]


def _of_another_schema(engine: Engine) -> Rows:
    require_current(engine)
    return []


def _dated_ahead(engine: Engine) -> Rows:
    """Return fetches that no later one can follow before their day has come."""
    with reading(engine) as conn:
        rows = fetches.dated_ahead(conn).assign(**{"to do": "dtml db redate"}).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _interrupted(engine: Engine) -> Rows:
    """Return nights that are left running although nobody is at their market."""
    table = tables.night
    begun = sa.select(table.c.market, table.c.as_of, table.c.started_at).where(
        table.c.status == "running"
    )
    with reading(engine) as conn:
        rows = [
            dict(row)
            for row in conn.execute(begun.order_by(table.c.market, table.c.as_of)).mappings()
        ]
    free = {market for market in {row["market"] for row in rows} if is_free(engine, market)}
    return [row | {"to do": "run it again"} for row in rows if row["market"] in free]
