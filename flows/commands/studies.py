"""Commands over years of history: the published experiment, backtests, the look-ahead audit."""

from datetime import datetime
from typing import Annotated, Literal

import typer

from flows.commands.options import (
    DAY,
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

studies = typer.Typer()


@studies.command()
def benchmark(
    market: Annotated[Literal["acl18", "kdd17", "ndx100"], typer.Argument(help="A set of the published table.")],
    source: SourceOption = None,
    prices: PricesOption = None,
    index: IndexOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each model.")] = 10,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most so many epochs each: for a quick look.")] = None,
    with_grid: Annotated[bool, typer.Option("--grid", help="Choose DTML's configuration from its grid.")] = False,
    device: DeviceOption = "auto",
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the README's table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the published experiment with every model of its table; interrupted, it continues when called again.

    Example: dtml benchmark acl18 --prices acl18.parquet --index GSPC.parquet
    """
    from flows.commands.studies_work import run_paper

    order = order_of(market, None, source, prices, index, device=device)
    run_paper(order, seeds, epochs, with_grid=with_grid, as_json=as_json, as_markdown=as_markdown)


@studies.command()
def backtest(
    first: Annotated[datetime, typer.Option("--from", formats=DAY, help="First session predicted.")],
    last: Annotated[datetime, typer.Option("--to", formats=DAY, help="Last session predicted.")],
    market: OptionalMarket = None,
    market_file: MarketFile = None,
    source: SourceOption = None,
    prices: PricesOption = None,
    index: IndexOption = None,
    universe: UniverseOption = None,
    retrain_every: Annotated[int, typer.Option(min=1, help="Sessions from one training to the next.")] = 63,
    train_sessions: Annotated[
        int | None, typer.Option(min=64, help="Train on the last so many; by default what the market says, or all.")
    ] = None,
    warm_start: Annotated[bool, typer.Option("--warm-start", help="Go on from the fold before's weights.")] = False,
    members: Members = None,
    epochs: Epochs = None,
    top: Annotated[int, typer.Option(min=1, help="Stocks a portfolio is long, and short.")] = 10,
    max_weight: Annotated[float, typer.Option(help="Largest share of one stock, up to 1.")] = 0.1,
    commission: Annotated[float, typer.Option(help="Basis points of what is traded.")] = 1.0,
    spread: Annotated[float, typer.Option(help="Half the spread, basis points of what is traded.")] = 2.0,
    borrow: Annotated[float, typer.Option(help="Basis points a year of what is short.")] = 50.0,
    attention: Annotated[
        list[datetime] | None, typer.Option(formats=DAY, help="Keep this session's attention; may be repeated.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that train folds side by side.")] = 1,
    cluster: Annotated[str | None, typer.Option(help="A Dask scheduler to run folds on, tcp://HOST:PORT.")] = None,
    device: DeviceOption = "auto",
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for a README.")] = False,
    as_json: AsJson = False,
) -> None:
    """Walk forward through history as the nights would have: train, predict, score, and follow the predictions.

    Example: dtml backtest kdd17 --prices kdd17.parquet --index GSPC.parquet --from 2015-01-02 --to 2016-12-29
    """
    from dtml.backtest.portfolio import Costs
    from flows.backtest.folds import Plan
    from flows.commands.studies_work import Where, backtest_market

    order = order_of(
        market,
        market_file,
        source,
        prices,
        index,
        universe,
        members,
        epochs,
        device,
        train_sessions,
        warm_start=warm_start,
    )
    kept = tuple(day.date() for day in attention or ())
    costs = Costs(commission, spread, borrow)
    plan = Plan(first.date(), last.date(), retrain_every, top, max_weight, costs)
    backtest_market(order, plan, kept, Where(workers, cluster), as_json=as_json, as_markdown=as_markdown)


@studies.command()
def audit(
    market: OptionalMarket = None, market_file: MarketFile = None, as_of: AsOf = None, as_json: AsJson = False
) -> None:
    """Look for look-ahead in what is stored of a market, its training and its model; exit code 1 when there is any.

    Example: dtml audit kdd17
    """
    from flows.commands.studies_work import audit_stored

    audit_stored(order_of(market, market_file), day_of(as_of), as_json=as_json)
