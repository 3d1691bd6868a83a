"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "2f33719afe79f9b493e53e775cfa2eaf47ed335af60e779c1de141a08ba82578"


def upgrade() -> None:
    """Change nothing."""
