"""The command that answers the questions of db/questions from a store."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import pandas as pd
import typer
from sqlalchemy import Engine

from db.connection.user_sql import select
from db.engine import open_reader
from db.questions import Question, questions
from dtml.pages.figures import are_whole
from flows.answer_files import MOMENT
from flows.commands.answers import Answer, answering
from flows.commands.history import require_market
from flows.commands.options import known_markets
from flows.console import ConsoleTable, Part, as_json_values, bold, rendered

commands = typer.Typer()

SHOWN = 10  # rows of an answer on the page


@commands.command("questions")
@answering("json", "markdown")
def show_questions(
    number: Annotated[
        int | None,
        typer.Argument(
            min=1, max=20, help="Number of a question; without it the questions are listed."
        ),
    ] = None,
    market: Annotated[
        str | None,
        typer.Option(
            help="A market of the store; by default its only one.", autocompletion=known_markets
        ),
    ] = None,
) -> Answer:
    """List twenty questions about the history of predictions, or answer one.

    Each answer is printed with its SQL, which you can copy and change. Without a number, --markdown
    prints a page with all answers.

    Example: dtml questions 2 --market kdd17
    """
    if number is None:
        return _list(market)
    engine = open_reader()
    market = require_market(engine, market, " with --market")
    question = questions()[number - 1]
    answer = ask(engine, question, market)
    parts: list[Part] = [
        bold(f"{number}. {question.title}"),
        f"{question.note}\n\n{question.about(market)}\n\n",
        f"The store has no row for {market} that answers this yet."
        if answer.empty
        else ConsoleTable(answer),
    ]
    document = _document(number, question, market) | {"market": market, "answer": answer}
    return Answer(parts, document, _page(market, number))


def _list(market: str | None) -> Answer:
    listed = list(enumerate(questions(), start=1))
    titles = pd.DataFrame({number: question.title for number, question in listed}.items())
    parts: list[Part] = [
        ConsoleTable(titles.set_axis(["", "question"], axis="columns"), prose=("question",)),
        "\n`dtml questions 7` answers the seventh from your store; --market chooses the market.",
    ]
    return Answer(parts, [_document(*each, None) for each in listed], _page(market))


def _page(market: str | None, number: int | None = None) -> Iterator[str]:
    engine = open_reader()
    market = require_market(engine, market, " with --market")
    yield questions_page(engine, market, only=number).strip()


def ask(engine: Engine, question: Question, market: str) -> pd.DataFrame:
    """Return the answer to a question about a market, alike on SQLite and PostgreSQL."""
    rows = select(engine, question.about(market), is_trusted=True)
    columns = {}
    for name, values in rows.items():
        if pd.api.types.is_float_dtype(values):
            # SQLite may return -0, which the sum makes 0.
            columns[name] = values.astype("Int64") if are_whole(values) else values + 0.0
        elif pd.api.types.is_numeric_dtype(values):
            columns[name] = values
        else:
            columns[name] = values.map(_text).astype(object)
    return pd.DataFrame(columns, columns=rows.columns)


def questions_page(engine: Engine, market: str, remark: str = "", only: int | None = None) -> str:
    """Return a page of Markdown with every question and SHOWN rows, or with `only` one.

    `remark` ends the introduction to all.
    """
    answered = []
    for number, question in enumerate(questions(), start=1):
        if only is None or only == number:
            document = _document(number, question, market)
            answered.append((document, ask(engine, question, market)))
    return rendered(
        "questions.txt",
        asked=answered,
        whole=only is None,
        market=market,
        remark=remark,
        most=SHOWN,
        table=_markdown_table,
    )


def _document(number: int, question: Question, market: str | None) -> dict[str, Any]:
    return {
        "number": number,
        "title": question.title,
        "note": question.note,
        "sql": question.about(market) if market else question.sql,
    }


def _text(value: Any) -> str | None:
    """Return a text, a day as ISO text, a moment to the minute in UTC; None where it is missing."""
    if isinstance(value, str) and MOMENT.fullmatch(value):  # from SQLite
        value = datetime.fromisoformat(value).replace(tzinfo=UTC)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M UTC}"
    json_value = as_json_values(value)
    if json_value is None:
        return None
    return str(json_value)


def _markdown_table(rows: pd.DataFrame) -> str:
    alignments = ["--:" if pd.api.types.is_numeric_dtype(rows[name]) else "---" for name in rows]
    texts = rows.astype(object).where(rows.notna(), "").astype(str)
    cells = texts.replace({r"\|": r"\\|", "\n": " "}, regex=True)
    lines = [rows.columns, alignments, *cells.to_numpy()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
