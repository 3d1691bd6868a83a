"""Twenty questions of a quant about predictions, each an SQL statement over documented views.

A file's first comment line is the question; how to read the answer follows after an empty one, then
the statement, for both engines and a reader's role.
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
    """A question in words, its statement, and how to read the answer.

    Both engines give the same rows in the same order, but for sums between two rounded numbers.
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
