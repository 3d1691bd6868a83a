"""The command that runs nights on schedule."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from flows.commands.options import MarketFiles, with_request
from flows.service.schedules import DELAY_MINUTES
from flows.settings import make_data_folder

commands = typer.Typer()


@commands.command()
@with_request("source", "prices", "index", "universe", "seeds", "epochs", "device")
def serve(
    request: Any,
    markets: Annotated[list[str] | None, typer.Argument(help="Markets; by default all that have a night.")] = None,
    market_file: MarketFiles = None,
    delay: Annotated[
        int, typer.Option(min=30, max=720, help="Minutes from the usual close to the night.")
    ] = DELAY_MINUTES,
    cron: Annotated[str | None, typer.Option(help="A cron expression for the nights, in exchange time.")] = None,
) -> None:
    """Run nights, trainings and refetches on schedule, missed nights first.

    A night runs after each session, a training each week, a refetch of all prices each month. Ctrl-C ends it.

    Example: dtml serve simulated kospi200
    """
    make_data_folder()
    from flows.service.runner import serve_markets, service_of

    serve_markets(service_of(markets or [], market_file or [], request, timedelta(minutes=delay), cron))
