"""The command that asks a store the questions of db/questions."""

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
from flows.commands.options import STORED_MARKET, AsJson
from flows.commands.query import require_market
from flows.console import plain, print_frame, print_json, rendered
from flows.settings import out

commands = typer.Typer()

SHOWN = 10  # rows of an answer on the page


@commands.command("questions")
def show_questions(
    number: Annotated[
        int | None,
        typer.Argument(
            min=1, max=20, help="Number of the question; without it the questions are listed."
        ),
    ] = None,
    market: Annotated[str, STORED_MARKET] = "simulated",
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a page with every answer.")
    ] = False,
) -> None:
    """List twenty questions about the history of predictions, or answer one.

    The answer comes with its SQL, which can be copied and changed.

    Example: dtml questions 2 --market kdd17
    """
    if as_json and as_markdown:
        raise UsageError("--json and --markdown cannot be combined: choose one")
    if number is None and not as_markdown:
        return _list(as_json=as_json)
    engine = open_reader()
    require_market(engine, market, " with --market")
    if as_markdown:
        return print(questions_page(engine, market, only=number).strip())  # noqa: T201 - not for people
    assert number is not None
    question = questions()[number - 1]
    answer = ask(engine, question, market)
    if as_json:
        return print_json(_told(number, question, market) | {"market": market, "answer": answer})
    out.print(f"[bold]{number}. {question.title}[/bold]")
    out.print(f"{question.note}\n")
    out.print(f"{question.about(market)}\n", markup=False, soft_wrap=True)
    if answer.empty:
        return out.print(f"The history of {market} has no row that answers this yet.")
    return print_frame(answer)


def ask(engine: Engine, question: Question, market: str) -> pd.DataFrame:
    """The answer of a store opened read only, the same values on either engine:
    whole numbers, numbers, ISO text.
    """
    rows = select(engine, question.about(market), own=True)
    return pd.DataFrame({name: _alike(rows[name]) for name in rows}, columns=rows.columns)


def questions_page(engine: Engine, market: str, remark: str = "", only: int | None = None) -> str:
    """Every question with its statement and the first rows of its answer, as Markdown, or one of
    them alone.

    A remark says what the store holds.
    """
    numbered = [
        (number, each) for number, each in enumerate(questions(), start=1) if only in {None, number}
    ]
    asked = [(_told(number, each, market), ask(engine, each, market)) for number, each in numbered]
    values = {"asked": asked, "whole": only is None, "market": market, "remark": remark}
    return rendered("questions.txt", most=SHOWN, table=_table, **values)


def _list(*, as_json: bool) -> None:
    if as_json:
        return print_json(
            [_told(number, each, None) for number, each in enumerate(questions(), start=1)]
        )
    titles = [question.title for question in questions()]
    print_frame(pd.DataFrame({"": range(1, len(titles) + 1), "question": titles}))
    return out.print(
        "\n`dtml questions 7` answers the seventh from your store; --market names another market."
    )


def _told(number: int, question: Question, market: str | None) -> dict[str, Any]:
    sql = question.sql if market is None else question.about(market)
    return {"number": number, "title": question.title, "note": question.note, "sql": sql}


def _alike(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """A column without what tells the engines apart: how whole numbers miss
    values, and how days and moments come.
    """
    if pd.api.types.is_float_dtype(values):
        whole = bool((values.dropna() % 1 == 0).all()) and bool(values.notna().any())
        return values.astype("Int64") if whole else values + 0.0  # which makes 0 of SQLite's -0
    return values if pd.api.types.is_numeric_dtype(values) else values.map(_text).astype(object)


def _text(value: Any) -> str | None:
    """Text, a day or a moment as ISO text; None where it is missing."""
    if isinstance(value, str) and MOMENT.fullmatch(value):
        value = stored_moment(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M UTC}"
    said = plain(value)
    return None if said is None else str(said)


def _table(rows: pd.DataFrame) -> str:
    numeric = [pd.api.types.is_numeric_dtype(rows[name]) for name in rows]
    lines = [list(rows.columns), ["--:" if right else "---" for right in numeric]]
    lines += [[_cell(value) for value in row] for row in rows.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    said = plain(value)
    return "" if said is None else str(said).replace("|", "\\|").replace("\n", " ")
