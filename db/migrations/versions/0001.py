"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "9fe327607a73fb83f92c80875b980a8dc4a8a4f5d239a7b26eb8c33d8cf3e4eb"


def upgrade() -> None:
    """Change nothing."""
