"""Twenty questions that a quant asks of a history of predictions, each one SQL statement over the
documented views.

A file each, in the order of their numbers: the question in the first line of comment, how to read
the answer after an empty one, and the statement. The same text runs on SQLite and on PostgreSQL,
and a reader's role suffices.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

# as it stands in every statement, and nowhere but where the market is meant
MARKET: Final = "'simulated'"


@dataclass(frozen=True)
class Question:
    """A question in words, the statement that answers it, and a sentence on how to read the answer.

    Every order is total. What is added up is rounded, so that both engines give the same rows, but
    for a number that lies in the middle of two.
    """

    title: str
    sql: str
    note: str

    def about(self, market: str) -> str:
        """Return the statement for another market; its name may be any text."""
        return self.sql.replace(MARKET, literal(market))


@cache
def questions() -> tuple[Question, ...]:
    """Return the questions in the order of their numbers."""
    files = sorted(Path(__file__).parent.glob("[0-9][0-9]-*.sql"))
    return tuple(parse_question(each.read_text(encoding="utf-8")) for each in files)


def parse_question(text: str) -> Question:
    """Return the question of a file's text; raises ValueError for one without a
    title, a note or a statement.
    """
    lines = text.splitlines()
    length = next(
        (place for place, line in enumerate(lines) if not line.startswith("--")), len(lines)
    )
    title, *note = (line.removeprefix("--").strip() for line in lines[:length])
    sql = "\n".join(lines[length:]).strip()
    if not title.endswith("?") or note[:1] != [""] or not any(note) or not sql:
        raise ValueError(
            "expected a question, an empty line, how to read its answer, and a statement; got "
            f"{lines[:1]}"
        )
    return Question(title, sql, " ".join(note[1:]))


def literal(value: str) -> str:
    """Return any text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"
