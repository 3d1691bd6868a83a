"""The options that several commands share: one name and one meaning each."""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dtml.markets.definition import SourceName, Universe

DAY = ["%Y-%m-%d"]
KEYWORD = Parameter.KEYWORD_ONLY


def known_markets(incomplete: str) -> list[str]:
    """Return the markets whose names begin so, for the shell to complete."""
    from dtml.markets import market_names

    return [name for name in market_names() if name.startswith(incomplete)]


OptionalMarket = Annotated[
    str | None,
    typer.Argument(
        help="A market that `dtml markets` lists.", metavar="[MARKET]", autocompletion=known_markets
    ),
]
STORED_MARKET = typer.Option(help="A market of the store.", autocompletion=known_markets)
MarketFile = Annotated[Path | None, typer.Option(help="A market of your own, as a TOML file.")]
MarketFiles = Annotated[
    list[Path] | None, typer.Option(help="A market of your own, a TOML file; repeatable.")
]
AsOf = Annotated[
    datetime | None,
    typer.Option(
        formats=DAY, help="Last session seen; by default the last closed that the prices reach."
    ),
]
DeviceOption = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute; auto: CUDA.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

NAMED: Mapping[str, Any] = {  # the options of which a request is made
    "market": OptionalMarket,
    "market_file": MarketFile,
    "source": Annotated[
        SourceName | None,
        typer.Option(help="Where prices come from; by default as the market says."),
    ],
    "prices": Annotated[
        Path | None, typer.Option(help="Prices for --source files: parquet, CSV, or a folder.")
    ],
    "index": Annotated[
        Path | None, typer.Option(help="The index for --source files, if not among the prices.")
    ],
    "universe": Annotated[
        Universe | None,
        typer.Option(
            help="Stocks of the market's list or of the source; by default the list, unless that "
            "lacks much."
        ),
    ],
    "seeds": Annotated[int | None, typer.Option(min=1, help="Seeds in the ensemble.")],
    "epochs": Annotated[int | None, typer.Option(min=1, help="Epochs of a training.")],
    "device": DeviceOption,
    "train_sessions": Annotated[
        int | None, typer.Option(min=64, help="Sessions to train on; by default the market's.")
    ],
    "warm_start": Annotated[
        bool, typer.Option("--warm-start", help="Start each training from the fold before.")
    ],
}
DEFAULTS: Mapping[str, object] = {"device": "auto", "warm_start": False}  # None for the others
OVERRIDES = ("seeds", "epochs", "train_sessions", "warm_start")  # of the experiment
EACH: dict[str, Any] = {"market": "each", "market_file": None}  # of a request that names no market


def of_a_market(*more: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that name a market, and `more` of `NAMED`: it
    takes them as its first, a request.
    """
    return with_request("market", "market_file", *more)


def with_request(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options of `NAMED`: it takes them as its first, a request, of the market
    `each` by default.

    They stand before its own options.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def asked(**given: Any) -> None:
            named = {name: given.pop(name) for name in names}
            command(request_of(**EACH | named), **given)

        told = [
            Parameter(name, KEYWORD, default=DEFAULTS.get(name), annotation=NAMED[name])
            for name in names
        ]
        own = [
            each.replace(kind=KEYWORD)
            for each in signature(command, eval_str=True).parameters.values()
        ][1:]
        asked.__signature__ = Signature([*told, *own])  # type: ignore[attr-defined]  # which Typer reads
        asked.__annotations__ = {each.name: each.annotation for each in (*told, *own)}
        return asked

    return with_options


def day_of(moment: datetime | None) -> date | None:
    """Return the day of an option."""
    return None if moment is None else moment.date()


def request_of(
    market: str | None, market_file: Path | None, device: str = "auto", **given: Any
) -> Any:
    """Return the order of these options of `NAMED`; a market's file may be
    given with the name that it has from it.
    """
    from dtml.errors import UsageError
    from flows.nightly.context import RunRequest

    if market_file is not None and market == market_file.stem:
        market = None  # its name comes from the file
    if market and market_file:
        raise UsageError(
            f"name one market: {market_file} is of the market {market_file.stem}, not {market}"
        )
    if not market and not market_file:
        raise UsageError(
            "name one market, such as `simulated`, or a file of your own with --market-file"
        )
    asked = {name: given.pop(name, None) for name in OVERRIDES}
    overrides = {name: value for name, value in asked.items() if value}
    found = market_file.absolute() if market_file else None  # a worker may be in another folder
    return RunRequest(
        market or str(market_file), found, overrides=overrides, device=device, **given
    )
