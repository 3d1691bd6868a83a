"""Alembic revisions of the schema, packaged so that an installed dtml can upgrade a store."""

# The newest revision, which a store must have; a test holds it to the files in versions.
REVISION = "0001"
