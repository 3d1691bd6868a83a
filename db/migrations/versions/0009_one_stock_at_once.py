"""On PostgreSQL a stock's predictions, outcomes and bars lie side by side in an index that holds all of their columns.

Rows come night by night, so the rows of one stock lie on as many pages as there are nights; SQLite keeps its tables in
the order of their primary keys and needs nothing. Frozen: db/schema.py says what holds today.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BY_STOCK = "ix_prediction_instrument_id_target"
SAID = ["run_id", "as_of", "probability", "spread", "known_at", "made_at"]
KEYS = {
    "outcome": ("instrument_id, session", "move, rise, label"),
    "price": (
        "instrument_id, session, known_at",
        "open, high, low, close, adj_close, volume, dividend, split, source",
    ),
}


def upgrade() -> None:
    remake(SAID, " include ({rest})")


def downgrade() -> None:
    remake([], "")


def remake(said: list[str], including: str) -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.drop_index(BY_STOCK, "prediction")
    op.create_index(BY_STOCK, "prediction", ["instrument_id", "target"], postgresql_include=said)
    for table, (key, rest) in KEYS.items():
        made = f"add constraint pk_{table} primary key ({key}){including.format(rest=rest)}"
        op.execute(f"alter table {table} drop constraint pk_{table}, {made}")
