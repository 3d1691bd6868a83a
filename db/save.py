"""Write rows of one table, by the policy by which its TOML file says that they are written.

    save(conn, "score", scores, market="sp500", scored_at=now)

A row names a stock by its `symbol`, as rows that `db.read` returns do. A rerun adds no row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, insert_missing, records, upsert
from db.connection.differences import (
    first_key_text,
    is_stored,
    require_distinct,
    stored_counterparts,
)
from db.connection.frames import frame
from db.errors import StoreError, StoreUsageError
from db.read import STOCKS, read
from db.tables import Written

Rows = pd.DataFrame | Mapping[str, object] | Sequence[Mapping[str, object]]

# How to compute a stored figure again as it is: the end of messages about another one.
SAME_AGAIN = (
    "use the version of dtml and the kind of machine that stored it or, if prices have changed "
    "since, move the store away and restore a backup from before that change with `dtml db restore`"
)


def save(conn: Connection, name: str, rows: Rows, /, **owner: Any) -> int:
    """Store rows of a table; return how many were new.

    `rows` are a frame or mappings; what all have in common may stand in `owner`, as `market`, in
    which symbols are looked up. NaN and None are missing, further columns left out. Raises
    StoreError for a row that the policy refuses and for two rows of one key, StoreUsageError for an
    unknown symbol.
    """
    table = tables.metadata.tables[name]
    written: Written = table.info["written"]
    if not isinstance(rows, pd.DataFrame):
        given = [rows] if isinstance(rows, Mapping) else rows
        owned = [{**row, **owner} for row in given]
        if written.policy == "stays":
            return insert_missing(conn, table, owned)
        if written.policy == "newest":
            return upsert(conn, table, owned, stamps=written.stamps)
        rows, owner = pd.DataFrame(owned), {}
    if rows.empty:
        return 0
    named = rows.assign(**owner)
    if "instrument_id" in table.c:
        stocks = [column for column in STOCKS if column in table.c]
        named = identified(conn, owner["market"], named, stocks)
    key = _key(table)
    numbered = table.autoincrement_column  # which only the store fills
    columns = [each.name for each in table.c if each.name in named and each is not numbered]
    # SQLite keeps the rows in the order of the key, and inserts them fastest in this order.
    sorted_rows = named.sort_values(key, ignore_index=True)
    if written.policy == "stays":
        return insert_missing(conn, table, records(table, sorted_rows[columns]))
    require_distinct(sorted_rows, [STOCKS.get(column, column) for column in key])
    if written.policy == "newest":
        values = records(table, sorted_rows[columns])
        return upsert(conn, table, values, key=key, stamps=written.stamps)
    # As floats, None is NaN, and a whole number can be compared with one read back.
    numbers = [name for name in columns if name not in key and _is_number(table.c[name])]
    with_floats = sorted_rows.astype(dict.fromkeys(numbers, "float64"))
    return insert_frame(conn, table, _new_rows(conn, table, written, with_floats)[columns])


def identified(
    conn: Connection, market: str, named: pd.DataFrame, columns: Sequence[str] = ("instrument_id",)
) -> pd.DataFrame:
    """Return the frame with the ids of the symbols in its columns of STOCKS.

    The ids are in `columns`. Raises StoreUsageError for symbols that are not stored.
    """
    known_ids = instrument_ids(conn, market)
    ids = {column: named[STOCKS[column]].map(known_ids) for column in columns}
    unknown = {
        symbol for column, id_of in ids.items() for symbol in named[STOCKS[column]][id_of.isna()]
    }
    if unknown:
        some = ", ".join(sorted(unknown)[:5])
        others = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise StoreUsageError(
            f"symbols not stored for market {market}: {some}{others}; check their spelling, or run "
            f"`dtml fetch {market}` first"
        )
    return named.assign(**{column: id_of.astype("int64") for column, id_of in ids.items()})


def instrument_ids(conn: Connection, market: str) -> "pd.Series[int]":
    """Return the instrument_id of each symbol of a market, index included, by symbol."""
    ids = read(conn, "instrument", columns="symbol, id", order="symbol", market=market)
    return cast("pd.Series[int]", ids.set_index("symbol")["id"])


def _key(table: sa.Table) -> list[str]:
    """Return the columns by which a row is known: not a number that only the store gives it."""
    unique = [each for each in table.constraints if isinstance(each, sa.UniqueConstraint)]
    return [column.name for column in (unique[0].columns if unique else table.primary_key)]


def _new_rows(
    conn: Connection, table: sa.Table, written: Written, rows: pd.DataFrame
) -> pd.DataFrame:
    """Return the rows whose key is not stored; raise StoreError where one is, but differs."""
    key = _key(table)
    owner = table.c[key[0]]
    conditions = [owner.in_(rows[key[0]].unique().tolist())]
    if "target" in key:
        conditions.append(table.c.target.between(rows["target"].min(), rows["target"].max()))
    stored = frame(conn, sa.select(table).where(*conditions))
    new = rows.astype({name: stored[name].dtype for name in key})
    counterparts = stored_counterparts(new, stored, key)
    compared = written.compared or [
        column.name for column in table.c if column.name not in key and _is_number(column)
    ]
    for name in compared:
        is_other = is_stored(counterparts) & _differs(table.c[name], new, counterparts, written)
        if is_other.any():
            named_key = [STOCKS.get(column, column) for column in key]
            raise StoreError(
                f"{table.name}: {first_key_text(rows[is_other], named_key)} is already stored with "
                f"{name} {first_key_text(counterparts[is_other], [name])}, which stays in place of "
                f"{first_key_text(rows[is_other], [name])}: {written.refusal}; {SAME_AGAIN}"
            )
    return rows[~is_stored(counterparts)]


def _differs(
    column: sa.Column[object], rows: pd.DataFrame, counterparts: pd.DataFrame, written: Written
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    before, now = counterparts[column.name], rows[column.name]
    if _is_number(column):
        is_close = np.isclose(
            before.astype("float64"),
            now.astype("float64"),
            rtol=written.relative,
            atol=written.absolute,
            equal_nan=True,
        )
        return np.asarray(~is_close)
    is_other = before.to_numpy() != now.astype(before.dtype).to_numpy()
    return np.asarray(is_other & ~(before.isna().to_numpy() & now.isna().to_numpy()))


def _is_number(column: sa.Column[object]) -> bool:
    return isinstance(column.type, sa.Float | sa.Integer)
