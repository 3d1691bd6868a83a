"""Calibration: the abstention bands of each model, and counts of its outcomes by probability."""

from datetime import date

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection

from db import tables
from db.connection.frames import frame


def night_counts(conn: Connection, name: str, market: str, last: date) -> pd.DataFrame:
    """Return the rows of a table of counts, of a market's nightly runs, targets up to `last`."""
    table = tables.metadata.tables[name]
    joined = table.join(tables.run, tables.run.c.id == table.c.run_id)
    keys = [column for column in table.primary_key if column.name not in ("run_id", "target")]
    statement = (
        sa.select(table)
        .select_from(joined)
        .where(
            tables.run.c.market == market,
            tables.run.c.kind == "nightly",
            table.c.target <= last,
        )
        .order_by(table.c.target, table.c.run_id, *keys)
    )
    return frame(conn, statement)
