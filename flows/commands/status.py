"""The command that says how it goes."""

from typing import Annotated

import typer

from flows.commands.options import AsJson, MarketFiles

statuses = typer.Typer()


@statuses.command()
def status(
    markets: Annotated[list[str] | None, typer.Argument(help="By default all that the store knows.")] = None,
    market_file: MarketFiles = None,
    check: Annotated[
        bool, typer.Option("--check", help="Raise and send what is late or refused, and end 1 if anything is.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how each market stands: last night, next night, model, scores, alerts that nobody took.

    Example: dtml status --check
    """
    from flows.commands.status_console import show_status

    if not show_status(markets or [], market_file or [], check=check, as_json=as_json):
        raise typer.Exit(1)
