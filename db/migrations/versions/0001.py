"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "acccf65a8505506ff3e6d0dd21578174a36d21f917ca4867fc96169cd9d9d43a"


def upgrade() -> None:
    """Change nothing."""
