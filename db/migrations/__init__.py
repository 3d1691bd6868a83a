"""Create the schema of a new store, and upgrade that of an older one, whose rows are kept.

Tables change by the revisions in versions/, which nobody changes once they are released. Views hold
no rows: every upgrade drops them before its revisions and creates the present ones from db/views.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.schema import SetColumnComment, SetTableComment

from db.migrations.columns import Changes

FOLDER = Path(__file__).parent

# The rights of other roles to views: dropping a view drops them too.
_GRANTS = """
    select c.relname, a.privilege_type,
        case when a.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
    from pg_class c cross join lateral aclexplode(c.relacl) a
    where c.relkind = 'v'
        and c.relnamespace = (select oid from pg_namespace where nspname = current_schema())
        and a.grantee <> c.relowner
"""


def revisions() -> list[str]:
    """Return the names of the revisions, which are those of their files, oldest first."""
    return sorted(file.stem for file in FOLDER.glob("versions/[0-9]*.py"))


REVISION = revisions()[-1]  # the newest, which a store must have


def changed_after(revision: str) -> Changes:
    """Return the tables and columns that later revisions add or change.

    Each of them lists these in its `new_tables` and `changed_columns`.
    """
    changes = Changes()
    if revision == REVISION:
        return changes
    from alembic.script import ScriptDirectory

    for later in ScriptDirectory(str(FOLDER)).iterate_revisions("head", revision):
        changes.tables.update(later.module.new_tables)
        for table, columns in later.module.changed_columns.items():
            changes.columns.update((table, column) for column in columns)
    return changes


def create(conn: Connection) -> None:
    """Create every table and view of the newest revision in an empty database."""
    # Alembic takes a third of a second to import, and describing all tables a tenth; most commands
    # only check the revision.
    from alembic import command

    from db.tables import metadata

    metadata.create_all(conn, checkfirst=False)
    command.stamp(_config(conn), "head")
    _create_views(conn)


def migrate(conn: Connection) -> None:
    """Run the revisions that a store lacks, and create its views again.

    PostgreSQL's comments are renewed too. Roles that could read a view still can.
    """
    from alembic import command

    from db.views import views

    grants = conn.execute(text(_GRANTS)).all() if conn.dialect.name == "postgresql" else []
    for name in views().keys() & set(inspect(conn).get_view_names()):
        conn.exec_driver_sql(f"drop view {name}")
    command.upgrade(_config(conn), "head")
    if conn.dialect.supports_comments:
        from db.tables import metadata

        # The present comments say more than those of an older store.
        for table in metadata.sorted_tables:
            conn.execute(SetTableComment(table))
            for column in table.columns:
                conn.execute(SetColumnComment(column))
    _create_views(conn)
    for name, privilege, role in grants:
        if name in views():
            conn.exec_driver_sql(f"grant {privilege} on {name} to {role}")


def _create_views(conn: Connection) -> None:
    from db.views import views

    for view in views().values():
        statements = [view.sql]
        if conn.dialect.name == "postgresql":
            statements.append(view.comments)
        for statement in statements:
            # A % in the text must not be taken for a parameter.
            conn.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _config(conn: Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = conn
    return config
