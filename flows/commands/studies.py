"""The commands over years of history: published experiment, backtests, audit, explanations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Annotated, Any, Literal

import typer

from db.engine import open_store, reading
from db.rows import attention as stored_attention
from db.rows import markets
from dtml.attention.findings import words as explanation_words
from dtml.errors import DtmlError, UsageError
from dtml.markets.definition import Costs
from dtml.pages import backtest as backtest_pages
from dtml.pages import benchmark as benchmark_pages
from dtml.published import SETS, require_set, shortened
from dtml.ranking.outcomes import Leg
from flows.audit import audit_market
from flows.backtest.folds import Plan, PricesKnown, open_backtest
from flows.backtest.results import Result, run_backtest, stored_backtest
from flows.benchmark.results import Benchmark, stored_benchmark
from flows.benchmark.train import PublishedExperiment
from flows.commands.options import DAY, AsJson, AsOf, day_of, of_a_market, with_request
from flows.commands.printed_studies import print_audit, print_backtest, print_benchmark
from flows.commands.ranking import NetworksOption, fetch_named, rank_sets
from flows.console import announce, print_json
from flows.explain import Trial, explain_run, latest_run
from flows.markets.files import read_market
from flows.markets.opened import RunRequest, choose_as_of
from flows.nightly.context import open_context, open_stored_context
from flows.nightly.fetch import fetch_bars
from flows.service.prefect_server import require_server
from flows.settings import err, out

commands = typer.Typer()

PricesKnownOption = Annotated[
    PricesKnown,
    typer.Option(
        help="Use prices as the store knows them now, "
        "or as it knew them before each session opened."
    ),
]
AttentionOption = Annotated[
    list[datetime] | None,
    typer.Option(
        "--attention-on", formats=DAY, help="Store the attention of this session; can be repeated."
    ),
]


class LookAheadError(DtmlError):
    """Say that a prediction depends on what came after it was made."""


@commands.command()
@with_request("source", "prices", "index", "device")
def benchmark(
    request: RunRequest,
    market: Annotated[
        Literal["acl18", "kdd17", "ndx100", "ranking"],
        typer.Argument(
            help="A data set of the published table, or `ranking` to compare rankings of stocks."
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of each model.")] = 10,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Limit the number of epochs, for a quick look.")
    ] = None,
    with_grid: Annotated[
        bool, typer.Option("--grid", help="Choose DTML's configuration from its grid.")
    ] = False,
    networks: NetworksOption = None,
    leg: Annotated[
        Leg, typer.Option(help="With `ranking`, the return by which models rank stocks.")
    ] = "next_close",
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as in the README.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the published experiment with every model of its table.

    Run it again after an interruption to resume. `ranking` runs on every set whose file, such as
    sp500.parquet, is in the folder given with --prices.

    Example: dtml benchmark acl18 --prices acl18.parquet --index GSPC.parquet
    """
    if market == "ranking":
        return rank_sets(
            request.prices, networks, seeds, leg, as_markdown=as_markdown, as_json=as_json
        )
    request = replace(request, market=market)
    return run_published(
        request, seeds, epochs, with_grid=with_grid, as_json=as_json, as_markdown=as_markdown
    )


def run_published(
    request: RunRequest,
    seeds: int,
    epochs: int | None,
    *,
    with_grid: bool,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Run the published experiment on a set, or read the stored one, and print its scoreboard."""
    if request.market not in SETS:
        raise UsageError(
            f"{request.market} has no published experiment: choose one of {', '.join(SETS)}"
        )
    _require_matching_options(request, as_json=as_json, as_markdown=as_markdown)
    if request.source or request.prices:
        _fetch_set(request)
    result = _benchmark(request, tuple(range(seeds)), epochs, with_grid=with_grid)
    if as_json:
        document = {
            "benchmark": result.row,
            "scores": result.scores,
            "seeds": result.seeds,
            "number": result.number,
        }
        return print_json(document)
    if as_markdown:
        return print(benchmark_pages.readme_table(result.row, result.scores))  # noqa: T201 - Markdown is for a file
    print_benchmark(result.row, result.scores, result.number)
    out.print(f"page      {result.page}", markup=False, soft_wrap=True)
    return None


def _benchmark(
    request: RunRequest, seeds: tuple[int, ...], epochs: int | None, *, with_grid: bool
) -> Benchmark:
    """Run a benchmark as a flow; where it is stored already, only read it."""
    published_set = shortened(SETS[request.market], epochs)
    example = f"dtml benchmark {published_set.market} --prices FILE --index FILE"
    _require_stored(request, f"give its files, as in `{example}`")
    context = open_stored_context(request)
    require_set(context.market, published_set)  # raises UsageError for other stocks
    experiment = PublishedExperiment(context, published_set, seeds, with_grid)
    experiment.require_test_span()  # raises DtmlError where the prices end too early
    stored = stored_benchmark(context.engine, experiment.id)
    if stored is not None:
        err.print(f"stored on {stored.row['test_read_at']:%Y-%m-%d}: nothing was trained")
        return stored
    require_server()  # before Prefect is imported
    from flows.benchmark.flow import benchmark as run_benchmark

    return run_benchmark(replace(request, attended=True), seeds, epochs, with_grid)


def _require_stored(request: RunRequest, advice: str) -> None:
    market = read_market(request.market, request.market_file).name
    with reading(open_store()) as conn:
        if markets.constituents(conn, market).empty:
            raise UsageError(f"nothing is stored for {market}: {advice}")


def _fetch_set(request: RunRequest) -> None:
    """Store the prices of a published set.

    Raises UsageError, before anything is stored, for prices that are not those of the set.
    """
    context = open_context(request)
    published_set = SETS[request.market]
    require_set(context.market, published_set)
    if request.prices:
        # The files of stocks often lack the index. A fetch would store the stocks without it.
        index = context.market.index.symbol
        first, last = published_set.validation  # a short span that is in every set
        outcome = context.source.fetch({index: first}, last).outcomes.iloc[0]
        if outcome["status"] != "ok":
            raise UsageError(f"the index {index}: {outcome['detail']}: give --index FILE")
    announce(context)
    with err.status(f"fetching {context.name}"):
        fetch_result = fetch_bars(context, choose_as_of(context, None))
    if not fetch_result.asked:
        err.print(f"note: {context.name} is stored already, so its files were not read")


def _require_matching_options(request: RunRequest, *, as_json: bool, as_markdown: bool) -> None:
    if as_json and as_markdown:
        raise UsageError("--json and --markdown cannot be combined: choose one")
    if request.index and not request.prices:
        raise UsageError("--index needs --prices: give both")


BasisPoints = Annotated[
    float | None, typer.Option(help="Basis points instead of the market's; borrow is per year.")
]
WORKERS = typer.Option(min=1, help="Processes that train folds in parallel.")
CLUSTER = typer.Option(help="Address of a Dask scheduler to run folds on, tcp://HOST:PORT.")


@commands.command()
@of_a_market(
    "source",
    "prices",
    "index",
    "universe",
    "train_sessions",
    "warm_start",
    "seeds",
    "epochs",
    "device",
)
def backtest(
    request: RunRequest,
    first: Annotated[
        datetime, typer.Option("--from", formats=DAY, help="First session to predict.")
    ],
    last: Annotated[datetime, typer.Option("--to", formats=DAY, help="Last session to predict.")],
    retrain_every: Annotated[
        int, typer.Option(min=1, help="Number of sessions between trainings.")
    ] = 63,
    top: Annotated[
        int, typer.Option(min=1, help="Number of stocks held long, and as many short.")
    ] = 10,
    max_weight: Annotated[float, typer.Option(help="Largest weight of one stock, up to 1.")] = 0.1,
    commission: BasisPoints = None,
    half_spread: BasisPoints = None,
    purchase_tax: BasisPoints = None,
    sale_tax: BasisPoints = None,
    borrow: BasisPoints = None,
    prices_known: PricesKnownOption = "now",
    attention: AttentionOption = None,
    workers: Annotated[int, WORKERS] = 1,
    cluster: Annotated[str | None, CLUSTER] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables for a README.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train, predict and trade through history as the nights would have done.

    Each fold trains, predicts and scores, and portfolios follow the predictions. Run it again after
    an interruption to resume.

    Example: dtml backtest simulated --from 2025-11-03 --to 2026-10-30
    """
    _require_matching_options(request, as_json=as_json, as_markdown=as_markdown)
    _require_place(request, workers, cluster)
    costs = _costs(
        request,
        commission=commission,
        half_spread=half_spread,
        purchase_tax=purchase_tax,
        sale_tax=sale_tax,
        borrow=borrow,
    )
    plan = Plan(
        first=first.date(),
        last=last.date(),
        retrain_every=retrain_every,
        top=top,
        max_weight=max_weight,
        costs=costs,
        prices_known=prices_known,
    )
    attention_days = tuple(day.date() for day in attention or ())
    result = _backtest(request, plan, attention_days, workers, cluster)
    _print_result(result, as_json=as_json, as_markdown=as_markdown)


def _costs(request: RunRequest, **basis_points: float | None) -> Costs:
    """Return the market's costs of trading, some replaced by the rates that the user gives."""
    costs = read_market(request.market, request.market_file).trading.costs
    replaced = {name: rate for name, rate in basis_points.items() if rate is not None}
    return replace(costs, **replaced)


def _print_result(result: Result, *, as_json: bool, as_markdown: bool) -> None:
    if as_json:
        document = {
            "row": result.row,
            "folds": result.folds,
            "scores": result.scores,
            "portfolios": result.portfolios,
        }
        print_json(document)
    elif as_markdown:
        print(backtest_pages.readme_lines(result.row, result.scores, result.portfolios))  # noqa: T201 - Markdown is for a file
    else:
        print_backtest(result)


def _require_place(request: RunRequest, workers: int, cluster: str | None) -> None:
    """Raise UsageError for workers, a cluster or a warm start that do not go together."""
    warm_start = (request.overrides or {}).get("warm_start", False)
    if workers > 1 and cluster is not None:
        raise UsageError("--workers uses this machine, --cluster uses others: choose one")
    if cluster is not None and not re.fullmatch(r"[a-z]+://\S+:\d+", cluster):
        raise UsageError(
            f"--cluster {cluster!r} is not a scheduler's address: give one such as "
            "tcp://scheduler:8786"
        )
    if warm_start and (workers > 1 or cluster is not None):
        raise UsageError(
            "--warm-start trains each fold from the previous one: leave out --workers and --cluster"
        )


def _backtest(
    request: RunRequest, plan: Plan, attention_on: Sequence[date], workers: int, cluster: str | None
) -> Result:
    """Run a backtest as a flow; one that is stored already is only completed, without training."""
    fetch_named(request, plan.first)
    _require_stored(
        request,
        "say where its prices come from: --source yahoo, --source simulated or --prices FILE",
    )
    backtest = open_backtest(request, plan)
    if stored_backtest(backtest.context.engine, backtest.id) is not None:
        err.print(f"{backtest.id} is already stored, so nothing is trained or added")
        return run_backtest(backtest, attention_on=attention_on)
    require_server()  # before Prefect is imported
    from flows.backtest.flow import backtest_flow

    request = replace(request, attended=True)
    return backtest_flow(request, plan, attention_on, workers=workers, cluster=cluster)


@commands.command()
@of_a_market()
def audit(request: RunRequest, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Look for look-ahead in a market's stored prices, training and model.

    The exit code is 1 if the audit found look-ahead or a check was inconclusive.

    Example: dtml audit kdd17
    """
    context = open_stored_context(request)
    day = choose_as_of(context, day_of(as_of))
    with err.status("auditing") as status:
        result = audit_market(context, day, lambda step: status.update(f"auditing {step}"))
    findings = result.findings
    if as_json:
        print_json(
            {"as_of": day, "passed": result.passed, "findings": findings, "leaks": result.proof}
        )
    else:
        print_audit(result)
    if result.alarm:
        raise LookAheadError(f"the audit of {context.name} as of {day} {result.alarm}")
    if not result.passed:
        inconclusive = ", ".join(findings.loc[~findings["has_power"], "check"].unique())
        raise DtmlError(
            f"the audit of {context.name} as of {day} found no look-ahead, but these checks were "
            f"inconclusive: {inconclusive}; fetch a longer history, or audit as of another day"
        )


@commands.command()
@of_a_market()
def explain(
    request: RunRequest,
    as_of: AsOf = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Networks trained on true labels; 4 by default.")
    ] = None,
    shuffles: Annotated[
        int | None, typer.Option(min=1, help="Networks trained on shuffled labels; 8 by default.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of each training; 12 by default.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Repeat the test even if it is stored.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Test whether the latest model's attention explains anything.

    Its attention is compared with that of models trained on shuffled labels, and with the stocks
    that actually change its predictions.

    Example: dtml explain simulated
    """
    options = {"seeds": seeds, "shuffles": shuffles, "epochs": epochs}
    given = {name: value for name, value in options.items() if value is not None}
    context = open_stored_context(request)
    trial = Trial(**given)
    run = latest_run(context, day_of(as_of))
    with reading(context.engine) as conn:
        row = stored_attention.explanation(conn, run["id"])
    if row is not None and not again:
        _require_same_trial(row, given)
        err.print(
            f"tested on {row['made_at']:%Y-%m-%d}, so nothing is trained; --again repeats the test"
        )
    else:
        with err.status(f"testing {run['id']}") as status:
            row = explain_run(
                context, run, trial, lambda step: status.update(f"testing {run['id']}: {step}")
            )
    if as_json:
        return print_json(row)
    out.print(f"[bold]{row['run_id']}[/bold], trained on sessions up to {row['as_of']}")
    return out.print(explanation_words(row))


def _require_same_trial(row: Mapping[str, Any], given: Mapping[str, int]) -> None:
    """Raise UsageError where a model was tested with other numbers than the user gives."""
    other_numbers = [f"{row[name]} {name}" for name, value in given.items() if row[name] != value]
    if other_numbers:
        numbers = " and ".join(other_numbers)
        raise UsageError(
            f"{row['run_id']} was tested with {numbers}: add --again to repeat the test"
        )
