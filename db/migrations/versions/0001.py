"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "d6d02801e12714c0c34ef249acc28c28657444210a07140c06c1d69265f6d442"


def upgrade() -> None:
    """Change nothing."""
