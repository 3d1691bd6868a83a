"""The command that answers the questions of db/questions from a store."""

from datetime import UTC, datetime
from typing import Annotated, Any

import pandas as pd
import typer
from sqlalchemy import Engine

from db.connection.user_sql import select
from db.engine import open_reader
from db.questions import Question, questions
from dtml.errors import UsageError
from flows.answer_files import MOMENT, stored_moment
from flows.commands.history import require_market
from flows.commands.options import AsJson, known_markets
from flows.console import as_json_values, print_frame, print_json, rendered
from flows.settings import out, print_text

commands = typer.Typer()

SHOWN = 10  # rows of an answer on the page


@commands.command("questions")
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
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Print Markdown: a page with all answers, or the answer to NUMBER."
        ),
    ] = False,
) -> None:
    """List twenty questions about the history of predictions, or answer one.

    Each answer is printed with its SQL, which you can copy and change.

    Example: dtml questions 2 --market kdd17
    """
    if as_json and as_markdown:
        raise UsageError("--json and --markdown cannot be combined: choose one")
    if number is None and not as_markdown:
        return _list(as_json=as_json)
    engine = open_reader()
    market = require_market(engine, market, " with --market")
    if as_markdown:
        return print_text(questions_page(engine, market, only=number).strip())
    assert number is not None  # without a number, the list or the page was printed above
    question = questions()[number - 1]
    answer = ask(engine, question, market)
    if as_json:
        document = _question_document(number, question, market)
        document["market"] = market
        document["answer"] = answer
        return print_json(document)
    out.print(f"[bold]{number}. {question.title}[/bold]")
    out.print(f"{question.note}\n")
    out.print(f"{question.about(market)}\n", markup=False, soft_wrap=True)
    if answer.empty:
        return out.print(f"The store has no row for {market} that answers this yet.")
    return print_frame(answer, importance=None)


def ask(engine: Engine, question: Question, market: str) -> pd.DataFrame:
    """Return the answer to a question about a market, alike on SQLite and PostgreSQL.

    `engine` opens the store read-only. The values are whole numbers, other numbers, and text, to
    which days and moments are turned.
    """
    rows = select(engine, question.about(market), is_trusted=True)
    columns = {name: _alike(rows[name]) for name in rows}
    return pd.DataFrame(columns, columns=rows.columns)


def questions_page(engine: Engine, market: str, remark: str = "", only: int | None = None) -> str:
    """Return a page of Markdown with every question, or with the one whose number is `only`.

    Each has its statement and the first SHOWN rows of its answer. Unless `only` is given, an
    introduction comes first, followed by `remark`, which says what the store holds.
    """
    answered = []
    for number, question in enumerate(questions(), start=1):
        if only is None or only == number:
            document = _question_document(number, question, market)
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


def _list(*, as_json: bool) -> None:
    if as_json:
        documents = [
            _question_document(number, question, None)
            for number, question in enumerate(questions(), start=1)
        ]
        return print_json(documents)
    titles = [question.title for question in questions()]
    numbers = range(1, len(titles) + 1)
    print_frame(
        pd.DataFrame({"": numbers, "question": titles}),
        importance=("question",),
        prose=("question",),
    )
    return out.print(
        "\n`dtml questions 7` answers the seventh from your store; --market chooses the market."
    )


def _question_document(number: int, question: Question, market: str | None) -> dict[str, Any]:
    sql = question.sql
    if market is not None:
        sql = question.about(market)
    return {
        "number": number,
        "title": question.title,
        "note": question.note,
        "sql": sql,
    }


def _alike(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column in a form that is the same from SQLite and from PostgreSQL.

    Whole numbers with missing values may come as floats: floats without a fraction become whole
    numbers. Days become ISO text, moments text to the minute in UTC.
    """
    if pd.api.types.is_float_dtype(values):
        known = values.dropna()  # a column without any value stays one of floats
        are_whole = bool((known % 1 == 0).all())
        if len(known) and are_whole:
            return values.astype("Int64")
        return values + 0.0  # SQLite may return -0, which this makes 0
    if pd.api.types.is_numeric_dtype(values):
        return values
    return values.map(_text).astype(object)


def _text(value: Any) -> str | None:
    """Return a text, a day as ISO text, a moment to the minute in UTC; None where it is missing."""
    if isinstance(value, str) and MOMENT.fullmatch(value):  # from SQLite
        value = stored_moment(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M UTC}"
    json_value = as_json_values(value)
    if json_value is None:
        return None
    return str(json_value)


def _markdown_table(rows: pd.DataFrame) -> str:
    alignments = []
    for name in rows:
        is_numeric = pd.api.types.is_numeric_dtype(rows[name])
        alignments.append("--:" if is_numeric else "---")
    cells = [[_cell(value) for value in row] for row in rows.itertuples(index=False)]
    names = [str(name) for name in rows]
    lines = [f"| {' | '.join(line)} |" for line in [names, alignments, *cells]]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    json_value = as_json_values(value)
    if json_value is None:
        return ""
    return str(json_value).replace("|", "\\|").replace("\n", " ")
