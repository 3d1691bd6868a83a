"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new
# revision.
schema = "1fc1642afc7d093532424cff0f9c33f2b1a47014f22b40f65ee3fbcea9df6388"

# What this revision adds or changes, which an older store lacks: tables, and columns by table.
new_tables: list[str] = []
changed_columns: dict[str, list[str]] = {}


def upgrade() -> None:
    """Change nothing."""
