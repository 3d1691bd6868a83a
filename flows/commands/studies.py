"""The commands over years of history: backtests and the audit."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Annotated

import pandas as pd
import typer

from dtml.errors import DtmlError, UsageError
from dtml.lookahead import audit as look_ahead
from dtml.pages import backtest as backtest_pages
from dtml.pages.figures import Table
from dtml.pages.rendering import said
from dtml.pages.survivorship import of_study
from flows.audit import SESSIONS, STOCKS, audit_market
from flows.commands.answers import Answer, answering
from flows.commands.benchmark import require_index_with_prices
from flows.commands.options import AsOf, day_option, of_a_market, refuse
from flows.commands.ranking import fetch_named
from flows.console import ConsoleTable, Part, rendered, score_tables, styled
from flows.markets.files import read_market
from flows.markets.opened import RunRequest, choose_as_of
from flows.nightly.context import open_stored_context
from flows.settings import err, page_of
from flows.studies.backtest import Plan, PricesKnown, Result, open_backtest
from flows.studies.study import run_study

commands = typer.Typer()

PricesKnownOption = Annotated[
    PricesKnown,
    typer.Option(
        help="Use prices as the store knows them now, "
        "or as it knew them before each session opened."
    ),
]
AttentionOption = Annotated[
    list[date] | None,
    day_option("Store the attention of this session; can be repeated.", "--attention-on"),
]


class LookAheadError(DtmlError):
    """Say that a prediction depends on what came after it was made."""


def cost(text: str) -> float:
    """Return the cost that an option names."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate <= 10_000:  # nan is in no range
        raise typer.BadParameter(f"{text!r} is not a number from 0 to 10,000")
    return rate


BasisPoints = Annotated[
    float | None,
    typer.Option(
        parser=cost,
        metavar="NUMBER",
        help="Basis points instead of the market's, from 0 to 10,000; borrow is per year.",
    ),
]
WORKERS = typer.Option(min=1, help="Processes that train folds in parallel.")
CLUSTER = typer.Option(help="Address of a Dask scheduler to run folds on, tcp://HOST:PORT.")

ASK_MORE = (
    'ask more  dtml query "select portfolio, annual_return, sharpe, max_drawdown '
    "from backtest_summary where backtest_id = '{id}'\" "
)


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
@answering("json", "markdown")
def backtest(
    request: RunRequest,
    first: Annotated[date, day_option("First session to predict.", "--from")],
    last: Annotated[date, day_option("Last session to predict.", "--to")],
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
) -> Answer:
    """Train, predict and trade through history as the nights would have done.

    Each fold trains, predicts and scores, and portfolios follow the predictions. Run it again after
    an interruption to resume.

    Example: dtml backtest simulated --from 2025-11-03 --to 2026-10-30
    """
    require_index_with_prices(request)
    if cluster is not None:
        refuse({"--workers": workers > 1}, "--cluster trains on other machines")
    if cluster is not None and not re.fullmatch(r"[a-z]+://\S+:\d+", cluster):
        raise UsageError(
            f"--cluster {cluster!r} is not a scheduler's address: give one such as "
            "tcp://scheduler:8786"
        )
    basis_points = {
        "commission": commission,
        "half_spread": half_spread,
        "purchase_tax": purchase_tax,
        "sale_tax": sale_tax,
        "borrow": borrow,
    }
    given = {name: rate for name, rate in basis_points.items() if rate is not None}
    costs = replace(read_market(request.market, request.market_file).trading.costs, **given)
    plan = Plan(
        first=first,
        last=last,
        retrain_every=retrain_every,
        top=top,
        max_weight=max_weight,
        costs=costs,
        prices_known=prices_known,
    )
    fetch_named(request, plan.first)
    result = run_study(
        open_backtest(request, plan, workers=workers, cluster=cluster, attention=attention or ())
    )
    document = {
        "row": result.row,
        "folds": result.folds,
        "scores": result.scores,
        "portfolios": result.portfolios,
    }
    markdown = backtest_pages.readme_lines(result.row, result.scores, result.portfolios)
    return Answer(backtest_parts(result), document, (markdown,))


def backtest_parts(result: Result) -> Iterator[Part]:
    """Yield what was run, scores and portfolios over all folds, and what the backtest shows."""
    row = result.row
    yield styled(
        "backtest.txt",
        row=row,
        folds=result.folds,
        survivorship=of_study(row),
        vintage=said("vintage", row),
    )
    scores = result.scores[result.scores["slice"] == "all"]
    yield from score_tables(scores.rename(columns={"days": "nights"}))
    columns = {**backtest_pages.BRIEF_PORTFOLIOS, "portfolio": "portfolio"}
    yield ConsoleTable(
        Table.of(result.portfolios, columns).frame,
        f"portfolios after costs; a year has {row['config']['sessions_a_year']} sessions",
        prose=("portfolio",),
    )
    yield said("settlements", backtest_pages.ordered(result.portfolios)) or None
    yield backtest_pages.verdict(row, result.scores, result.portfolios)
    yield f"page      {page_of('backtest', row)}"
    yield ASK_MORE.format(**row)


@commands.command()
@of_a_market()
@answering("json")
def audit(request: RunRequest, as_of: AsOf = None) -> Answer:
    """Look for look-ahead in a market's stored prices, training and model.

    The exit code is 1 if a check failed.

    Example: dtml audit kdd17
    """
    context = open_stored_context(request, read_only=True)
    day = choose_as_of(context, as_of)
    with err.status("auditing") as status:
        findings = audit_market(context, day, lambda step: status.update(f"auditing {step}"))
    # `passed` is None where a check could not be made.
    failed = ", ".join(findings.loc[findings["passed"].eq(False), "check"].unique())
    failure = LookAheadError(
        f"the audit of {context.name} as of {day} failed: the column `detail` of {failed} says "
        "why; trust no prediction or score until this is corrected"
    )
    document = {"as_of": day, "passed": not failed, "findings": findings}
    words = {True: "passed", False: "FAILED", None: "cannot tell"}
    verdicts = pd.Series([words[passed] for passed in findings["passed"]])
    rows = findings.assign(passed=verdicts, at=findings["at"].dt.date)
    parts = (
        ConsoleTable(rows, "what was checked", prose=("audited", "check", "detail")),
        rendered(
            "audit.txt",
            verdicts=verdicts,
            stocks=STOCKS,
            sessions=SESSIONS,
            checks=look_ahead,  # the module, for its constants
        ),
    )
    return Answer(parts, document, failure=failure if failed else None)
