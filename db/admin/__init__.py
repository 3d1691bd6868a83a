"""Looking after a store: copies, checks, roles."""

from collections.abc import Mapping
from pathlib import Path


def statements(name: str) -> Mapping[str, str]:
    """Return the statements of a file of SQL in this folder, by the comment
    above each; empty lines part them.
    """
    parts = (
        Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8").strip().split("\n\n")
    )
    return {
        head.removeprefix("-- "): sql for head, _, sql in (part.partition("\n") for part in parts)
    }
