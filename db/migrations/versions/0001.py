"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "fecd2263715cce38622d07e20439d3ada2fd16f15cd157fba24434a36717fdc1"


def upgrade() -> None:
    """Change nothing."""
