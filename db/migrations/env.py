"""How Alembic runs revisions: on the connection that `db.migrations` hands it,
in that one's transaction.
"""

from alembic import context

from db.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
