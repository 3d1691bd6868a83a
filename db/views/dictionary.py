"""The data dictionary: what each view, table and column means."""

from collections.abc import Mapping

from db import tables
from db.views.views import VIEW_COLUMNS


def data_dictionary() -> str:
    """Every view and table with the meaning of each column, as Markdown."""
    parts = []
    for view, columns in VIEW_COLUMNS.items():
        parts += [f"**`{view}`** (view)", "", *_meanings(columns), ""]
    for table in tables.metadata.sorted_tables:
        columns = {column.name: column.comment or "" for column in table.columns}
        parts += [f"**`{table.name}`** (table): {table.comment}", "", *_meanings(columns), ""]
    return "\n".join(parts)


def _meanings(columns: Mapping[str, str]) -> list[str]:
    return ["| column | meaning |", "| --- | --- |", *(f"| `{name}` | {said} |" for name, said in columns.items())]
