"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "f6d8f08d0ab017e991d24d28bcf2ec7eb27d14f1ce75c9ee2ea0a87c256301c1"


def upgrade() -> None:
    """Change nothing."""
