"""The options that several commands share: one name and one meaning each."""

from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from dtml.errors import UsageError
from dtml.markets.definition import Universe

KEYWORD = Parameter.KEYWORD_ONLY


def day(text: str) -> date:
    """Return the day that an option names."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a day such as 2026-11-20") from error


def day_option(words: str, *names: str) -> Any:
    """Return an option that takes a day."""
    return typer.Option(*names, parser=day, metavar="DAY", help=words)


def known_markets(incomplete: str) -> list[str]:
    """Return the package's markets whose names begin with this text, for the shell to complete."""
    from dtml.markets import market_names

    return [name for name in market_names() if name.startswith(incomplete)]


def known_sources(incomplete: str) -> list[str]:
    """Return the sources whose names begin with this text, for the shell to complete."""
    from dtml.markets.definition import SourceName, installed_feeds

    names = [*get_args(SourceName), *installed_feeds()]
    return [name for name in names if name.startswith(incomplete)]


OptionalMarket = Annotated[
    str | None,
    typer.Argument(
        help="A market that `dtml markets` lists.", metavar="[MARKET]", autocompletion=known_markets
    ),
]
STORED_MARKET = typer.Option(help="A market of the store.", autocompletion=known_markets)
MarketFile = Annotated[Path | None, typer.Option(help="A market of your own, as a TOML file.")]
MarketFiles = Annotated[
    list[Path] | None, typer.Option(help="A market of your own, as a TOML file; can be repeated.")
]
AsOf = Annotated[
    date | None,
    day_option("Last session used; by default the last closed session that has prices."),
]
DeviceOption = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where to compute; auto is a GPU if it takes less time."),
]
# Of `dtml doctor`, where auto means more than elsewhere.
TestedDevice = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where to run the self-test; auto tests the CPU and every GPU."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a page.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
FORMS: Mapping[str, Any] = {"csv": AsCsv, "json": AsJson, "markdown": AsMarkdown}

# The options from which a `RunRequest` is made. A command lists the names of those that it has.
NAMED: Mapping[str, Any] = {
    "market": OptionalMarket,
    "market_file": MarketFile,
    "source": Annotated[
        str | None,
        typer.Option(
            help="Price source: yahoo, files, simulated, the file of a feed of your own such as "
            "mine.py, or an installed feed; by default the market's own source.",
            autocompletion=known_sources,
        ),
    ],
    "prices": Annotated[
        Path | None,
        typer.Option(help="Prices for --source files: a Parquet or CSV file, or a folder."),
    ],
    "index": Annotated[
        Path | None, typer.Option(help="The index for --source files, if --prices lacks it.")
    ],
    "universe": Annotated[
        Universe | None,
        typer.Option(
            help="Use the stocks of the market's list or those of the source; by default the "
            "list, unless the source lacks many of them."
        ),
    ],
    "seeds": Annotated[int | None, typer.Option(min=1, help="Number of seeds in the ensemble.")],
    "epochs": Annotated[int | None, typer.Option(min=1, help="Number of epochs of each training.")],
    "device": DeviceOption,
    "train_sessions": Annotated[
        int | None,
        typer.Option(
            min=64, help="Sessions to train on, the last ones; by default as in the market's file."
        ),
    ],
    "warm_start": Annotated[
        bool,
        typer.Option(
            "--warm-start", help="Start each training from the weights of the previous fold."
        ),
    ],
}
DEFAULTS: Mapping[str, object] = {"device": "auto", "warm_start": False}  # None for the others
# Options that replace settings of the market's experiment.
OVERRIDES = ("seeds", "epochs", "train_sessions", "warm_start")
# A placeholder: commands that name their markets in another way replace it in the request.
NO_MARKET: dict[str, Any] = {"market": "each", "market_file": None}


def of_a_market(*more: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of a market, and `more` of NAMED.

    They become its first parameter, a request.
    """
    return with_request("market", "market_file", *more)


def with_request(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command these options of NAMED, before its own.

    They become its first parameter, a request, perhaps of `NO_MARKET`.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run_with_request(**options: Any) -> None:
            asked = {name: options.pop(name) for name in names}
            command(request_of(**NO_MARKET | asked), **options)

        own = list(signature(command, eval_str=True).parameters.values())[1:]
        named = [
            Parameter(name, KEYWORD, default=DEFAULTS.get(name), annotation=NAMED[name])
            for name in names
        ]
        return with_parameters(run_with_request, [*named, *own])

    return with_options


def with_parameters(
    command: Callable[..., None], parameters: Iterable[Parameter]
) -> Callable[..., None]:
    """Return a command with these parameters, from which Typer reads its options."""
    by_name = [parameter.replace(kind=KEYWORD) for parameter in parameters]
    command.__signature__ = Signature(by_name)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in by_name}
    return command


def refuse(options: Mapping[str, object], why: str) -> None:
    """Raise UsageError, which begins with `why`, for options that are neither None nor False."""
    given = [name for name, value in options.items() if value]
    if given:
        raise UsageError(f"{why}: leave out {' and '.join(given)}")


def request_of(
    market: str | None, market_file: Path | None, device: str = "auto", **options: Any
) -> Any:
    """Return the `RunRequest` of these options of NAMED.

    Raises UsageError without a market, for two different ones, and for an unknown source.
    """
    from dtml.sources import known_source
    from flows.markets.opened import RunRequest

    if options.get("source") is not None:
        options["source"] = known_source(options["source"])
    if market and market_file and market != market_file.stem:
        raise UsageError(
            f"{market} and {market_file}, which defines the market {market_file.stem}, are two "
            "markets: give one market"
        )
    if not market and not market_file:
        raise UsageError(
            "no market is named: give a market, such as `simulated`, or the file of a market of "
            "your own with --market-file"
        )
    experiment_options = {name: options.pop(name, None) for name in OVERRIDES}
    return RunRequest(
        market=str(market_file or market),  # a file is only named here: it has the market's name
        market_file=market_file and market_file.absolute(),  # a worker may be in another folder
        # An option that was not given is None or False: the market's own setting stays.
        overrides={name: value for name, value in experiment_options.items() if value},
        device=device,
        **options,
    )
