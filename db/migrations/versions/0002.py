"""Record which versions, processor and device trained a model and predicted a night."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new
# revision.
schema = "d99799ed04f3b7dcb009d690bcc7b3248fcc8cfba15f450e31bd2439a91b70e2"

# What this revision adds or changes, which an older store lacks: tables, and columns by table.
new_tables: list[str] = []
changed_columns: dict[str, list[str]] = {"run": ["computed_by"], "night": ["computed_by"]}

TRAINED = (
    "Versions, processor and device that trained it, which decide the last bits; missing before "
    "schema 0002."
)
PREDICTED = (
    "Versions, processor and device that predicted, which decide the last bits; missing until "
    "predicted, and before schema 0002."
)


def upgrade() -> None:
    """Add the columns, which are missing in every row: nobody knows what computed these."""
    op.add_column("run", sa.Column("computed_by", sa.String(), comment=TRAINED))
    op.add_column("night", sa.Column("computed_by", sa.String(), comment=PREDICTED))
