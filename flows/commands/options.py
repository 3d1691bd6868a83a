"""The options that several commands share: one name and one meaning each."""

from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dtml.markets.definition import SourceName, Universe

DAY = ["%Y-%m-%d"]


def known_markets(incomplete: str) -> list[str]:
    """Return the markets whose names begin so, for the shell to complete."""
    from dtml.markets import market_names

    return [name for name in market_names() if name.startswith(incomplete)]


OptionalMarket = Annotated[
    str | None,
    typer.Argument(help="A market that `dtml markets` lists.", metavar="[MARKET]", autocompletion=known_markets),
]
STORED_MARKET = typer.Option(help="A market of the store.", autocompletion=known_markets)
MarketFile = Annotated[Path | None, typer.Option(help="A market of your own, as a TOML file.")]
MarketFiles = Annotated[
    list[Path] | None, typer.Option(help="A market of your own, as a TOML file; may be given again.")
]
SourceOption = Annotated[
    SourceName | None,
    typer.Option(help="Where prices come from; by default the market's own source, or files with --prices."),
]
PricesOption = Annotated[Path | None, typer.Option(help="Prices for --source files: parquet, CSV, or a folder.")]
IndexOption = Annotated[Path | None, typer.Option(help="The index for --source files, if not among the prices.")]
UniverseOption = Annotated[
    Universe | None,
    typer.Option(
        help="Stocks of the market's list or of the source; by default the list, unless the source lacks much of it."
    ),
]
AsOf = Annotated[datetime | None, typer.Option(formats=DAY, help="Last session seen; by default the last closed.")]
DeviceOption = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute; auto takes CUDA if there.")
]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds in the ensemble.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs of a training.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def day_of(moment: datetime | None) -> date | None:
    """Return the day of an option."""
    return None if moment is None else moment.date()


def request_of(
    market: str | None,
    market_file: Path | None,
    source: str | None = None,
    prices: Path | None = None,
    index: Path | None = None,
    universe: Universe | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    train_sessions: int | None = None,
    *,
    warm_start: bool = False,
) -> Any:
    """Return the order of these options; a market's file may be given with the name that it has from the file."""
    from dtml.errors import UsageError
    from flows.nightly.context import RunRequest

    if market_file is not None and market == market_file.stem:
        market = None  # its name comes from the file
    if market and market_file:
        raise UsageError(f"name one market: {market_file} is of the market {market_file.stem}, not {market}")
    if not market and not market_file:
        raise UsageError("name one market, such as `simulated`, or a file of your own with --market-file")
    asked = {
        "seeds": seeds,
        "epochs": epochs,
        "train_sessions": train_sessions,
        "warm_start": warm_start or None,
    }
    overrides = {name: value for name, value in asked.items() if value is not None}
    name = market or str(market_file)
    found = market_file.absolute() if market_file else None  # a worker may be in another folder
    return RunRequest(name, found, source, prices, index, universe, overrides, device)
