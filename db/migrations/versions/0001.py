"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "ddf8fb8a6d01d86743db65e2c5c5bd7352a25c2b2c286194a84a379ea2659dc0"


def upgrade() -> None:
    """Change nothing."""
