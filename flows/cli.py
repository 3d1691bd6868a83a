"""The `dtml` command: one command a verb. What only reads bypasses Prefect."""

import gc
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.dashboard import dashboards
from flows.commands.database import store_commands
from flows.commands.explain import explanations
from flows.commands.options import (
    STORED_MARKET,
    AsJson,
    AsOf,
    DeviceOption,
    Epochs,
    IndexOption,
    MarketFile,
    Members,
    OptionalMarket,
    PricesOption,
    SourceOption,
    UniverseOption,
    day_of,
    order_of,
)
from flows.commands.questions import questions
from flows.commands.replay import replays
from flows.commands.report import reports
from flows.commands.serve import services
from flows.commands.status import statuses
from flows.commands.studies import studies
from flows.commands.translate import translations
from flows.settings import prepare_prefect, prepare_torch, set_up_logging

app = typer.Typer(
    name="dtml",
    help="Nightly stock movement predictions with DTML, scored honestly and kept in SQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(store_commands, name="db")
app.add_typer(translations, name="translate")
app.add_typer(studies)
app.add_typer(replays)
app.add_typer(services)
app.add_typer(statuses)
for each in (questions, reports, dashboards, explanations):
    app.add_typer(each)


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and every log line.")] = False,
) -> None:
    """Set up what all commands share."""
    os.environ["DTML_DEBUG"] = "1" if debug else ""
    os.environ["PYTHONSAFEPATH"] = "1"  # no process of ours imports what somebody left in the working folder
    set_up_logging(debug=debug)
    prepare_prefect(quiet=not debug)
    prepare_torch()


@app.command()
def nightly(
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    source: SourceOption = None,
    prices: PricesOption = None,
    index: IndexOption = None,
    universe: UniverseOption = None,
    as_of: AsOf = None,
    nights: Annotated[int, typer.Option(min=1, help="Run this many nights in order, the last one at --as-of.")] = 1,
    missed: Annotated[
        bool, typer.Option("--catch-up", help="Run every night missed since the market's first, up to --as-of.")
    ] = False,
    members: Members = None,
    epochs: Epochs = None,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Run a night: fetch, check, store, train if due, predict, score, report.

    Example: dtml nightly kdd17 --source files --prices kdd17.parquet --index GSPC.parquet --as-of 2016-06-30
    """
    from flows.commands.nightly_work import catch_up_market, run_nights

    order = order_of(market, market_file, source, prices, index, universe, members, epochs, device)
    if not missed:
        return run_nights(order, day_of(as_of), nights, as_json=as_json)
    if nights > 1:
        raise typer.BadParameter("--catch-up finds its nights by itself: leave out --nights")
    return catch_up_market(order, day_of(as_of), as_json=as_json)


@app.command()
def fetch(
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    source: SourceOption = None,
    prices: PricesOption = None,
    index: IndexOption = None,
    universe: UniverseOption = None,
    as_of: AsOf = None,
    again: Annotated[
        bool, typer.Option("--again", help="Ask for the whole stored history anew: finds what was restated long ago.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch what the store lacks, check it, and keep it.

    Example: dtml fetch ndx100
    """
    from flows.commands.nightly_work import fetch_market

    order = order_of(market, market_file, source, prices, index, universe)
    fetch_market(order, day_of(as_of), whole=again, as_json=as_json)


@app.command()
def train(
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    as_of: AsOf = None,
    members: Members = None,
    epochs: Epochs = None,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the market's model on what is stored; interrupted, it continues when called again.

    Example: dtml train simulated --members 3
    """
    from flows.commands.nightly_work import train_market

    order = order_of(market, market_file, members=members, epochs=epochs, device=device)
    train_market(order, day_of(as_of), as_json=as_json)


@app.command()
def predict(
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    as_of: AsOf = None,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Predict the next session from what is stored, with the latest model; nothing is fetched or trained.

    Example: dtml predict simulated
    """
    from flows.commands.nightly_work import predict_market

    order = order_of(market, market_file, device=device)
    predict_market(order, day_of(as_of), as_json=as_json)


@app.command()
def score(
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    as_of: AsOf = None,
    as_json: AsJson = False,
) -> None:
    """Score every past prediction whose outcome is stored, and print the scores beside the naive rules.

    Example: dtml score simulated
    """
    from flows.commands.nightly_work import score_predictions

    score_predictions(order_of(market, market_file), day_of(as_of), as_json=as_json)


@app.command()
def history(
    symbol: Annotated[str, typer.Argument(help="A stock, as the market spells it.")],
    market: Annotated[str | None, STORED_MARKET] = None,
    limit: Annotated[int, typer.Option(min=1, help="Newest rows shown.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Show what was predicted of a stock and what happened.

    Example: dtml history L01
    """
    from flows.commands.query import show_history

    show_history(symbol, market, limit, as_json=as_json)


@app.command()
def runs(market: OptionalMarket = None, as_json: AsJson = False) -> None:
    """List the trained models and what they were trained on.

    Example: dtml runs simulated
    """
    from flows.commands.query import show_runs

    show_runs(market, as_json=as_json)


@app.command()
def markets(as_json: AsJson = False) -> None:
    """List the markets this program knows.

    Example: dtml markets
    """
    from flows.commands.query import show_markets

    show_markets(as_json=as_json)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One SQL statement, - for standard input; nothing can be written.")],
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    parquet: Annotated[Path | None, typer.Option(help="Write the answer to this Parquet file.")] = None,
) -> None:
    """Ask the database; `dtml questions` has twenty examples.

    Example: dtml query "select * from latest_prediction order by probability desc limit 5"
    """
    from flows.commands.query import answer

    answer(sql, as_json=as_json, as_csv=as_csv, parquet=parquet)


def main() -> None:
    """Run a command; every failure is one line on standard error, 2 for the user's mistakes and 1 for the rest."""
    gc.set_threshold(20_000, 20, 20)  # imports make many objects and no garbage: a tenth of a short command
    from flows.failures import run_command

    sys.exit(run_command(app))
