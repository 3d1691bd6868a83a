"""The command that walks ranking models and one-line rules through a market's history."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import pandas as pd
import typer

from dtml.errors import UsageError
from dtml.evaluation.metrics import told_apart
from dtml.markets.definition import NetworkName
from dtml.pages.figures import figure, markdown, records, signed_percent, with_interval
from dtml.prices.sessions import previous_session
from dtml.ranking.outcomes import Leg
from flows.benchmark.ranking import SETS, Plan, Ranking, Walk, market_file_of, stored_ranking
from flows.commands.options import DAY, AsJson, of_a_market
from flows.console import announce, print_frame, print_json
from flows.market_files import read_market
from flows.nightly.context import RunRequest, choose_as_of, open_context, open_stored_context
from flows.nightly.fetch import fetch_bars
from flows.service.prefect_server import require_server
from flows.settings import err, out

commands = typer.Typer()

# Typer takes no list of a Literal
Network = StrEnum("Network", list(get_args(NetworkName)))  # type: ignore[misc]
NetworksOption = Annotated[
    list[Network] | None,
    typer.Option("--with", help="A network to ask for the order too; it trains for minutes. May be repeated."),
]
SNAPSHOT = (
    "Survivorship: the list of stocks is a snapshot: those that left before are missing, which flatters slow features "
    "such as momentum and size most."
)
HEADLINE = "blend"  # settled beforehand: the best of the models on the days that are scored is partly luck
COLUMNS = (
    *("predictor", "rank IC [95 %]", "t", "over the best rule", "over the ridge", "AUC", "ACC"),
    "decile spread a day",
)


@commands.command()
@of_a_market("source", "prices", "index", "universe")
def ranking(
    request: RunRequest,
    first: Annotated[datetime, typer.Option("--from", formats=DAY, help="First close after which stocks are ordered.")],
    last: Annotated[datetime, typer.Option("--to", formats=DAY, help="Last such close.")],
    leg: Annotated[Leg, typer.Option(help="The return that models learn to order.")] = "next_close",
    networks: NetworksOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each network.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Processes that train side by side.")] = 1,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table for a README.")] = False,
    as_json: AsJson = False,
) -> None:
    """Order the stocks of each day by models and one-line rules, walked forward.

    Each model trains again every 63 sessions on all that was known. The days are scored once and stored.

    Example: dtml ranking simulated --from 2025-11-03 --to 2026-10-30
    """
    if first > last:
        raise UsageError(f"--from {first:%Y-%m-%d} lies after --to {last:%Y-%m-%d}")
    found = _ranking(request, Plan(first.date(), last.date(), leg, _names(networks), seeds), workers)
    if as_json:
        return print_json({"ranking": found.row, "scores": found.scores, "differences": found.differences})
    if as_markdown:
        return print(_table(found))  # noqa: T201 - Markdown is for a file
    print_ranking(found)
    if read_market(request.market, request.market_file).is_snapshot:
        out.print(SNAPSHOT, markup=False, soft_wrap=True)
    return None


def rank_sets(
    folder: Path | None, networks: Sequence[Network] | None, seeds: int, leg: Leg, *, as_markdown: bool, as_json: bool
) -> None:
    """Walk models and rules through every set whose prices are in a folder, and print a table of each."""
    files = {} if folder is None else {name: folder / f"{name}.parquet" for name in SETS}
    files = {name: file for name, file in files.items() if file.exists()}
    if not files:
        raise UsageError(
            f"name a folder with --prices that holds one of {', '.join(f'{name}.parquet' for name in SETS)}"
        )
    answers = {}
    for name, file in files.items():
        request = RunRequest(f"ranking-{name}", market_file_of(name), prices=file.absolute(), universe="source")
        found = answers[name] = _ranking(request, SETS[name].plan(_names(networks), seeds, leg))
        if as_markdown:
            print(f"**{name}**: {sentence(found)}\n\n{_table(found)}\n\n{verdict(found)}\n")  # noqa: T201
        elif not as_json:
            print_ranking(found)
    if as_json:
        print_json({name: {"ranking": each.row, "scores": each.scores} for name, each in answers.items()})


def _names(networks: Sequence[Network] | None) -> tuple[NetworkName, ...]:
    return tuple(cast(NetworkName, each.value) for each in networks or ())


def _table(found: Ranking) -> str:
    return "\n".join([markdown(COLUMNS), markdown("---" for _ in COLUMNS), *map(markdown, _cells(found))])


def fetch_named(request: RunRequest, first: date) -> None:
    """Bring the store up to date from the prices that the user names, if any, with what a training at `first` reads."""
    if request.source or request.prices:
        context = open_context(request)
        announce(context)
        with err.status(f"fetching {context.name}"):
            for day in (previous_session(context.market.calendar, first), choose_as_of(context, None)):
                fetch_bars(context, day)


def _ranking(request: RunRequest, plan: Plan, workers: int = 1) -> Ranking:
    """A ranking as a flow; one that is stored already needs none."""
    fetch_named(request, plan.first)
    walk = Walk(open_stored_context(request), plan)
    if (stored := stored_ranking(walk.context.engine, walk.id)) is not None:
        err.print(f"stored on {stored.row['read_at']:%Y-%m-%d}: nothing was trained")
        return stored
    require_server()
    from flows.benchmark.flow import ranking as ranking_flow

    found: Ranking = ranking_flow(replace(request, attended=True), plan, workers)
    return found


def print_ranking(found: Ranking) -> None:
    """Print how well each predictor ordered the stocks over the leg that the models were trained for, the worst first.

    Then the mean rank IC of the blend over every leg, and whether it is ahead of the best rule.
    """
    out.print(f"[bold]{found.row['id']}[/bold]\n{sentence(found)}")
    print_frame(pd.DataFrame(_cells(found), columns=list(COLUMNS)), "how well the stocks of a day were ordered")
    legs = found.scores[(found.scores["predictor"] == HEADLINE) & (found.scores["slice"] == "all")]
    cells = [(each["leg"], with_interval(each, "rank_ic"), figure(each["t"], 1)) for each in records(legs)]
    print_frame(pd.DataFrame(cells, columns=["leg", "rank IC [95 %]", "t"]), f"{HEADLINE}, leg by leg")
    out.print(verdict(found), markup=False, soft_wrap=True)


def sentence(found: Ranking) -> str:
    """Say what was ordered."""
    row = found.row
    return (
        f"{row['stocks']} stocks, closes from {row['first']} to {row['last']}, {row['leg']}; {row['folds']} folds "
        f"in {row['seconds']:.0f} s; the best rule of the days before is {row['best_rule']}"
    )


def verdict(found: Ranking) -> str:
    """Say in one sentence whether the blend orders stocks better than the best rule of the days before."""
    (blend,) = (each for each in _whole(found) if each["predictor"] == HEADLINE)
    rule = found.row["best_rule"]
    gain = _gain(found, HEADLINE, rule)
    compared = told_apart(gain["gain_low"], gain["gain_high"]) or "has no interval beside"
    said = f"rank IC {with_interval(gain, 'gain', signed=True)}"
    return f"Ordering the stocks of {blend['days']} days, the {HEADLINE} {compared} {rule}: {said}."


def _cells(found: Ranking) -> Iterator[tuple[str, ...]]:
    """Yield a row a predictor, the worst first."""
    rule = found.row["best_rule"]
    for each in _whole(found):
        name = each["predictor"]
        gains = [
            "" if name == other else with_interval(_gain(found, name, other), "gain", signed=True)
            for other in (rule, "ridge")
        ]
        yield (
            f"{name} (best rule)" if name == rule else name,
            with_interval(each, "rank_ic"),
            figure(each["t"], 1),
            *gains,
            with_interval(each, "auc"),
            with_interval(each, "acc"),
            signed_percent(each["decile_spread"], 2),
        )


def _whole(found: Ranking) -> list[dict[str, Any]]:
    """Return the scores over all days on the leg that the models were trained for, the worst first."""
    mine = found.scores[(found.scores["leg"] == found.row["leg"]) & (found.scores["slice"] == "all")]
    return records(mine.sort_values("rank_ic"))


def _gain(found: Ranking, one: str, other: str) -> dict[str, Any]:
    both = (found.differences["predictor"] == one) & (found.differences["other"] == other)
    return records(found.differences[both])[0]
