"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "e6638ed18e8823e48873a18e03deaa8af48e20027c1b62e32c2a369ea6821a25"


def upgrade() -> None:
    """Change nothing."""
