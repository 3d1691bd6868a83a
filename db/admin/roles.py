"""A role of PostgreSQL that reads the documented views and what studies found, and can do nothing
else.

What every role may do in any database is more than it seems: make large objects, hold advisory
locks (those of the nights among them), write to the log that servers replicate, connect to every
other database. All that is taken from PUBLIC here and given to the roles that have something here,
and a reader can open this database alone.
"""

import re
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Engine, text

from db.admin import statements
from db.engine import READ_LIMIT_S, require_current, transaction
from db.errors import StoreUsageError
from db.tables import FINDINGS
from db.views import views as documented_views

if TYPE_CHECKING:
    import psycopg

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

SQL = statements("roles")

# one row, which says whether the views are this program's: `dtml query` asks it
VERSION = "alembic_version"

# Functions of the server that PUBLIC may call, and that write, or hold what others wait for, in
# whatever transaction.
WRITING = (
    "^(lo_.*|loread|lowrite|pg_(try_)?advisory_.*|pg_logical_emit_message|pg_export_snapshot)$"
)

# A library that is nowhere: a role that must load it cannot connect, and only a superuser could
# excuse it from that.
ELSEWHERE = "this role may open one database alone"
TEMPORARY_LIMIT = "1GB"  # of files that one connection sorts and joins in; a reader cannot lift it
CONNECTIONS = 20  # at once, of a reader for whom no other number was set: a dashboard opens 15

# Rights that a reader would keep whatever is revoked here, and the name of each.
POWERS = {
    "rolsuper": "a superuser",
    "rolcreaterole": "allowed to make roles",
    "rolcreatedb": "allowed to make databases",
    "rolreplication": "allowed to replicate",
    "rolbypassrls": "allowed to bypass row security",
}


def grant_reader(engine: Engine, name: str, password: str | None = None) -> bool:
    """Let a role read views and findings and nothing else; return whether it was made.

    Asked again, it gives the same.

    The server gets a hash of the password. A reader can lift two of its limits, read only and 30 s
    a statement; it has no right that would let it write. Raises StoreUsageError for SQLite, which
    has no roles, for a name that is no plain identifier, for a role that has rights from elsewhere,
    and for anyone who asks but a superuser; StoreError when the server refuses.
    """
    _require_fitting(engine, name)
    require_current(engine)
    with transaction(engine) as conn:
        _require_superuser(conn)
        is_new = (
            conn.execute(
                text("select 1 from pg_roles where rolname = :name"), {"name": name}
            ).first()
            is None
        )
        if is_new:
            _run(conn, f'create role "{name}"')
        _require_harmless(conn, name)
        _run(conn, f'alter role "{name}" login')
        if password:
            raw = cast("psycopg.Connection[Any]", conn.connection.driver_connection)
            hashed = raw.pgconn.encrypt_password(
                password.encode(), name.encode(), b"scram-sha-256"
            ).decode()
            # in clear it could end in the server's log
            _run(conn, f"alter role \"{name}\" password '{hashed}'")
        database, schema = conn.execute(
            text("select quote_ident(current_database()), current_schema()")
        ).one()
        _revoke_all(conn, name, database)
        _close_to_the_public(conn, name, database, _quoted(schema))
        _grant_reading(conn, name, database, _quoted(schema))
        _limit(conn, name, database, _quoted(schema))
        _require_only_reading(conn, name)
    return is_new


def _require_fitting(engine: Engine, name: str) -> None:
    if engine.dialect.name != "postgresql":
        raise StoreUsageError(
            "SQLite has no roles; to read without being able to write, use `dtml query`, "
            "or open the store from any program as file:STORE?mode=ro"
        )
    if not NAME.fullmatch(name) or name.startswith("pg_") or name == "public":
        rule = "use at most 63 letters, digits and _, with no digit first and no pg_"
        raise StoreUsageError(f"{name!r} is not a valid name for a reader: {rule}")


def _require_superuser(conn: Connection) -> None:
    if conn.execute(text("show is_superuser")).scalar_one() != "on":
        opened = "large objects, advisory locks and other databases, which are open to all"
        raise StoreUsageError(
            "only a superuser of the server can grant a reader: no other role can bar it from "
            f"{opened}"
        )


def _run(conn: Connection, statement: str) -> None:
    """Run a statement that takes no parameters; what stands in it has been quoted or checked."""
    with cast("psycopg.Cursor[Any]", conn.connection.cursor()) as cursor:
        cursor.execute(statement.encode())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _require_harmless(conn: Connection, name: str) -> None:
    """Refuse a role whose rights do not all come from here: it may be somebody's account."""
    role = (
        conn.execute(text("select * from pg_roles where rolname = :name"), {"name": name})
        .mappings()
        .one()
    )
    reasons = [said for power, said in POWERS.items() if role[power]]
    if conn.execute(
        text("select :name in (current_user, session_user)"), {"name": name}
    ).scalar_one():
        reasons.append("the role of this connection")
    member_of = (
        "select g.rolname from pg_auth_members m join pg_roles g on g.oid = "
        "m.roleid where "
        "m.member = :role"
    )
    reasons += [
        f"a member of {each}"
        for each in conn.execute(text(member_of), {"role": role["oid"]}).scalars()
    ]
    owned = text(SQL["what a role owns"])
    reasons += [
        f"the owner of {each}" for each in conn.execute(owned, {"role": role["oid"]}).scalars()
    ]
    if reasons:
        raise StoreUsageError(f"role {name} is {', '.join(reasons)}: choose a role that only reads")


def _revoke_all(conn: Connection, name: str, database: str) -> None:
    _run(conn, f'revoke all on database {database} from "{name}"')
    for schema in (
        conn.execute(text(SQL["schemas with what a role was granted"]), {"name": name})
        .scalars()
        .all()
    ):
        for things in ("tables", "sequences", "routines"):
            _run(conn, f'revoke all on all {things} in schema {_quoted(schema)} from "{name}"')
        _run(conn, f'revoke all on schema {_quoted(schema)} from "{name}"')


def _close_to_the_public(conn: Connection, name: str, database: str, schema: str) -> None:
    """Take what every role may do here, and in old servers make tables: those
    who have something here keep it.
    """
    owners = text("select distinct tableowner from pg_tables where schemaname = current_schema()")
    for owner in conn.execute(owners).scalars().all():
        _run(conn, f"grant usage, create on schema {schema} to {_quoted(owner)}")
    functions = conn.execute(text(SQL["functions that write"]), {"writing": WRITING}).scalar_one()
    if keepers := ", ".join(map(_quoted, _others(conn, name))):
        _run(conn, f"grant temporary on database {database} to {keepers}")
        _run(conn, f"grant execute on function {functions} to {keepers}")
    _run(conn, f"revoke temporary on database {database} from public")
    _run(conn, f"revoke execute on function {functions} from public")
    _run(conn, f"revoke create on schema {schema} from public")


def _others(conn: Connection, name: str) -> list[str]:
    """Return roles that own something in this database, were granted something,
    or belong to one; none is a reader.
    """
    mark = f'session_preload_libraries="{ELSEWHERE}"'
    return list(
        conn.execute(
            text(SQL["roles that have something here"]), {"name": name, "mark": mark}
        ).scalars()
    )


def _grant_reading(conn: Connection, name: str, database: str, schema: str) -> None:
    _run(conn, f'grant connect on database {database} to "{name}"')
    _run(conn, f'grant usage on schema {schema} to "{name}"')
    readable = ", ".join(f"{schema}.{each}" for each in (*documented_views(), *FINDINGS, VERSION))
    _run(conn, f'grant select on {readable} to "{name}"')


def _limit(conn: Connection, name: str, database: str, schema: str) -> None:
    """Set what a reader begins with here, and what holds it: no other database,
    and no disk filled by sorting.
    """
    begins = (
        "default_transaction_read_only = on",
        f"statement_timeout = '{READ_LIMIT_S}s'",
        f"search_path = {schema}",
    )
    for limit in (*begins, "session_preload_libraries from current"):
        _run(conn, f'alter role "{name}" in database {database} set {limit}')
    _run(conn, f"alter role \"{name}\" set session_preload_libraries = '{ELSEWHERE}'")
    _run(conn, f"alter role \"{name}\" set temp_file_limit = '{TEMPORARY_LIMIT}'")
    if conn.execute(
        text("select rolconnlimit < 0 from pg_roles where rolname = :name"), {"name": name}
    ).scalar_one():
        _run(conn, f'alter role "{name}" connection limit {CONNECTIONS}')


def _require_only_reading(conn: Connection, name: str) -> None:
    """Raise StoreUsageError, which takes all back, when the role may do more:
    some right comes from elsewhere.
    """
    given = {"name": name, "readable": [*FINDINGS, VERSION], "writing": WRITING}
    if (
        more := conn.execute(text(SQL["what a role could do beyond reading"]), given)
        .scalars()
        .all()
    ):
        right = f"role {name} could still {more[0]}, a right that PUBLIC has"
        raise StoreUsageError(f"{right}: revoke it from PUBLIC and try again")
