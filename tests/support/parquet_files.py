"""What exported Parquet files hold."""

from pathlib import Path

import pyarrow.parquet as pq

from db.connection.parquet_sql import open_parquet_answer

ALL = frozenset[str]()  # of no market by name: of all


def no_progress(*_: object) -> None:
    """Say nothing of how far an export is."""


def contents(folder: Path) -> dict[str, list[str]]:
    files = sorted(folder.rglob("*.parquet"))
    return {
        str(file.relative_to(folder)): sorted(map(repr, pq.read_table(file).to_pylist()))
        for file in files
    }


def rows_of(found: dict[str, list[Path]], sql: str) -> list[tuple[object, ...]]:
    with open_parquet_answer(found, sql) as answer:
        return [tuple(row) for batch in answer.batches for row in batch]
