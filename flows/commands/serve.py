"""The command that runs nights on schedule."""

from typing import Annotated

import typer

from flows.commands.options import (
    DeviceOption,
    Epochs,
    IndexOption,
    MarketFiles,
    PricesOption,
    Seeds,
    SourceOption,
    UniverseOption,
    request_of,
)
from flows.service.schedules import DELAY_MINUTES

commands = typer.Typer()


@commands.command()
def serve(
    markets: Annotated[
        list[str] | None, typer.Argument(help="Markets; by default every one with a night in the store.")
    ] = None,
    market_file: MarketFiles = None,
    source: SourceOption = None,
    prices: PricesOption = None,
    index: IndexOption = None,
    universe: UniverseOption = None,
    delay: Annotated[
        int, typer.Option(min=30, max=720, help="Minutes from the exchange's usual close to the night.")
    ] = DELAY_MINUTES,
    cron: Annotated[
        str | None, typer.Option(help="A cron expression for the nights, in the exchange's time zone.")
    ] = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    device: DeviceOption = "auto",
) -> None:
    """Run nights, trainings and refetches on schedule, missed nights first.

    A night runs after each session, a training each week, a refetch of all prices each month. Ctrl-C ends it.

    Example: dtml serve simulated kospi200
    """
    from datetime import timedelta

    from flows.settings import make_data_folder

    make_data_folder()
    from flows.service.runner import serve_markets, service_of

    request = request_of("each", None, source, prices, index, universe, seeds, epochs, device)
    serve_markets(service_of(markets or [], market_file or [], request, timedelta(minutes=delay), cron))
