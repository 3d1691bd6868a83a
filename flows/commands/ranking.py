"""The commands that rank a day's stocks: a walk of models and rules through history, and orders for
the next open.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from enum import StrEnum
from math import inf
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
from flows.commands.options import DAY, AsJson, of_a_market
from flows.console import announce, print_frame, print_json
from flows.markets.files import read_market
from flows.markets.opened import RunRequest, choose_as_of
from flows.nightly.context import open_context, open_stored_context
from flows.nightly.fetch import fetch_bars
from flows.nightly.paper import Orders, next_orders
from flows.ranking.tear_sheet import stored_ranking
from flows.ranking.walk import SETS, Plan, Walk, market_file_of
from flows.service.studies import as_study
from flows.settings import err, out, page_of, print_lines, print_text

commands = typer.Typer()

ORDER_COLUMNS = ("symbol", "side", "shares", "value", "price", "cost", "weight")

# An enum, because Typer accepts no list of a Literal.
Network = StrEnum("Network", list(get_args(NetworkName)))  # type: ignore[misc]
NetworksOption = Annotated[
    list[Network] | None,
    typer.Option(
        "--with", help="Also rank with this network, which trains for minutes. Can be repeated."
    ),
]


@commands.command()
@of_a_market("source", "prices", "index", "universe")
def ranking(
    request: RunRequest,
    first: Annotated[
        datetime,
        typer.Option("--from", formats=DAY, help="First close after which stocks are ranked."),
    ],
    last: Annotated[
        datetime, typer.Option("--to", formats=DAY, help="Last close after which they are ranked.")
    ],
    leg: Annotated[
        Leg, typer.Option(help="The return by which models learn to rank stocks.")
    ] = "next_close",
    networks: NetworksOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of each network.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Processes that train in parallel.")] = 1,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table for a README.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Walk through history, ranking each day's stocks by models and one-line rules.

    Each model is retrained every 63 sessions on everything known by then. The days are scored once,
    and the scores are stored.

    Example: dtml ranking simulated --from 2025-11-03 --to 2026-10-30
    """
    if first > last:
        raise UsageError(
            f"--from {first:%Y-%m-%d} is after --to {last:%Y-%m-%d}: give --from the earlier day"
        )
    plan = Plan(
        first=first.date(),
        last=last.date(),
        leg=leg,
        networks=network_names(networks),
        seeds=seeds,
    )
    found = _run_or_read_ranking(request, plan, workers)
    if as_json:
        parts = {name: getattr(found, name) for name in ("differences", "portfolios")}
        return print_json(as_document(found) | parts)
    if as_markdown:
        return print_text(page.markdown_report(found))
    print_ranking(found)
    return None


@commands.command()
@of_a_market()
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
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
) -> None:
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
        named = f"--market-file {request.market_file}" if request.market_file else market.name
        raise UsageError(
            f"no night of {market.name} has chosen stocks to hold yet: run `dtml nightly {named}`, "
            "which chooses them if the store has at least a year of prices; if it has run, its log "
            "says why it chose none"
        )
    if as_json:
        document = {"target": found.target, "cash": found.cash, "orders": found.rows}
        return print_json(document | {"reason": found.reason or None})
    if as_csv:
        return print_lines([found.rows.to_csv(index=False)])
    title = f"{market.name}: orders for the open of {found.target}, {market.currency}"
    print_orders(found, title)
    start = (
        "the paper account holds at its last close, scaled to --capital; with --positions FILE, "
        "from what the file lists, and from cash if it lists nothing"
    )
    if positions is not None:
        start = f"{positions} lists"
    out.print(f"The orders start from what {start}.", markup=False, soft_wrap=True)
    traded = found.rows["value"].sum()
    cost = found.rows["cost"].sum()
    out.print(
        f"{counted(len(found.rows), 'order')} worth {traded:,.0f}, "
        f"with expected costs of {cost:,.2f}, leave {found.cash:,.2f} in cash. "
        "Nothing here is advice, and nothing promises profit.",
        soft_wrap=True,
    )
    return None


def print_orders(orders_found: Orders, title: str) -> None:
    """Print the orders for the next open as a table under a title, or why there are none."""
    if orders_found.reason:
        out.print(f"{title}\n{orders_found.reason}", markup=False, soft_wrap=True)
        return
    money = "{:,.2f}".format
    print_frame(
        orders_found.rows,
        title,
        importance=ORDER_COLUMNS,
        formats={"price": money, "value": money, "cost": money, "weight": percent},
    )


def _holdings(file: Path) -> "pd.Series[float]":
    """Return the shares that a CSV file lists, by symbol.

    Raises UsageError for a file that cannot be read as CSV or lacks the columns symbol and shares,
    for a first row that is longer than the heading, for a missing or repeated symbol, and for
    shares that are not a number of 0 or more.
    """
    try:
        # Without its defaults, pandas would read the symbol NA as a missing value.
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({error.strerror or error}): name a CSV file that exists and "
            "that you may read, with the columns symbol and shares"
        ) from error
    except ValueError as error:  # pandas raises it for what is not text, or not a table
        raise UsageError(
            f"{file} is not a CSV file ({error}): give one with the columns symbol and shares"
        ) from error
    if not isinstance(frame.index, pd.RangeIndex):  # pandas took the first field for a label
        raise UsageError(
            f"{file}: the first row below the heading has more fields than the heading: write "
            "shares without thousands separators, and no comma at the end of a row"
        )
    for column in ("symbol", "shares"):
        if column not in frame:
            names = ", ".join(str(name) for name in frame.columns)
            raise UsageError(
                f"{file} has no column {column}, only {names}: name its columns symbol and shares"
            )
    symbols = frame["symbol"].str.strip()
    listed: set[str] = set()
    for row, (symbol, text) in enumerate(zip(symbols, frame["shares"], strict=True), start=1):
        where = f"{file}, row {row} below the heading"
        if not symbol:
            raise UsageError(f"{where}: the symbol is missing: write it, or delete the row")
        if symbol in listed:
            raise UsageError(
                f"{where}: {symbol} is already listed above: list each symbol once, with all its "
                "shares"
            )
        if not _is_amount(text):
            raise UsageError(
                f"{where}: the shares of {symbol} are {text!r}: write a number of 0 or more, "
                "without units or thousands separators"
            )
        listed.add(symbol)
    return frame.set_index(symbols)["shares"].astype(float)


def _is_amount(text: str) -> bool:
    try:
        return 0 <= float(text) < inf
    except ValueError:
        return False


def rank_sets(
    folder: Path | None,
    networks: Sequence[Network] | None,
    seeds: int,
    leg: Leg,
    *,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Walk models and rules through every set of SETS whose price file is in a folder.

    Prints the tables of each set when its walk ends, as Markdown with `as_markdown`. With `as_json`
    one document of all sets is printed at the end. Raises UsageError where the folder has no such
    file, or no folder is given.
    """
    all_files = {} if folder is None else {name: folder / f"{name}.parquet" for name in SETS}
    files = {name: file for name, file in all_files.items() if file.exists()}
    if not files:
        file_names = ", ".join(f"{name}.parquet" for name in SETS)
        problem = "no folder is named" if folder is None else f"{folder} has no prices to rank"
        raise UsageError(
            f"{problem}: give --prices a folder that has at least one of the files {file_names}"
        )
    rankings: dict[str, page.Ranking] = {}
    for name, file in files.items():
        # The stocks are those of the price file, whatever stocks the market of the set lists.
        request = RunRequest(
            f"ranking-{name}", market_file_of(name), prices=file.absolute(), universe="source"
        )
        plan = Plan(
            first=SETS[name].first,
            last=SETS[name].last,
            leg=leg,
            networks=network_names(networks),
            seeds=seeds,
        )
        found = _run_or_read_ranking(request, plan)
        rankings[name] = found
        if as_markdown:
            print_text(f"**{name}**: {page.markdown_report(found)}\n")
        elif not as_json:
            print_ranking(found)
    if as_json:
        print_json({name: as_document(each) for name, each in rankings.items()})


def as_document(found: page.Ranking) -> dict[str, Any]:
    """Return a ranking for JSON, with the rule that is strongest beside the blend."""
    return {"ranking": found.row, "strongest_rule": found.strongest, "scores": found.scores}


def network_names(networks: Sequence[Network] | None) -> tuple[NetworkName, ...]:
    """Return the names of networks that an option gave."""
    return tuple(cast(NetworkName, each.value) for each in networks or ())


def fetch_named(request: RunRequest, first: date) -> None:
    """Store the prices that the user names with --source or --prices; without these, do nothing.

    Bars are stored from the earliest that a training before the session `first` reads, up to the
    newest.
    """
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
    """Store the prices that the request names, run a walk, and return its ranking.

    If the ranking of these prices and this plan is stored already, it is read, and no walk is run.
    """
    fetch_named(request, plan.first)
    walk = Walk(open_stored_context(request), plan)
    if (stored := stored_ranking(walk.context.engine, walk.id)) is not None:
        err.print(f"stored on {stored.row['read_at']:%Y-%m-%d}: nothing was trained")
        return stored
    from flows.ranking.flow import ranking as run_walk

    run = as_study(run_walk, "{request.market} {plan.first} .. {plan.last}")
    return run(replace(request, attended=True), plan, workers)


def print_ranking(found: page.Ranking) -> None:
    """Print a walk: the scores of each predictor, the worst first, and those of the blend by leg.

    A leg is the period whose return the ranking predicts, such as from one close to the next. Then
    come the returns of the blend after costs, the verdict against the strongest rule, what is known
    of survivorship in the list of stocks, and the path of the page.
    """
    out.print(f"[bold]{found.row['id']}[/bold]\n{page.sentence(found)}")
    print_frame(
        page.order_table(found).frame,
        "how well each day's stocks were ranked",
        importance=list(page.ORDER)[:4],
        prose=("predictor",),
    )
    out.print(said("legend"), markup=False, soft_wrap=True)
    scores = found.scores
    is_headline = (scores["predictor"] == page.HEADLINE) & (scores["slice"] == "all")
    by_leg = Table.of(scores[is_headline], {"leg": "leg", "rank IC [95 %]": "rank_ic", "t": "t"})
    print_frame(
        by_leg.frame,
        f"{page.HEADLINE}, by leg",
        importance=("leg",),
    )
    print_frame(
        page.net_table(found).frame,
        f"the {page.HEADLINE} after costs, traded at the next open",
        importance=("way to trade", "net a year", "over equal parts [95 %]", "Sharpe [95 %]"),
        prose=("way to trade",),
    )
    out.print(f"{page.verdict(found)} {page.net_sentence(found)}", markup=False, soft_wrap=True)
    if of_study(found.row):
        out.print(of_study(found.row), markup=False, soft_wrap=True)
    out.print(f"page      {page_of('ranking', found.row)}", markup=False, soft_wrap=True)
