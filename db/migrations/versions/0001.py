"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new
# revision.
schema = "a4a6dee4483c93913471383e2d5351318ccacd60f8ad45b71d1b73285ed4623e"

# What this revision adds or changes, which an older store lacks: tables, and columns by table.
new_tables: list[str] = []
changed_columns: dict[str, list[str]] = {}


def upgrade() -> None:
    """Change nothing."""
