"""Create the schema of a new store, and upgrade that of an older one.

Revisions in versions/ never change once released. Views are created anew from db/views.
"""

from pathlib import Path

from sqlalchemy import Connection, inspect

FOLDER = Path(__file__).parent
REVISIONS = ("0001",)  # of versions/, oldest first
REVISION = REVISIONS[-1]  # which a store must have


def migrate(conn: Connection, stored: str | None) -> None:
    """Bring a database of the revision `stored` to the newest; None for an empty one."""
    # Alembic takes a third of a second to import, and describing all tables a tenth; most commands
    # only check the revision.
    from alembic import command
    from alembic.config import Config

    from db.tables import metadata
    from db.views import views

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = conn
    for name in views().keys() & set(inspect(conn).get_view_names()):
        conn.exec_driver_sql(f"drop view {name}")
    if stored is None:
        metadata.create_all(conn, checkfirst=False)
        command.stamp(config, "head")
    else:
        command.upgrade(config, "head")
    for view in views().values():
        statements = [view.sql]
        if conn.dialect.supports_comments:
            statements.append(view.comments)
        for statement in statements:
            # A % in the text must not be taken for a parameter.
            conn.exec_driver_sql(statement, execution_options={"no_parameters": True})
