"""Looking after a store: copies, checks, roles."""

from collections.abc import Mapping
from pathlib import Path


def statements(name: str) -> Mapping[str, str]:
    """Return the statements of NAME.sql here, between empty lines, by the comment above each."""
    file = Path(__file__).with_name(f"{name}.sql")
    statement_by_comment: dict[str, str] = {}
    for part in file.read_text(encoding="utf-8").strip().split("\n\n"):
        comment, _, sql = part.partition("\n")
        statement_by_comment[comment.removeprefix("-- ")] = sql
    return statement_by_comment
