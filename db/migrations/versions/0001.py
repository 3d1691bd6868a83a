"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "c3413613ddd210e17832f475ceffd48456c56175326777e4c9164389a1b095af"


def upgrade() -> None:
    """Change nothing."""
