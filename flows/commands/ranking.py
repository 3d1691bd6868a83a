"""The commands that rank a day's stocks: a walk through history, and orders for the next open."""

import csv
import math
from collections.abc import Iterator, Sequence
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import pandas as pd
import typer

from db.engine import open_reader, reading
from dtml.errors import UsageError
from dtml.markets.definition import NetworkName
from dtml.pages import ranking as page
from dtml.pages.figures import Table, counted, percent
from dtml.pages.rendering import said
from dtml.pages.survivorship import of_study
from dtml.prices.sessions import previous_session
from dtml.ranking.outcomes import Leg
from flows.commands.answers import Answer, answering
from flows.commands.options import day_option, of_a_market, refuse
from flows.console import ConsoleTable, Formats, Part, announce, bold
from flows.markets.files import named_in_command, read_market
from flows.markets.opened import RunRequest, choose_as_of
from flows.nightly.context import open_context, open_stored_context
from flows.nightly.fetch import fetch_bars
from flows.nightly.paper import next_orders
from flows.settings import err, page_of
from flows.studies.ranking import SETS, Plan, Walk, market_file_of
from flows.studies.study import run_study

commands = typer.Typer()

# An enum, because Typer accepts no list of a Literal.
Network = StrEnum("Network", list(get_args(NetworkName)))  # type: ignore[misc]
NetworksOption = Annotated[
    list[Network] | None,
    typer.Option(
        "--with", help="Also rank with this network, which trains for minutes. Can be repeated."
    ),
]


@commands.command()
@of_a_market("source", "prices", "index", "universe", "device")
@answering("json", "markdown")
def ranking(
    request: RunRequest,
    first: Annotated[date, day_option("First close after which stocks are ranked.", "--from")],
    last: Annotated[date, day_option("Last close after which they are ranked.", "--to")],
    leg: Annotated[
        Leg, typer.Option(help="The return by which models learn to rank stocks.")
    ] = "next_close",
    networks: NetworksOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of each network.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Processes that train in parallel.")] = 1,
) -> Answer:
    """Walk through history, ranking each day's stocks by models and one-line rules.

    Each model is retrained every 63 sessions on everything known by then. The days are scored once,
    and the scores are stored. --device is for the networks that --with names.

    Example: dtml ranking simulated --from 2025-11-03 --to 2026-10-30
    """
    if first > last:
        raise UsageError(f"--from {first} is after --to {last}: give --from the earlier day")
    refuse_unused_device(request, networks)
    plan = Plan(
        first=first,
        last=last,
        leg=leg,
        networks=network_names(networks),
        seeds=seeds,
    )
    found = _run_or_read_ranking(request, plan, workers)
    parts = {name: getattr(found, name) for name in ("differences", "portfolios")}
    markdown = (page.markdown_report(found),)
    return Answer(ranking_parts(found), as_document(found) | parts, markdown)


@commands.command()
@of_a_market()
@answering("csv", "json")
def orders(
    request: RunRequest,
    capital: Annotated[
        float, typer.Option(min=0.01, help="What the account is worth, in the market's currency.")
    ],
    positions: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file of your holdings, with the columns symbol and shares; by default the "
            "holdings of the paper account."
        ),
    ] = None,
) -> Answer:
    """Print the orders for the next open that move your holdings to the newest ranking.

    Prices are the last closes, and costs are those in the market's file. No order is sent.

    Example: dtml orders simulated --capital 100000
    """
    if not math.isfinite(capital):
        raise UsageError(f"--capital {capital} is not an amount: give a finite number")
    market = read_market(request.market, request.market_file)
    with reading(open_reader()) as conn:
        holdings = None if positions is None else _holdings(positions)
        found = next_orders(conn, market, capital, holdings)
    if found is None:
        raise UsageError(
            f"no night of {market.name} has chosen stocks to hold yet: run `dtml nightly "
            f"{named_in_command(market)}`, which chooses them if the store has at least a year of "
            "prices; if it has run, its log says why it chose none"
        )
    document = {
        "target": found.target,
        "cash": found.cash,
        "orders": found.rows,
        "reason": found.reason or None,
    }
    title = f"{market.name}: orders for the open of {found.target}, {market.currency}"
    start = (
        f"{positions} lists"
        if positions
        else "the paper account holds at its last close, scaled to --capital; with --positions "
        "FILE, from what the file lists, and from cash if it lists nothing"
    )
    money = "{:,.2f}".format
    formats: Formats = {"price": money, "value": money, "cost": money, "weight": percent}
    parts = (
        f"{title}\n{found.reason}" if found.reason else ConsoleTable(found.rows, title, formats),
        f"The orders start from what {start}.",
        f"{counted(len(found.rows), 'order')} worth {found.rows['value'].sum():,.0f}, "
        f"with expected costs of {found.rows['cost'].sum():,.2f}, leave {found.cash:,.2f} in cash. "
        "Nothing here is advice, and nothing promises profit.",
    )
    return Answer(parts, document, csv=found.rows.to_csv(index=False))


def _holdings(file: Path) -> "pd.Series[float]":
    """Return the shares that a CSV file lists, by symbol; raise UsageError for a faulty file."""
    holdings: dict[str, float] = {}
    place = str(file)
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            if not {"symbol", "shares"} <= set(reader.fieldnames or ()):
                raise ValueError(f"its columns are {reader.fieldnames or 'none'}")
            for number, row in enumerate(reader, start=1):
                place = f"{file}, row {number} below the heading"
                symbol = (row["symbol"] or "").strip()
                shares = float(row["shares"])
                has_more_fields = None in row
                if (
                    not symbol
                    or symbol in holdings
                    or has_more_fields
                    or not 0 <= shares < math.inf
                ):
                    raise ValueError(f"{symbol!r}, {shares:g}")
                holdings[symbol] = shares
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); check the path") from error
    except (TypeError, ValueError, csv.Error) as error:
        raise UsageError(
            f"{place}: not a holding ({error}); give a CSV file with the columns symbol and "
            "shares, which lists each symbol once, and its shares as a number of 0 or more without "
            "a unit or thousands separators"
        ) from error
    return pd.Series(holdings, dtype=float)


def rank_sets(
    asked: RunRequest, networks: Sequence[Network] | None, seeds: int, leg: Leg
) -> Answer:
    """Walk models and rules through every set of SETS in a folder; UsageError without one."""
    folder = asked.prices
    all_files = {name: (folder or Path()) / f"{name}.parquet" for name in SETS}
    files = {name: file for name, file in all_files.items() if file.exists()}
    if folder is None or not files:
        file_names = ", ".join(f"{name}.parquet" for name in SETS)
        raise UsageError(
            "there are no prices to rank: give --prices a folder that has at least one of the "
            f"files {file_names}"
        )

    rankings = {}
    for name, file in files.items():
        # The stocks are those of the price file, whatever stocks the market of the set lists.
        request = RunRequest(
            f"ranking-{name}",
            market_file_of(name),
            prices=file.absolute(),
            universe="source",
            device=asked.device,
        )
        plan = Plan(
            first=SETS[name].first,
            last=SETS[name].last,
            leg=leg,
            networks=network_names(networks),
            seeds=seeds,
        )
        rankings[name] = _run_or_read_ranking(request, plan)
    return Answer(
        parts=(part for found in rankings.values() for part in ranking_parts(found)),
        document={name: as_document(found) for name, found in rankings.items()},
        markdown=(
            f"**{name}**: {page.markdown_report(found)}\n" for name, found in rankings.items()
        ),
    )


def as_document(found: page.Ranking) -> dict[str, Any]:
    """Return a ranking for JSON, with the rule that is strongest beside the blend."""
    return {"ranking": found.row, "strongest_rule": found.strongest, "scores": found.scores}


def refuse_unused_device(request: RunRequest, networks: Sequence[Network] | None) -> None:
    """Raise UsageError for a device without a network to train on it."""
    if not networks:
        chosen = request.device != "auto"
        refuse({"--device": chosen}, "only networks, which --with names, are trained on a device")


def network_names(networks: Sequence[Network] | None) -> tuple[NetworkName, ...]:
    """Return the names of networks that an option gave."""
    return tuple(cast(NetworkName, each.value) for each in networks or ())


def fetch_named(request: RunRequest, first: date) -> None:
    """Store the prices that the user names, from the first that a training before `first` reads."""
    if request.source or request.prices:
        context = open_context(request)
        announce(context)
        # A fetch goes back from its day only as far as a training on that day reads, so there is
        # one up to the day before `first`, and one up to the newest day.
        day_before_first = previous_session(context.market.calendar, first)
        newest_day = choose_as_of(context, None)
        with err.status(f"fetching {context.name}"):
            fetch_bars(context, day_before_first)
            fetch_bars(context, newest_day)


def _run_or_read_ranking(request: RunRequest, plan: Plan, workers: int = 1) -> page.Ranking:
    """Store the prices that the request names, run a walk unless stored, return its ranking."""
    fetch_named(request, plan.first)
    walk = Walk(open_stored_context(request), plan, workers)
    return run_study(walk)


def ranking_parts(found: page.Ranking) -> Iterator[Part]:
    """Yield the scores of each predictor, the worst first, and those of the blend by leg.

    Then returns after costs, the verdict, survivorship, and the page's path.
    """
    yield bold(found.row["id"])
    yield page.sentence(found)
    title = "how well each day's stocks were ranked"
    yield ConsoleTable(page.order_table(found).frame, title, prose=("predictor",))
    yield said("legend")
    scores = found.scores
    is_headline = (scores["predictor"] == page.HEADLINE) & (scores["slice"] == "all")
    by_leg = Table.of(scores[is_headline], {"leg": "leg", "rank IC [95 %]": "rank_ic", "t": "t"})
    yield ConsoleTable(by_leg.frame, f"{page.HEADLINE}, by leg")
    title = f"the {page.HEADLINE} after costs, traded at the next open"
    yield ConsoleTable(page.net_table(found).frame, title, prose=("way to trade",))
    yield page.verdict(found)
    yield of_study(found.row) or None
    yield f"page      {page_of('ranking', found.row)}"
