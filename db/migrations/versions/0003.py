"""Recreate the views: `ranking_summary` names the rule that is strongest on the days scored."""

revision = "0003"
down_revision = "0002"

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new
# revision.
schema = "55d4a9920be60e687f4c30eecea5fcc56afb089f438c83668e117fa8049b9375"

# What this revision adds or changes, which an older store lacks: tables, and columns by table.
new_tables: list[str] = []
changed_columns: dict[str, list[str]] = {}


def upgrade() -> None:
    """Change nothing: every upgrade recreates all views and comments."""
