"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "6e9063fbac333c49684d0427ac83e06d2f65507f09e30cc71d7cb38d6fce259a"


def upgrade() -> None:
    """Change nothing."""
