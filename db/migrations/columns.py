"""Compare the columns of a database with those of the newest schema."""

import json
from collections.abc import Mapping
from hashlib import sha256

from sqlalchemy import Connection, text

Column = tuple[str, str]  # the names of a table and of one of its columns

# The `fingerprint` of the newest schema: a store that has it needs no further comparison.
NEWEST = "7a1d57f86cc4588e9ea5953a803b0d8b14e43bf7661e7e7e546615939b786290"

# One statement for all tables: it runs each time that a store is opened.
_COLUMNS = {
    "sqlite": """
        select t.name, c.name, c."notnull" = 1
        from sqlite_master t cross join pragma_table_info(t.name) c
        where t.type = 'table' and t.name not like 'sqlite~_%' escape '~'
    """,
    "postgresql": """
        select t.relname, c.attname, c.attnotnull
        from pg_catalog.pg_class t
        join pg_catalog.pg_attribute c on c.attrelid = t.oid
        where t.relkind in ('r', 'p') and c.attnum > 0 and not c.attisdropped
            and t.relnamespace = (select oid from pg_namespace where nspname = current_schema())
    """,
}


def stored_columns(conn: Connection) -> dict[Column, bool]:
    """Return the columns of all tables of a database, and whether each must have a value."""
    rows = conn.execute(text(_COLUMNS[conn.dialect.name]))
    return {(table, column): bool(is_required) for table, column, is_required in rows}


def fingerprint(columns: Mapping[Column, bool]) -> str:
    """Return a SHA-256 of columns, without those of Alembic's own table."""
    rows = sorted((*column, is_required) for column, is_required in columns.items())
    of_schema = [row for row in rows if row[0] != "alembic_version"]
    return sha256(json.dumps(of_schema).encode()).hexdigest()


def missing_column(stored: Mapping[Column, bool]) -> Column | None:
    """Return the first column that a store lacks, or that differs in allowing missing values."""
    if fingerprint(stored) == NEWEST:
        return None
    # Late: describing all tables takes a fifth of the time of a short command such as a query.
    from db.tables import metadata

    columns = [column for table in metadata.sorted_tables for column in table.c]
    expected = {(column.table.name, column.name): not column.nullable for column in columns}
    return min((place for place, _ in expected.items() - stored.items()), default=None)
