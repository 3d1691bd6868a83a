"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "23574c1e90b2d137c1da94f87f3b3fbf8b1a4c45bfb0dbcb8eab8c1d2f0eed87"


def upgrade() -> None:
    """Change nothing."""
