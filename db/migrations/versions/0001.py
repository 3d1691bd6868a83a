"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "eb24359ae57f675f9573fa10dbfc1d0ef737b313189766abfb01b9ced50f1753"


def upgrade() -> None:
    """Change nothing."""
