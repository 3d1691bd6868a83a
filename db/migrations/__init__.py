"""Alembic revisions of the schema, packaged so that an installed dtml can upgrade a store."""
