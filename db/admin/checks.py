"""Whether a store is sound: the database's own checks, and what must hold between its rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Engine, text

from db import tables
from db.connection.locks import market_lock
from db.engine import reading, require_current
from db.errors import StoreBusyError, StoreError
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
    "the file is intact": "select integrity_check as said from pragma_integrity_check where said <> 'ok'",
    "every foreign key leads to a row": 'select "table", rowid, parent from pragma_foreign_key_check',
}

# What must hold, and a query for the rows that break it; JSON is read by each engine's own words. SQLite reads a cross
# join in the order written: predictions in that of an index, so that millions need no sorting.
LAWS: Mapping[str, str] = {
    "a complete night has as many predictions as it says": """
        select n.market, n.as_of, n.run_id, n.predictions as said, count(p.instrument_id) as found
        from night n
        left join prediction p on p.run_id = n.run_id and p.target = n.target
        where n.status in ('complete', 'complete_with_gaps')
        group by n.market, n.as_of, n.run_id, n.predictions
        having count(p.instrument_id) <> coalesce(n.predictions, -1)
        order by n.market, n.as_of
    """,
    "a night predicts a stock or says why not, never both": """
        select n.market, n.as_of, {symbol} as symbol
        from night n
        cross join {elements}(n.gaps) as g
        left join instrument i on i.market = n.market and i.symbol = {symbol}
        left join prediction p on p.run_id = n.run_id and p.target = n.target and p.instrument_id = i.id
        where n.status in ('complete', 'complete_with_gaps')
        group by n.market, n.as_of, {symbol}
        having count(*) > 1 or count(p.instrument_id) > 0
        order by n.market, n.as_of, 3
    """,
    "a stock has one nightly prediction for a session": """
        select i.market, i.symbol, d.target, d.found
        from (
            select p.instrument_id, p.target, count(*) as found
            from prediction p
            cross join run r
            where r.id = p.run_id and r.kind = 'nightly'
            group by p.instrument_id, p.target
            having count(*) > 1
        ) as d
        join instrument i on i.id = d.instrument_id
        order by i.market, d.target, i.symbol
    """,
    "what a night counts of its directions is what came of them": """
        select c.run_id, c.target, c.said, count(o.session) as found
        from (select run_id, target, sum(n) as said from calibration_bin group by run_id, target) as c
        join prediction p on p.run_id = c.run_id and p.target = c.target
        left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
        group by c.run_id, c.target, c.said
        having count(o.session) <> c.said
        order by c.run_id, c.target
    """,
    "a running score counts every night up to it": """
        select r.market, r.target, r.protocol, r.predictor, r.n as said, d.n as found
        from score r
        join (
            select market, target, protocol, predictor,
                sum(n) over (partition by market, protocol, predictor order by target) as n
            from score
            where span = 'night'
        ) as d on d.market = r.market and d.target = r.target and d.protocol = r.protocol
            and d.predictor = r.predictor
        where r.span = 'running' and d.n <> r.n
        order by r.market, r.target, r.protocol, r.predictor
    """,
    "the score of a night is that of its outcomes": """
        select s.market, s.target, s.protocol, s.n as said, s.rises, s.acc, count(o.session) as found,
            sum(case when o.rise then 1 else 0 end) as risen,
            sum(case when o.rise = (p.probability > 0.5) then 1 else 0 end) as correct
        from score s
        join night n on n.market = s.market and n.target = s.target
        join prediction p on p.run_id = n.run_id and p.target = n.target and p.as_of = n.as_of
        left join outcome o on o.instrument_id = p.instrument_id and o.session = p.target
            and (s.protocol = 'all' or o.label <> 0)
        where s.span = 'night' and s.predictor = 'dtml'
        group by s.market, s.target, s.protocol, s.n, s.rises, s.acc
        having count(o.session) <> s.n or sum(case when o.rise then 1 else 0 end) <> s.rises
            or abs(sum(case when o.rise = (p.probability > 0.5) then 1 else 0 end)
                - coalesce(s.acc, 0) * s.n) > 0.5
        order by s.market, s.target, s.protocol
    """,
    "a probability lies between those of its seeds": """
        select i.market, i.symbol, p.run_id, p.target
        from prediction p
        join instrument i on i.id = p.instrument_id
        where p.lowest > p.probability + 1e-6 or p.highest < p.probability - 1e-6
        order by i.market, p.target, i.symbol
    """,
    "no price is newer than its market's last fetch": """
        select i.market, i.symbol, p.session, p.known_at, f.newest
        from (select market, max(known_at) as newest from price_fetch group by market) as f
        join instrument i on i.market = f.market
        join price p on p.instrument_id = i.id and p.known_at > f.newest
        order by i.market, i.symbol, p.session
    """,
}


@dataclass(frozen=True)
class Finding:
    """What a check says: the rows or things found, as many as `SHOWN`, and whether there are more."""

    check: str
    state: State
    found: list[dict[str, Any]] = field(default_factory=list)
    more: bool = False


def check_store(engine: Engine) -> Iterator[Finding]:
    """Return the finding of each check, as soon as there is one; a store of another schema is held to no law."""
    if engine.dialect.name == "sqlite":
        for check, sql in OF_THE_FILE.items():
            yield _finding(check, partial(_asked, engine, sql))
    current = _finding(f"the schema is this program's ({REVISION})", partial(_of_another_schema, engine))
    yield current
    if current.state == "ok":
        for law, sql in LAWS.items():
            yield _finding(law, partial(_asked, engine, sql.format_map(JSON_WORDS[engine.dialect.name])))
        yield _finding("no fetch is dated ahead of this clock", partial(_dated_ahead, engine))
        yield _finding("no night was interrupted", partial(_interrupted, engine), "note")


def finding_of(check: str, found: list[dict[str, Any]], state: State = "failed") -> Finding:
    """Return the finding of a check: in order when nothing was found, else that state."""
    return Finding(check, state if found else "ok", found[:SHOWN], len(found) > SHOWN)


def _finding(check: str, search: Callable[[], Rows], state: State = "failed") -> Finding:
    """Return the finding of a check that searches the store, which fails where the store does."""
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
    begun = sa.select(table.c.market, table.c.as_of, table.c.started_at).where(table.c.status == "running")
    with reading(engine) as conn:
        rows = [dict(row) for row in conn.execute(begun.order_by(table.c.market, table.c.as_of)).mappings()]
    free = {market for market in {row["market"] for row in rows} if _is_free(engine, market)}
    return [row | {"to do": "run it again"} for row in rows if row["market"] in free]


def _is_free(engine: Engine, market: str) -> bool:
    try:
        with market_lock(engine, market):
            return True
    except StoreBusyError:
        return False
