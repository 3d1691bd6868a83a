"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new
# revision.
schema = "1e7d67325696c2c95693837182d3d067cbd552e02b4973f052c954924803bc93"


def upgrade() -> None:
    """Change nothing."""
