"""The commands that make past nights again."""

from typing import Annotated

import typer

from flows.commands.options import AsJson, AsOf, DeviceOption, MarketFile, OptionalMarket, day_of, order_of

replays = typer.Typer()


@replays.command()
def replay(
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    as_of: AsOf = None,
    known_at: Annotated[
        str | None,
        typer.Option(help="Bars as known at this moment, ISO 8601 with a zone, or at a day's end, UTC."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every complete night of the market.")] = False,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Predict a past night again from what it knew and compare to the last bit; exit code 1 when it differs.

    By default the last complete night. With --known-at, what it would say from bars as known then, beside what it said.

    Example: dtml replay simulated --as-of 2026-11-19
    """
    from flows.commands.replay_work import replay_all, replay_night

    order = order_of(market, market_file, device=device)
    if every:
        replay_all(order, day_of(as_of), known_at, as_json=as_json)
    else:
        replay_night(order, day_of(as_of), known_at, as_json=as_json)


@replays.command()
def reproduce(
    receipt: Annotated[str, typer.Argument(help="RUN/SYMBOL/TARGET, the column receipt of latest_prediction.")],
    market_file: MarketFile = None,
    train_again: Annotated[
        bool, typer.Option("--retrain", help="Train its model again: compare weights, or replace lost ones.")
    ] = False,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Make one prediction again from its receipt and compare to the last bit; exit code 1 when it differs.

    Example: dtml reproduce simulated-2026-11-20-1a2b3c4d/L01/2026-11-23
    """
    from flows.commands.replay_work import reproduce_prediction

    reproduce_prediction(receipt, market_file, device, train_again=train_again, as_json=as_json)
