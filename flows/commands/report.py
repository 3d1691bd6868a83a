"""The command that writes the page of a past night again."""

from typing import Annotated

import typer

from flows.commands.options import AsOf, DeviceOption, MarketFile, OptionalMarket, day_of, order_of

reports = typer.Typer()


@reports.command()
def report(
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    as_of: AsOf = None,
    level: Annotated[
        float | None, typer.Option(help="Level of the band of no call, such as 0.9; by default the market's own.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Write the HTML page of a past night again, by default of the last complete one, and print its path.

    With --level, its calls at another level: a higher one calls fewer stocks.

    Example: dtml report simulated --level 0.9
    """
    from flows.commands.report_work import write_report

    write_report(order_of(market, market_file, device=device), day_of(as_of), level)
