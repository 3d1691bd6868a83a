"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "7955b2b44afcb62ca534b3a09ce87e2ab7202f834c4b7f57201c07514b19c26a"


def upgrade() -> None:
    """Change nothing."""
