"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new
# revision.
schema = "8f0531104a5c8ba69a6eb8d318b59e6943568b7d0fc2d20b15298f14a78b8064"


def upgrade() -> None:
    """Change nothing."""
