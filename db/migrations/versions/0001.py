"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "f0d8e43d0c12a1f94ce5ea03be87ec116da990f5d2ed295ef7dd51007c922687"


def upgrade() -> None:
    """Change nothing."""
