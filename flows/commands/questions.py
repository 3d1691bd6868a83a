"""The command that asks a store the questions of db/questions/questions.py."""

from typing import Annotated

import typer

from flows.commands.options import STORED_MARKET, AsJson

questions = typer.Typer()


@questions.command(name="questions")
def ask_questions(
    number: Annotated[
        int | None, typer.Argument(min=1, max=20, help="The question to be asked; without it they are listed.")
    ] = None,
    market: Annotated[str, STORED_MARKET] = "simulated",
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a page with every answer.")] = False,
) -> None:
    """List twenty questions to a history of predictions, or ask one: its SQL, and your store's answer.

    Example: dtml questions 2 --market kdd17
    """
    from flows.commands.questions_work import show_questions

    show_questions(number, market, as_json=as_json, as_markdown=as_markdown)
