"""A PostgreSQL role that can only read the documented views and the tables READABLE.

What PostgreSQL grants PUBLIC (temporary tables, large objects, advisory locks, the replication log,
other databases) is taken from it and granted to the roles that may write: `reader.sql`.
"""

import re
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Engine, text

from db.admin import statements
from db.engine import READ_LIMIT_S, URL_VARIABLE, location, require_current_schema, transaction
from db.errors import StoreUsageError
from db.tables import READABLE
from db.views import views

if TYPE_CHECKING:
    import psycopg

NAME = re.compile(r"(?!pg_|public$)[A-Za-z_][A-Za-z0-9_]{0,62}")
# A reader must load this library when it connects to any other database, and so cannot connect;
# only a superuser can change that setting. The server's error shows this name.
MISSING_LIBRARY = "this role may open one database alone"
TABLES = [*READABLE, "alembic_version"]  # `dtml query` reads the schema's revision first
SHOWN = 5  # excess rights that a message names


def grant_reader(engine: Engine, name: str, password: str | None = None) -> bool:
    """Let a role only read the store; return whether it was created, without a password by default.

    A second call adds new views. Raises StoreUsageError, and changes nothing, for SQLite, a name
    that is no plain identifier, another schema, a caller who is no superuser, and a role that could
    do more than read.
    """
    if engine.dialect.name != "postgresql":
        raise StoreUsageError(
            f"{name} cannot be a reader, because the store is an SQLite file, which has no roles: "
            "to read without being able to write, use `dtml query`, or open the store from any "
            f"program as file:{location(engine)}?mode=ro"
        )
    if not NAME.fullmatch(name):
        raise StoreUsageError(
            f"{name!r} is not a valid name for a reader: use at most 63 ASCII letters, digits and "
            "underscores, beginning with neither a digit nor pg_, and not the name public"
        )
    require_current_schema(engine)
    sql = statements("reader")
    with transaction(engine) as conn:
        if conn.execute(text("show is_superuser")).scalar_one() != "on":
            raise StoreUsageError(
                f"the role in {URL_VARIABLE} is not a superuser, but only a superuser of the "
                "server can revoke the rights to large objects, advisory locks and other databases "
                "that every role has: name a superuser there"
            )
        cursor = cast("psycopg.Cursor[Any]", conn.connection.cursor())
        stored_role = text("select 1 from pg_roles where rolname = :name")
        is_new = conn.execute(stored_role, {"name": name}).first() is None
        if is_new:
            cursor.execute(f'create role "{name}"'.encode())
        if password:
            # By its hash: in clear text it could appear in the server's log.
            password_hash = cursor.connection.pgconn.encrypt_password(
                password.encode(), name.encode(), b"scram-sha-256"
            )
            cursor.execute(f"alter role \"{name}\" password '{password_hash.decode()}'".encode())
        names = conn.execute(text(sql["names"]), {"name": name}).mappings().one()
        readable = ", ".join(f"{names['schema']}.{each}" for each in (*views(), *TABLES))
        grants = sql["grants"].format(
            **names, readable=readable, limit_s=READ_LIMIT_S, library=MISSING_LIBRARY
        )
        cursor.execute(grants.encode())
        excess_rights = text(sql["what a role could do beyond reading"])
        excess = conn.execute(excess_rights, {"name": name, "readable": TABLES}).scalars().all()
        if excess:
            others = len(excess) - SHOWN
            more = f", and has {others:,} more such rights" if others > 0 else ""
            raise StoreUsageError(
                f"role {name} could still {', '.join(excess[:SHOWN])}{more}, which it or PUBLIC "
                "was granted: revoke the rights named here from both, then run the same command "
                "again, which names any that are left, or name a new role"
            )
    return is_new
