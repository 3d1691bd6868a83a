"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "556c40d2921724c2d8068882c0f664cf61e7998206a179d917404c92496a623e"


def upgrade() -> None:
    """Change nothing."""
