"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "a58bd1f7818b8576c8da1785aa00896e2bef8f106297b64d727ee5214696dd4b"


def upgrade() -> None:
    """Change nothing."""
