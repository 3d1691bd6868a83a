"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "714d05ede4b7e4a2b9f64d002b2f58aa448c837914161f2eb4d1ed59b154998c"


def upgrade() -> None:
    """Change nothing."""
