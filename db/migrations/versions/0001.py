"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "69ee54e9efaaa87f829fab481c83a8bb5acd53c2480b4d1b7e0f410ba477a434"


def upgrade() -> None:
    """Change nothing."""
