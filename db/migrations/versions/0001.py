"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "5f028fb75877de0e91bc0bbe30c62b3c8b4b00c232d9be40afb20ed98b768229"


def upgrade() -> None:
    """Change nothing."""
