"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "f6546776b066d496e62f7aa0b67ec8671c550449d10052b98d599deed9e71324"


def upgrade() -> None:
    """Change nothing."""
