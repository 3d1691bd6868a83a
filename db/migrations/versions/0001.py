"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "4954a8ee0866840fcab4d6b56d9798ba8b7877c66112eba265eda1df15911bdd"


def upgrade() -> None:
    """Change nothing."""
