"""The first schema: a new store is created with all of it, so there is nothing to change."""

revision = "0001"
down_revision = None

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new revision.
schema = "3dc955f75606b670bfd46662a598163a9f2aa54f2967632c2995c7e76afb1313"


def upgrade() -> None:
    """Change nothing."""
