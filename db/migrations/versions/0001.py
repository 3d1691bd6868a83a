"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "b3dc6b85b90c608a2f2d8a4bef2b7926982797e1414d7663e54c0d02e7315b1f"


def upgrade() -> None:
    """Change nothing."""
