"""Twenty questions of a quant about predictions, each an SQL statement over documented views.

Each question is a file, and their numbers give the order. Its first comment line is the question;
how to read the answer follows after an empty comment line, and then the statement. The same text
runs on SQLite and on PostgreSQL, and a reader's role suffices.
"""

from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final

# The market's name in every statement; it stands for nothing else there.
MARKET: Final = "'simulated'"


@dataclass(frozen=True)
class Question:
    """A question in words, the statement that answers it, and a sentence on how to read the answer.

    SQLite and PostgreSQL give the same rows in the same order: the statement orders them by columns
    that have no ties, and rounds sums. Only a sum that lies exactly between two rounded numbers may
    differ.
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
    return tuple(parse_question(file.read_text(encoding="utf-8")) for file in files)


def parse_question(text: str) -> Question:
    """Return the question of a file's text; the module describes its parts."""
    lines = text.splitlines()
    comments = list(takewhile(lambda line: line.startswith("--"), lines))
    title, _, *note = [line.removeprefix("--").strip() for line in comments]
    return Question(title, "\n".join(lines[len(comments) :]).strip(), " ".join(note))


def literal(value: str) -> str:
    """Return any text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"
