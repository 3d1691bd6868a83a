"""The command that walks ranking models and one-line rules through a market's history."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

import pandas as pd
import typer

from dtml.errors import UsageError
from dtml.evaluation.metrics import told_apart
from dtml.pages.figures import figure, markdown, records, signed_percent, with_interval
from dtml.ranking.outcomes import Leg
from flows.benchmark.ranking import Plan, Ranking, Walk, stored_ranking
from flows.commands.options import DAY, AsJson, of_a_market
from flows.commands.studies import fetch_named
from flows.console import print_frame, print_json, rendered
from flows.nightly.context import RunRequest, open_stored_context, read_market
from flows.service.prefect_server import require_server
from flows.settings import err, out

commands = typer.Typer()

SNAPSHOT = (
    "Survivorship: the list of stocks is a snapshot: those that left before are missing, which flatters slow features "
    "such as momentum and size most."
)
HEADLINE = "blend"  # settled beforehand: the best of the models on the days that are scored is partly luck
COLUMNS = ("predictor", "rank IC [95 %]", "t", "over the best rule", "AUC", "ACC", "decile spread a day")


@commands.command()
@of_a_market("source", "prices", "index", "universe")
def ranking(
    request: RunRequest,
    first: Annotated[datetime, typer.Option("--from", formats=DAY, help="First close after which stocks are ordered.")],
    last: Annotated[datetime, typer.Option("--to", formats=DAY, help="Last such close.")],
    leg: Annotated[Leg, typer.Option(help="The return that models learn to order.")] = "next_close",
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table for a README.")] = False,
    as_json: AsJson = False,
) -> None:
    """Order the stocks of each day by models and one-line rules, walked forward.

    Each model trains again every 63 sessions on all that was known. The days are scored once and stored.

    Example: dtml ranking simulated --from 2025-11-03 --to 2026-10-30
    """
    if first > last:
        raise UsageError(f"--from {first:%Y-%m-%d} lies after --to {last:%Y-%m-%d}")
    found = _ranking(request, Plan(first.date(), last.date(), leg))
    if as_json:
        return print_json({"ranking": found.row, "scores": found.scores, "differences": found.differences})
    if as_markdown:
        lines = [markdown(COLUMNS), markdown("---" for _ in COLUMNS), *map(markdown, _cells(found))]
        return print("\n".join(lines))  # noqa: T201 - Markdown is for a file
    print_ranking(found)
    if read_market(request.market, request.market_file).is_snapshot:
        out.print(SNAPSHOT, markup=False, soft_wrap=True)
    return None


def _ranking(request: RunRequest, plan: Plan) -> Ranking:
    """A ranking as a flow; one that is stored already needs none."""
    fetch_named(request, plan.first)
    walk = Walk(open_stored_context(request), plan)
    if (stored := stored_ranking(walk.context.engine, walk.id)) is not None:
        err.print(f"stored on {stored.row['read_at']:%Y-%m-%d}: nothing was trained")
        return stored
    require_server()
    from flows.benchmark.flow import ranking as ranking_flow

    found: Ranking = ranking_flow(replace(request, attended=True), plan)
    return found


def print_ranking(found: Ranking) -> None:
    """Print how well each predictor ordered the stocks over the leg that the models were trained for, the worst first.

    Then the mean rank IC of the blend over every leg, and whether it is ahead of the best rule.
    """
    out.print(rendered("ranking.txt", **found.row), end="")
    print_frame(pd.DataFrame(_cells(found), columns=list(COLUMNS)), "how well the stocks of a day were ordered")
    legs = found.scores[(found.scores["predictor"] == HEADLINE) & (found.scores["year"] == 0)]
    cells = [(each["leg"], with_interval(each, "rank_ic"), figure(each["t"], 1)) for each in records(legs)]
    print_frame(pd.DataFrame(cells, columns=["leg", "rank IC [95 %]", "t"]), f"{HEADLINE}, leg by leg")
    out.print(verdict(found), markup=False, soft_wrap=True)


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
        yield (
            f"{name} (best rule)" if name == rule else name,
            with_interval(each, "rank_ic"),
            figure(each["t"], 1),
            "" if name == rule else with_interval(_gain(found, name, rule), "gain", signed=True),
            with_interval(each, "auc"),
            with_interval(each, "acc"),
            signed_percent(each["decile_spread"]),
        )


def _whole(found: Ranking) -> list[dict[str, Any]]:
    """Return the scores over all days on the leg that the models were trained for, the worst first."""
    mine = found.scores[(found.scores["leg"] == found.row["leg"]) & (found.scores["year"] == 0)]
    return records(mine.sort_values("rank_ic"))


def _gain(found: Ranking, one: str, other: str) -> dict[str, Any]:
    both = (found.differences["predictor"] == one) & (found.differences["other"] == other)
    return records(found.differences[both])[0]
