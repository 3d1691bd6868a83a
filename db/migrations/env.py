"""How Alembic reaches the store: through the connection `db.engine.upgrade` hands it, else its own."""

from alembic import context

from db.engine import open_engine, transaction
from db.tables import metadata


def _migrate() -> None:
    connection = context.config.attributes.get("connection")
    if connection is None:
        with transaction(open_engine()) as conn:
            context.config.attributes["connection"] = conn
            _migrate()
        return
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


_migrate()
