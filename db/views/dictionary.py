"""The data dictionary: what each view, table and column means."""

from collections.abc import Mapping

from db.tables import metadata
from db.views import views


def data_dictionary() -> str:
    """Return every view and table with the meaning of each column, as Markdown."""
    parts = []
    for view in views().values():
        parts += [f"**`{view.name}`** (view): {view.meaning}", "", *_meanings(view.meanings()), ""]
    for table in metadata.sorted_tables:
        columns = {column.name: column.comment or "" for column in table.columns}
        parts += [f"**`{table.name}`** (table): {table.comment}", "", *_meanings(columns), ""]
    return "\n".join(parts)


def _meanings(columns: Mapping[str, str]) -> list[str]:
    return ["| column | meaning |", "| --- | --- |", *(f"| `{name}` | {said} |" for name, said in columns.items())]
