"""The command that tests what a model looks at."""

from typing import Annotated

import typer

from flows.commands.options import AsJson, AsOf, MarketFile, OptionalMarket, day_of, order_of

explanations = typer.Typer()


@explanations.command()
def explain(
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    as_of: AsOf = None,
    members: Annotated[int | None, typer.Option(min=1, help="Networks trained on true labels; 4 by default.")] = None,
    shuffles: Annotated[
        int | None, typer.Option(min=1, help="Networks trained on labels of shuffled days; 8 by default.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of each training; 12 by default.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Test anew what was tested before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Test whether what the latest model looks at explains anything: against nonsense, against what moves it.

    Example: dtml explain simulated
    """
    from flows.commands.explain_console import explain_stored

    wanted = {"members": members, "shuffles": shuffles, "epochs": epochs}
    asked = {name: value for name, value in wanted.items() if value is not None}
    explain_stored(order_of(market, market_file), day_of(as_of), asked, again=again, as_json=as_json)
