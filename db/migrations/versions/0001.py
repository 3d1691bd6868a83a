"""The schema of 0.1.0, which a new store is created with: there is nothing to change."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing."""
