"""Record what computed each model and night, how long its stages took, and which feed fetched."""

import sqlalchemy as sa
from alembic import op

from db.tables import UtcTimestamp

revision = "0002"
down_revision = "0001"

# SHA-256 of the tables and views as of this revision: where a test finds others, it asks for a new
# revision.
schema = "4f50b498eb34fee234c231de3d92d42381758e59f416c0eb3cf9c23debe371d8"

# What this revision adds or changes, which an older store lacks: tables, and columns by table.
new_tables = ["night_stage"]
changed_columns: dict[str, list[str]] = {
    "run": ["computed_by"],
    "night": ["computed_by"],
    "price_fetch": ["code"],
}

TRAINED = (
    "Versions, processor and device that trained it, which decide the last bits; missing before "
    "schema 0002."
)
PREDICTED = (
    "Versions, processor and device that predicted, which decide the last bits; missing until "
    "predicted, and before schema 0002."
)

FEED = (
    "Text of the user's own feed that fetched; missing for other sources, where the feed was not "
    "admitted, and before schema 0002."
)

STAGE = (
    "'fetch', 'model', 'predict', 'rank', 'store', 'score', 'paper account', 'drift' or 'report'."
)
STATUS = "'running', 'done' or 'failed'; it stays 'running' where the process was killed."
SECONDS = "How long it took; missing while its status is 'running'."
STAGES = (
    "Stages of nights: one row per stage that the last run of a night has begun, with how long it "
    "took."
)


def upgrade() -> None:
    """Add columns, missing in every row (nobody knows what computed these), and an empty table."""
    op.add_column("price_fetch", sa.Column("code", sa.String(), comment=FEED))
    op.add_column("run", sa.Column("computed_by", sa.String(), comment=TRAINED))
    op.add_column("night", sa.Column("computed_by", sa.String(), comment=PREDICTED))
    op.create_table(
        "night_stage",
        sa.Column("market", sa.String(), primary_key=True, comment="Name of the market."),
        sa.Column("as_of", sa.Date(), primary_key=True, comment="The night."),
        sa.Column("stage", sa.String(), primary_key=True, comment=STAGE),
        sa.Column("status", sa.String(), nullable=False, comment=STATUS),
        sa.Column("started_at", UtcTimestamp(), nullable=False, comment="When the stage began."),
        sa.Column("seconds", sa.Float(53), comment=SECONDS),
        sa.CheckConstraint("status in ('running', 'done', 'failed')", name="status"),
        sa.CheckConstraint("seconds >= 0", name="seconds"),
        comment=STAGES,
        sqlite_with_rowid=False,
    )
