"""The command that runs the nights of markets on schedule."""

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
    markets: Annotated[
        list[str] | None,
        typer.Argument(help="Markets; by default all markets with a stored night."),
    ] = None,
    market_file: MarketFiles = None,
    delay: Annotated[
        int,
        typer.Option(
            min=30, max=720, help="Minutes between the usual close and the start of the night."
        ),
    ] = DELAY_MINUTES,
    cron: Annotated[
        str | None,
        typer.Option(help="A cron expression for the nights, in the exchange's time zone."),
    ] = None,
) -> None:
    """Run nights, trainings and refetches on schedule, starting with missed nights.

    A night runs after each session, a training every week and a refetch of all prices every month.
    Stop it with Ctrl-C.

    Example: dtml serve simulated kospi200
    """
    make_data_folder()
    # Imported here, because it imports torch, for which `dtml serve --help` must not wait.
    from flows.service.runner import serve_markets, service_of

    serve_markets(
        service_of(markets or [], market_file or [], request, timedelta(minutes=delay), cron)
    )
