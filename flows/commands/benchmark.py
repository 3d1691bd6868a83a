"""The command that runs published experiments: those of DTML's paper, and Qlib's CSI 300."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import typer

from dtml.errors import UsageError
from dtml.pages import benchmark as benchmark_pages
from dtml.pages import ranking as ranking_pages
from dtml.pages.figures import PROTOCOL_WORDS
from dtml.pages.rendering import markdown, said
from dtml.pages.survivorship import of_study
from dtml.published import SETS, require_set, shortened
from dtml.ranking.outcomes import Leg
from flows.commands.answers import Answer, answering
from flows.commands.options import refuse, with_request
from flows.commands.ranking import (
    NetworksOption,
    as_document,
    network_names,
    rank_sets,
    refuse_unused_device,
)
from flows.console import ConsoleTable, Part, announce, bold
from flows.markets.opened import RunRequest, choose_as_of
from flows.nightly.context import open_context, open_stored_context
from flows.nightly.fetch import fetch_bars
from flows.settings import err, page_of
from flows.studies.csi300 import Csi300, Files
from flows.studies.published import Benchmark, PublishedExperiment
from flows.studies.study import run_study

commands = typer.Typer()
# The options that have no effect on a benchmark.
UNUSED = {
    "ranking": ("--members", "--epochs", "--grid", "--index", "--source"),
    "csi300": ("--epochs", "--grid", "--leg", "--source"),
}
UNUSED_BY_PUBLISHED = ("--members", "--with", "--leg")

HEADINGS = (  # of the columns that `result_cells` makes; in two lines they fit into 120 columns
    "model",
    "ACC, mean±sd\n(published)",
    "ACC ensemble\n[95 %]",
    "gain over rule\n[95 %]",
    "MCC, mean±sd\n(published)",
    "MCC ensemble\n[95 %]",
    "within-day\nAUC [95 %]",
    "same\ndirection",
)


@commands.command()
@with_request("source", "prices", "index", "device")
@answering("json", "markdown")
def benchmark(
    request: RunRequest,
    market: Annotated[
        Literal[
            "acl18",
            "kdd17",
            "ndx100",
            "csi300-paper",
            "ni225-paper",
            "ftse100-paper",
            "ranking",
            "csi300",
        ],
        typer.Argument(
            help="A data set of the published table, `ranking` to compare rankings of stocks, or "
            "`csi300` for Qlib's table."
        ),
    ],
    members: Annotated[
        Path | None,
        typer.Option(
            help="With `csi300`, the CSV file of constituents: symbol, since, until (included)."
        ),
    ] = None,
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
) -> Answer:
    """Run the published experiment with every model of its table.

    Run it again after an interruption to resume. `ranking` runs on every set whose file, such as
    sp500.parquet, is in the folder given with --prices. `csi300` needs --prices, --index and
    --members, and trains networks only if --with names them.

    Example: dtml benchmark acl18 --prices acl18.parquet --index GSPC.parquet
    """
    given = {
        "--members": members,
        "--epochs": epochs,
        "--grid": with_grid,
        "--with": networks,
        "--leg": leg != "next_close",
        "--index": request.index,
        "--source": request.source,
    }
    unused = {option: given[option] for option in UNUSED.get(market, UNUSED_BY_PUBLISHED)}
    refuse(unused, f"not every option has an effect on `dtml benchmark {market}`")
    require_index_with_prices(request)
    if market in UNUSED:
        refuse_unused_device(request, networks)
    if market == "ranking":
        return rank_sets(request, networks, seeds, leg)
    if market == "csi300":
        if request.prices is None or request.index is None or members is None:
            raise UsageError(
                "csi300 needs three files: run `dtml benchmark csi300 --prices FILE --index FILE "
                "--members FILE`"
            )
        files = Files(prices=request.prices, index=request.index, members=members)
        with err.status("ranking CSI 300"):
            found = run_study(Csi300(files, network_names(networks), seeds, request.device))
        published = ranking_pages.published_table(found)
        assert published is not None  # each result is stored with the published figures
        task = found.row["config"]["table"]
        about = said("beside_published", found.row, task["trained"], found.days)
        verdict = ranking_pages.verdict(found)
        parts = (
            bold(found.row["id"]),
            about,
            ConsoleTable(published.frame, "Qlib's table of CSI 300", prose=("model",)),
            verdict,
            of_study(found.row) or None,
            *task["differences"],
            f"page      {page_of('ranking', found.row)}",
        )
        table = markdown("published", about, published, task["differences"])
        return Answer(parts, as_document(found), (f"{table}\n\n{verdict}",))
    return run_published(replace(request, market=market), seeds, epochs, with_grid=with_grid)


def benchmark_parts(result: Benchmark) -> Iterator[Part]:
    """Yield the scores of each protocol, whether DTML beats the strongest rule, and notes.

    On the data beside the paper's, survivors, and how often the test span was read.
    """
    benchmark, scores = result.row, result.scores
    for protocol, rows in benchmark_pages.score_rows(scores).items():
        cells = benchmark_pages.brief_results(rows, is_for_print=False).cells
        # What is in brackets is on the second line of its cell.
        lines = pd.DataFrame(cells, columns=HEADINGS).replace(
            {" ± ": "±", r" \(": "\n(", r" \[": "\n["}, regex=True
        )
        title = f"{benchmark['market']}, {PROTOCOL_WORDS[protocol]}: {said('sample', rows[0])}"
        yield ConsoleTable(lines, title, prose=HEADINGS[:1])
    yield benchmark_pages.verdict(benchmark, scores)
    for name, words in (
        ("data", benchmark_pages.on_data(benchmark)),
        ("list", of_study(benchmark)),
        ("reading", said("on_reading", benchmark, result.number)),
    ):
        if words:
            yield f"{name:10}{words}"
    yield f"page      {page_of('benchmark', benchmark)}"


def run_published(
    request: RunRequest,
    seeds: int,
    epochs: int | None,
    *,
    with_grid: bool,
) -> Answer:
    """Run the published experiment on a set, or read the stored one, and return its scoreboard.

    Prices that the request names are stored first.
    """
    published_set = shortened(SETS[request.market], epochs)
    if request.source or request.prices:
        context = open_context(request)
        require_set(context.market, published_set)
        if request.prices:
            # The files of stocks often lack the index. A fetch would store the stocks without it.
            index = context.market.index.symbol
            first, last = published_set.validation  # a short span that is in every set
            outcome = context.source.fetch({index: first}, last).outcomes.iloc[0]
            if outcome["status"] != "ok":
                raise UsageError(
                    f"the files have no usable prices of the index {index} ({outcome['detail']}): "
                    "give a file that has them with --index FILE"
                )
        announce(context)
        with err.status(f"fetching {context.name}"):
            fetch_result = fetch_bars(context, choose_as_of(context, None))
        if not fetch_result.asked:
            err.print(
                f"note: the prices of {context.name} are stored already, so none were fetched"
            )
    context = open_stored_context(request)
    require_set(context.market, published_set)
    experiment = PublishedExperiment(context, published_set, tuple(range(seeds)), with_grid)
    result = run_study(experiment)
    document = {
        "benchmark": result.row,
        "scores": result.scores,
        "seeds": result.seeds,
        "number": result.number,
    }
    table = benchmark_pages.readme_table(result.row, result.scores)
    return Answer(benchmark_parts(result), document, (table,))


def require_index_with_prices(request: RunRequest) -> None:
    """Raise UsageError for an index without prices."""
    if request.index and not request.prices:
        raise UsageError("--index needs --prices: give both")
