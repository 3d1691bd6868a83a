"""A PostgreSQL role that can only read the documented views and the findings of studies.

By default PostgreSQL lets every role make large objects, hold advisory locks (those of the nights
among them), write to the replication log and connect to every other database, because PUBLIC has
these rights. Here the rights in this database are taken from PUBLIC and granted to the roles that
own or use something in it, and a reader is kept from opening another database.
"""

import re
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Engine, text

from db.admin import statements
from db.engine import READ_LIMIT_S, URL_VARIABLE, location, require_current_schema, transaction
from db.errors import StoreUsageError
from db.tables import FINDINGS
from db.views import views as documented_views

if TYPE_CHECKING:
    import psycopg

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

SQL = statements("roles")

# The table whose one row is the schema's revision: `dtml query` reads it first.
REVISION_TABLE = "alembic_version"

# Functions of the server that PUBLIC may call, and that write, or take locks that block others,
# even in a read-only transaction.
WRITING = (
    "^(lo_.*|loread|lowrite|pg_(try_)?advisory_.*|pg_logical_emit_message|pg_export_snapshot)$"
)

# The name of a library that does not exist. A reader must load it when it connects to any other
# database, and so cannot connect; only a superuser can change that setting. The server's error
# shows this name.
MISSING_LIBRARY = "this role may open one database alone"
# Size of the temporary files of one connection's sorts and joins; a reader cannot raise it.
TEMPORARY_LIMIT = "1GB"
CONNECTIONS = 20  # at once, of a reader without a limit of its own: a dashboard opens 15

SHOWN = 5  # rights of PUBLIC that a message names

# Rights that a reader would keep whatever is revoked here, and how a message names them.
POWERS = {
    "rolsuper": "a superuser",
    "rolcreaterole": "allowed to make roles",
    "rolcreatedb": "allowed to make databases",
    "rolreplication": "allowed to replicate",
    "rolbypassrls": "allowed to bypass row security",
}


def grant_reader(engine: Engine, name: str, password: str | None = None) -> bool:
    """Let a role only read the store; return whether the role was created.

    It reads the documented views, the tables of studies' `FINDINGS`, and the schema's revision.
    Without a `password`, none is set. PUBLIC loses the rights by which any role may write in this
    database; roles that use it keep them (`_close_to_the_public`). A second call has the same
    effect as the first, and adds views that are new since. A reader can lift two of its limits,
    read only and 30 s a statement, but it has no right that would let it write. Raises
    StoreUsageError for SQLite, which has no roles, for a name that is not a plain identifier, for a
    store of another schema, for a role with rights from elsewhere, for a right beyond reading that
    PUBLIC keeps, and unless the caller is a superuser; StoreError when the server refuses.
    """
    if engine.dialect.name != "postgresql":
        raise StoreUsageError(
            f"{name} cannot be a reader, because the store is an SQLite file, which has no roles: "
            "to read without being able to write, use `dtml query`, or open the store from any "
            f"program as file:{location(engine)}?mode=ro"
        )
    if not NAME.fullmatch(name) or name.startswith("pg_") or name == "public":
        raise StoreUsageError(
            f"{name!r} is not a valid name for a reader: use at most 63 ASCII letters, digits and "
            "underscores, beginning with neither a digit nor pg_, and not the name public"
        )
    require_current_schema(engine)
    with transaction(engine) as conn:
        if conn.execute(text("show is_superuser")).scalar_one() != "on":
            raise StoreUsageError(
                f"the role in {URL_VARIABLE} is not a superuser, but only a superuser of the "
                "server can revoke the rights to large objects, advisory locks and other databases "
                "that every role has: name a superuser there"
            )
        stored_role = text("select 1 from pg_roles where rolname = :name")
        is_new = conn.execute(stored_role, {"name": name}).first() is None
        if is_new:
            _run(conn, f'create role "{name}"')
        # All steps are one transaction: an error in any of them leaves no role and no right behind.
        _require_harmless(conn, name)
        _run(conn, f'alter role "{name}" login')
        if password:
            # By its hash: in clear text it could appear in the server's log.
            driver = cast("psycopg.Connection[Any]", conn.connection.driver_connection)
            password_hash = driver.pgconn.encrypt_password(
                password.encode(), name.encode(), b"scram-sha-256"
            )
            _run(conn, f"alter role \"{name}\" password '{password_hash.decode()}'")
        current_names = text("select quote_ident(current_database()), current_schema()")
        database, schema_name = conn.execute(current_names).one()
        schema = _quoted(schema_name)
        _run(conn, f'revoke all on database {database} from "{name}"')
        granted_schemas = text(SQL["schemas with what a role was granted"])
        for granted_name in conn.execute(granted_schemas, {"name": name}).scalars().all():
            granted_schema = _quoted(granted_name)
            for kind in ("tables", "sequences", "routines"):
                _run(conn, f'revoke all on all {kind} in schema {granted_schema} from "{name}"')
            _run(conn, f'revoke all on schema {granted_schema} from "{name}"')
        _close_to_the_public(conn, name, database, schema)
        _run(conn, f'grant connect on database {database} to "{name}"')
        _run(conn, f'grant usage on schema {schema} to "{name}"')
        readable_names = (*documented_views(), *FINDINGS, REVISION_TABLE)
        relations = ", ".join(f"{schema}.{relation}" for relation in readable_names)
        _run(conn, f'grant select on {relations} to "{name}"')
        _set_limits(conn, name, database, schema)
        # Views need no mention: of the rights to read, the statement checks only those on tables.
        readable_tables = [*FINDINGS, REVISION_TABLE]
        parameters = {"name": name, "readable": readable_tables, "writing": WRITING}
        statement = text(SQL["what a role could do beyond reading"])
        excess_rights = conn.execute(statement, parameters).scalars().all()
        if excess_rights:  # granted to PUBLIC: the role itself has only those granted above
            others = len(excess_rights) - SHOWN
            more = f", and has {others:,} more such rights" if others > 0 else ""
            raise StoreUsageError(
                f"role {name} could still {', '.join(excess_rights[:SHOWN])}{more}, because PUBLIC "
                "has these rights: revoke those named here from PUBLIC, then run the same command "
                "again, which names any that are left"
            )
    return is_new


def _run(conn: Connection, statement: str) -> None:
    """Run a statement without parameters; the caller has quoted or checked the names in it."""
    with cast("psycopg.Cursor[Any]", conn.connection.cursor()) as cursor:
        cursor.execute(statement.encode())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _require_harmless(conn: Connection, name: str) -> None:
    stored_role = text("select * from pg_roles where rolname = :name")
    role = conn.execute(stored_role, {"name": name}).mappings().one()
    reasons = [description for power, description in POWERS.items() if role[power]]
    is_connected = text("select :name in (current_user, session_user)")
    if conn.execute(is_connected, {"name": name}).scalar_one():
        reasons.append("the role of this connection")
    groups = text(
        "select g.rolname from pg_auth_members m join pg_roles g on g.oid = m.roleid "
        "where m.member = :role"
    )
    group_names = conn.execute(groups, {"role": role["oid"]}).scalars()
    reasons += [f"a member of {group}" for group in group_names]
    owned_objects = conn.execute(text(SQL["what a role owns"]), {"role": role["oid"]}).scalars()
    reasons += [f"the owner of {owned_object}" for owned_object in owned_objects]
    if reasons:
        raise StoreUsageError(
            f"role {name} is {', '.join(reasons)}: name a role that does not exist yet, which is "
            "then created, or one of which none of this is true"
        )


def _close_to_the_public(conn: Connection, name: str, database: str, schema: str) -> None:
    """Revoke from PUBLIC the rights by which any role may write in this database.

    The roles that use it keep these rights, as they get them directly first: the owners of tables
    may make tables, and whoever has something here may make temporary ones and call the
    functions that `WRITING` names. All other roles, the reader `name` among them, lose them.
    """
    # Before PostgreSQL 15, PUBLIC may make tables, and the owners of tables may have no other right
    # to do so.
    owners = text("select distinct tableowner from pg_tables where schemaname = current_schema()")
    for owner in conn.execute(owners).scalars().all():
        _run(conn, f"grant usage, create on schema {schema} to {_quoted(owner)}")
    listed = conn.execute(text(SQL["functions that write"]), {"writing": WRITING})
    functions = listed.scalar_one()  # one text: the signatures, separated by commas
    # Without the reader `name`, other readers, whom their setting of `MISSING_LIBRARY` marks, and
    # superusers, who need no grant.
    mark = f'session_preload_libraries="{MISSING_LIBRARY}"'
    statement = text(SQL["roles that have something here"])
    roles = conn.execute(statement, {"name": name, "mark": mark}).scalars()
    keepers = ", ".join(map(_quoted, roles))
    if keepers:
        _run(conn, f"grant temporary on database {database} to {keepers}")
        _run(conn, f"grant execute on function {functions} to {keepers}")
    _run(conn, f"revoke temporary on database {database} from public")
    _run(conn, f"revoke execute on function {functions} from public")
    _run(conn, f"revoke create on schema {schema} from public")


def _set_limits(conn: Connection, name: str, database: str, schema: str) -> None:
    """Set the defaults of a reader's sessions in this database, and the limits it cannot lift.

    It cannot lift three limits: it opens no other database, its temporary files are limited, and it
    opens at most `CONNECTIONS` connections, or as many as somebody has already set.
    """
    # The last setting gives the reader this session's libraries in this database. Below,
    # `MISSING_LIBRARY` is set for all databases, but a setting for one database takes precedence.
    settings = (
        "default_transaction_read_only = on",
        f"statement_timeout = '{READ_LIMIT_S}s'",
        f"search_path = {schema}",
        "session_preload_libraries from current",
    )
    for setting in settings:
        _run(conn, f'alter role "{name}" in database {database} set {setting}')
    _run(conn, f"alter role \"{name}\" set session_preload_libraries = '{MISSING_LIBRARY}'")
    _run(conn, f"alter role \"{name}\" set temp_file_limit = '{TEMPORARY_LIMIT}'")
    # A number that somebody has set stays.
    is_unlimited = text("select rolconnlimit < 0 from pg_roles where rolname = :name")
    if conn.execute(is_unlimited, {"name": name}).scalar_one():
        _run(conn, f'alter role "{name}" connection limit {CONNECTIONS}')
