"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "1dfad5a7059c998664808409931ab6179189e601fb12f7c90bccc5d90c5ef930"


def upgrade() -> None:
    """Change nothing."""
