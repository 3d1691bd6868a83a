"""Compare the columns of a database with those that a schema has."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from sqlalchemy import Connection, text

Column = tuple[str, str]  # the names of a table and of one of its columns

# The `fingerprint` of the newest schema: a store that has it needs no further comparison.
NEWEST = "0233844ce0b6092dd50c6431eadc5083f7481f87a841afc0c8b117865e7648ec"

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


@dataclass(frozen=True)
class Changes:
    """Hold the tables that revisions add, and the columns that they add or change."""

    tables: set[str] = field(default_factory=set)
    columns: set[Column] = field(default_factory=set)


def stored_columns(conn: Connection) -> dict[Column, bool]:
    """Return the columns of all tables of a database, and whether each must have a value."""
    rows = conn.execute(text(_COLUMNS[conn.dialect.name]))
    return {(table, column): bool(is_required) for table, column, is_required in rows}


def fingerprint(columns: Mapping[Column, bool]) -> str:
    """Return a SHA-256 of columns and of whether each must have a value.

    The table in which Alembic records the revision does not count.
    """
    rows = sorted((*column, is_required) for column, is_required in columns.items())
    of_schema = [row for row in rows if row[0] != "alembic_version"]
    return sha256(json.dumps(of_schema).encode()).hexdigest()


def difference(stored: Mapping[Column, bool], later: Changes) -> str | None:
    """Return words on the first difference between a store's columns and those of its schema.

    It is a table or a column that is missing, or a column that wrongly allows or forbids missing
    values; types are not compared. None where there is none. `later` is what revisions after the
    store's change.
    """
    if later == Changes() and fingerprint(stored) == NEWEST:
        return None
    # Late: describing all tables takes a fifth of the time of a short command such as a query.
    from db.tables import metadata

    stored_tables = {table for table, _ in stored}
    for name, table in sorted(metadata.tables.items()):
        if name in later.tables:
            continue
        if name not in stored_tables:
            return f"its table {name} is missing"
        for column in table.c:
            if (name, column.name) in later.columns:
                continue
            is_required = stored.get((name, column.name))
            if is_required is None:
                return f"the column {column.name} of its table {name} is missing"
            if is_required == column.nullable:
                rule = "not allowed" if is_required else "allowed"
                return f"missing values are {rule} in the column {column.name} of its table {name}"
    return None
