"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "208a776bef938c744e137c47c9c63567e917d56b161218efa464b3e5fc512678"


def upgrade() -> None:
    """Change nothing."""
