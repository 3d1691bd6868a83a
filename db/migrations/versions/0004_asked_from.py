"""Since when each instrument was asked for.

Frozen: db/schema.py says what holds today.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    comment = "First session ever asked of a source; missing before the first answer."
    op.add_column("instrument", sa.Column("asked_from", sa.Date, comment=comment))


def downgrade() -> None:
    op.drop_column("instrument", "asked_from")
