"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "7465dc1f3c0a23efd54c142a07855c56d07421b147cdf4868892a70807577628"


def upgrade() -> None:
    """Change nothing."""
