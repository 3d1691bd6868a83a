"""All tables, indexes and views of the first release, in each engine's own SQL.

Frozen, like the files that it runs: db/tables/schema.py and db/views/views.py say what holds today.
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    conn = op.get_bind()
    file = Path(__file__).with_name(f"{revision}_{conn.dialect.name}.sql")
    for statement in file.read_text(encoding="utf-8").split(";\n"):
        if statement.strip():
            # A % in a comment is no parameter.
            conn.exec_driver_sql(statement, execution_options={"no_parameters": True})
