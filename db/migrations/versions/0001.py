"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "f5843205786a2ea663511ed0f1bbe83b5909be25169d17fbd0784d14185124ee"


def upgrade() -> None:
    """Change nothing."""
