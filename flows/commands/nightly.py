"""The nightly commands: a whole night, or one step of it.

Modules that load torch, which takes seconds, are imported by the functions that compute: a night
that is complete is only shown.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from typing import Annotated

import pandas as pd
import typer

from db import where
from db.connection.locks import market_lock
from db.engine import location, reading
from db.read import read
from db.rows import runs
from dtml.errors import DtmlError
from dtml.evaluation.calibration import coverage
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.pages.figures import counted, figure, percent
from dtml.pages.night import ends, ranking_words
from dtml.prices.sessions import sessions_between, sessions_up_to
from flows.commands.options import AsJson, AsOf, day_of, of_a_market
from flows.console import announce, print_frame, print_json, print_scores, rendered
from flows.log_lines import logged_run
from flows.markets.opened import (
    OpenedMarket,
    RunRequest,
    choose_as_of,
    open_market,
    open_stored_market,
)
from flows.markets.stored_night import (
    LIMIT,
    Night,
    finished_night,
    missed_nights,
    passed_over,
    stored_night,
)
from flows.night_facts import NightFacts
from flows.service.prefect_server import require_server
from flows.settings import data_folder, err, out

commands = typer.Typer()

ASK_MORE = (
    'ask more  dtml query "select * from prediction_history '
    "where market = '{market}' order by target desc\" "
)
PROBABILITIES = {"probability": percent, "probability_std": percent, "calibrated": percent}
SHOWN = 12  # rows of each part of a printed table


@commands.command()
@of_a_market("source", "prices", "index", "universe", "seeds", "epochs", "device")
def nightly(
    request: RunRequest,
    as_of: AsOf = None,
    nights: Annotated[
        int, typer.Option(min=1, help="Run this many nights in order, the last one at --as-of.")
    ] = 1,
    missed: Annotated[
        bool,
        typer.Option(
            "--catch-up", help=f"Run the missed nights of the last {LIMIT} sessions, up to --as-of."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a night: fetch, check and store prices, train if due, predict, score and report.

    Example: dtml nightly kdd17 --prices kdd17.parquet --index GSPC.parquet --as-of 2016-06-30
    """
    if missed and nights > 1:
        raise typer.BadParameter("--catch-up finds the missed nights by itself: leave out --nights")
    opened = open_market(request)
    last = choose_as_of(opened, day_of(as_of))
    announce(opened)
    if missed:
        return _catch_up(opened, request, last, as_json=as_json)
    days = [session.date() for session in sessions_up_to(opened.market.calendar, last, nights)]
    if nights > 1:
        over = passed_over(opened, days)
        days = [day for day in days if day not in over]
    done_nights = [_run_or_read_night(opened, request, day) for day in days]
    return _show_nights(opened, done_nights, as_json=as_json)


def _catch_up(opened: OpenedMarket, request: RunRequest, last: date, *, as_json: bool) -> None:
    """Run the nights missed among the last LIMIT sessions up to a session, in order; print them.

    If none of these was missed, the complete night of that session is printed. Raises DtmlError,
    after printing the others, if a night is refused.
    """
    first = sessions_up_to(opened.market.calendar, last, LIMIT)[0].date()
    missed = missed_nights(opened, last, limit=None)
    days = [day for day in missed if day >= first]
    older = [day for day in missed if day < first]
    if older:
        sessions = sessions_between(opened.market.calendar, older[0], older[-1])
        err.print(
            f"note: --catch-up covers the last {LIMIT} sessions; "
            f"{counted(len(older), 'older night')} missed, {older[0]} .. {older[-1]}: "
            f"`--as-of {older[-1]} --nights {len(sessions)}` in its place runs them",
            soft_wrap=True,
        )
    if not days:
        err.print(f"no night was missed in the last {LIMIT} sessions")
        return _show_nights(opened, [_run_or_read_night(opened, request, last)], as_json=as_json)
    listed_days = ", ".join(str(day) for day in days)
    err.print(f"{counted(len(days), 'night')} missed: {listed_days}")
    require_server()  # before Prefect is imported
    from flows.service.flows import missed as run_missed

    caught_up = run_missed(replace(request, attended=True), last)
    if caught_up.nights:
        _show_nights(opened, caught_up.nights, as_json=as_json)
    if caught_up.refused:
        raise DtmlError(caught_up.reason)
    return None


def _run_or_read_night(opened: OpenedMarket, request: RunRequest, day: date) -> Night:
    """Return the night of a day: run it as a flow, or read it from the store if it is complete.

    If the page of a complete night is missing or outdated, or if the market has the user's own
    code, `run_night` does what is left of it, without a flow.
    """
    stored = stored_night(opened, day)
    if stored is not None:
        return stored
    if finished_night(opened, day) is not None:
        from flows.nightly.context import with_experiment
        from flows.nightly.night import run_night

        # Its predictions are stored. What is left needs no flow: what a killed run did not do, and
        # the comparison of the user's own code with that of the rankers.
        return run_night(with_experiment(opened, request), day)
    err.print(f"night of {day}")
    require_server()  # before Prefect is imported
    from flows.service.flows import nightly as run_nightly

    return run_nightly(replace(request, attended=True), day)


@commands.command()
@of_a_market("source", "prices", "index", "universe")
def fetch(
    request: RunRequest,
    as_of: AsOf = None,
    again: Annotated[
        bool, typer.Option("--again", help="Fetch the whole history again to find restatements.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch the bars that the store lacks, check them, and store them.

    Example: dtml fetch ndx100
    """
    from flows.nightly.context import open_context
    from flows.second_source import fetch_and_compare

    context = open_context(request)
    last = choose_as_of(context, day_of(as_of))
    announce(context)
    with (
        logged_run("fetch", market=context.name, night=last) as run,
        market_lock(context.engine, context.name),
        err.status(f"fetching {context.name} up to {last}"),
    ):
        fetch_result = fetch_and_compare(context, last, whole=again)
        run.outcome = (
            f"{counted(fetch_result.fetched, 'bar')} fetched, {fetch_result.stored} stored"
        )
    if as_json:
        document = asdict(fetch_result)
        document["outcomes"] = fetch_result.failures  # as in the table: symbols without an answer
        del document["first"]  # the spans asked for, of use only to `fetch_and_compare`
        print_json({"as_of": last, **document})
    else:
        text = rendered("fetch.txt", name=context.name, as_of=last, result=fetch_result)
        out.print(text, end="")
        if len(fetch_result.failures):
            print_frame(
                fetch_result.failures,
                "symbols without an answer",
                importance=("symbol", "status"),
                prose=("detail",),
            )
        if len(fetch_result.rejected):
            reasons = fetch_result.rejected["reason"].value_counts()
            print_frame(
                reasons.rename("bars").reset_index(),
                "rejected",
                importance=("reason", "bars"),
                prose=("reason",),
            )
    # Last, so that the result is printed even if the command then fails.
    index = context.market.index.symbol
    failures = fetch_result.failures
    # With no_data, the source answered that it has no bar of these sessions.
    is_missing = (failures["symbol"] == index) & (failures["status"] != "no_data")
    if is_missing.any():
        failure = failures[is_missing].iloc[0]
        raise DtmlError(
            f"the index {index} is missing ({failure['status']}: {failure['detail']}), but every "
            "night needs it: fetch again once the source delivers the index or, for prices from "
            "files, its file is corrected"
        )


@commands.command()
@of_a_market("seeds", "epochs", "device")
def train(request: RunRequest, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Train the market's model on the stored prices; run again after an interruption to resume.

    Example: dtml train simulated --seeds 3
    """
    opened = open_stored_market(request)
    last = choose_as_of(opened, day_of(as_of))
    require_server()  # before Prefect is imported
    from flows.service.flows import train as run_training

    model = run_training(replace(request, attended=True), last)
    with reading(opened.engine) as conn:
        run = runs.run(conn, model.run_id)
    if as_json:
        return print_json(run)
    out.print(
        f"{run['id']}: trained on {run['train_first']} .. {run['train_last']}, "
        f"SHA-256 {run['checkpoint_hash']}"
    )
    out.print(f"model     {data_folder() / run['checkpoint_path']}", markup=False, soft_wrap=True)
    best_epochs = []
    for seed in run["losses"]:
        epoch = seed["epochs"][seed["best_epoch"] - 1]  # `best_epoch` is counted from 1
        best_epochs.append({"seed": seed["seed"], **epoch})
    table = pd.DataFrame(best_epochs).rename(columns={"number": "best epoch"})
    return print_frame(
        table,
        importance=("seed", "best epoch", "validation_acc", "validation_loss", "loss"),
        formats={"loss": figure, "validation_loss": figure, "validation_acc": percent},
    )


@commands.command()
@of_a_market("device")
def predict(request: RunRequest, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Predict the next session from the stored prices, with the latest model.

    Nothing is fetched or trained, and the night is complete with it.

    Example: dtml predict simulated
    """
    from flows.nightly.context import open_stored_context
    from flows.nightly.night import PREDICTING_FROM_STORE, run_night

    context = open_stored_context(request)
    last = choose_as_of(context, day_of(as_of))
    night = run_night(context, last, PREDICTING_FROM_STORE)
    _show_nights(context, [night], as_json=as_json)


@commands.command()
@of_a_market()
def score(request: RunRequest, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Score every past prediction whose outcome is stored, and compare with the naive rules.

    Example: dtml score simulated
    """
    from flows.nightly.context import Tonight, open_stored_context
    from flows.nightly.score import score as score_nights

    context = open_stored_context(request)
    last = choose_as_of(context, day_of(as_of))
    with (
        logged_run("score", market=context.name, night=last) as run,
        market_lock(context.engine, context.name),
    ):
        scored = score_nights(Tonight(context, last))
        run.outcome = f"{counted(len(scored.nights), 'night')} rescored"
    with reading(context.engine) as conn:
        scores = read(conn, "score", market=context.name, target=where.until(last))
    if as_json:
        document = {
            "new_outcomes": scored.outcomes,
            "unresolved": scored.unresolved,
            "nights": scored.nights,
            "scores": scores,
        }
        return print_json(document)
    out.print(
        f"{context.name}: {counted(scored.outcomes, 'new outcome')}, "
        f"{counted(len(scored.nights), 'night')} rescored, "
        f"{counted(scored.unresolved, 'prediction')} without an outcome, "
        "because no valid bar arrived"
    )
    if scores.empty:
        return out.print("no prediction of this market has an outcome yet")
    is_newest = scores["target"] == scores["target"].max()
    return print_scores(scores[(scores["span"] == "running") & is_newest])


def _show_nights(opened: OpenedMarket, nights: Sequence[Night], *, as_json: bool) -> None:
    """Print the nights of a command: the last one in full, the others in a line each.

    With `as_json` they are one document, in which `nights` has the row of every night and
    `rejected` the bars that any of them rejected; all else is about the last one. The directions
    are those at the market's level.
    """
    night = nights[-1]
    row = night.row
    level = opened.market.level
    with reading(opened.engine) as conn:
        facts = NightFacts(conn, row, scored_until=row["as_of"])
        directions = facts.directions(level).drop(columns=["low", "high"])
        ranking = facts.ranking
        scores = facts.last_scores
        counts = facts.band_counts
        coverage_at_level = coverage(counts[counts["level"] == level])
        if as_json:
            document = {
                "night": row,
                "new": not night.was_done_before,
                "report": str(night.report),
                "nights": [done.row for done in nights],
                "rejected": _rejected_bars(nights),
                "predictions": directions,
                "scores": scores,
                "coverage": coverage_at_level,
                "ranking": ranking,
                "rank_scores": facts.rank_scores,
            }
            return print_json(document)
        ranking_text = ""
        if len(ranking):
            ranking_text = ranking_words(ranking, facts.rank_scores, facts.champion)
    _print_nights(nights, directions, ranking, ranking_text)
    return _print_scores(night, scores, coverage_at_level, location(opened.engine))


def _rejected_bars(nights: Sequence[Night]) -> pd.DataFrame:
    rejected_bars = []
    for night in nights:
        if night.fetch_result:  # None for a night that was complete before
            bars_of_night = night.fetch_result.rejected.assign(night=night.row["as_of"])
            rejected_bars.append(bars_of_night)
    columns = ["night", "symbol", "session", "reason", "value"]
    if not rejected_bars:
        return pd.DataFrame(columns=columns)
    return pd.concat(rejected_bars, ignore_index=True)[columns]


def _print_directions(rows: pd.DataFrame, title: str | None = None) -> None:
    print_frame(
        rows,
        title,
        importance=("symbol", "direction", "calibrated", "probability"),
        formats=PROBABILITIES,
    )


def _print_nights(
    nights: Sequence[Night], directions: pd.DataFrame, ranking: pd.DataFrame, ranking_text: str
) -> None:
    *earlier_nights, night = nights
    row = night.row
    for earlier in earlier_nights:
        out.print(f"night of {earlier.row['as_of']}: {_what_was_done(earlier)}", end="")
    out.print(f"[bold]{row['market']}, night of {row['as_of']}: {row['target']} predicted[/bold]")
    # Sorted by what decides: the calibrated probability, where the model has been calibrated. The
    # most probable come first, and equally probable ones in the order of their symbols.
    column = "calibrated" if directions["calibrated"].notna().any() else "probability"
    ordered = directions.sort_values([column, "symbol"], ascending=[False, True])
    shown = ordered[["symbol", "probability", "probability_std", "calibrated", "direction"]]
    if len(shown) > 2 * SHOWN:
        hidden_rows = len(shown) - 2 * SHOWN
        _print_directions(shown.head(SHOWN), "most probable risers")
        out.print(f"... {hidden_rows} more in the report and in the store")
        shown = shown.tail(SHOWN)
    _print_directions(shown)
    if len(ranking):
        out.print(ranking_text, soft_wrap=True)
        symbols = [stock["symbol"] for stock in ends(ranking)]
        half = len(symbols) // 2  # the best come first, then the worst
        first = ", ".join(symbols[:half])
        last = ", ".join(symbols[half:])
        out.print(f"  first {first}\n  last  {last}", soft_wrap=True)
    elif not row["reason"]:  # else the reason printed below explains it
        out.print(
            "the stocks are not ranked: either there is less than a year of sessions, or the "
            "night's log gives the reason"
        )
    if row["reason"]:  # of a complete night, it is about the user's own code
        out.print(f"own code: {row['reason']}", markup=False, soft_wrap=True)
    out.print(_what_was_done(night), end="")
    for gap in row["gaps"][:SHOWN]:
        out.print(f"  left out: {gap['symbol']}, {gap['reason']}")
    rejected_bars = _rejected_bars(nights)
    if rejected_bars.empty:
        return
    counts = rejected_bars.value_counts(["night", "reason"], sort=False)
    print_frame(
        counts.rename("bars").reset_index(),
        "bars rejected",
        importance=("night", "reason", "bars"),
        prose=("reason",),
    )
    print_frame(
        rejected_bars.tail(SHOWN),
        f"the last of {counted(len(rejected_bars), 'rejected bar')}; "
        "the view `rejected` has all of them",
        importance=("symbol", "session", "reason", "value"),
        prose=("reason", "value"),
    )


def _print_scores(
    night: Night, scores: pd.DataFrame, coverage_at_level: pd.DataFrame, store: str
) -> None:
    if scores.empty:
        out.print(
            "No prediction of this market has an outcome yet: the next night will score this one."
        )
    else:
        last = scores["target"].max().date()
        out.print(
            f"\n[bold]Scores of all nights up to {last}[/bold], with 95 % intervals from "
            "resampled days"
        )
        out.print(
            "ACC is the share of correct directions. MCC is the Matthews correlation coefficient, "
            "which is 0 without skill."
        )
        print_scores(scores)
        coverage_lines = rendered("coverage.txt", rows=coverage_at_level.to_dict("records"))
        out.print(coverage_lines, end="", soft_wrap=True)
        if scores["nights"].max() < MINIMUM_DAYS:
            out.print(f"Intervals are printed from {MINIMUM_DAYS} nights on.")
    out.print(f"\nreport    {night.report}\ndatabase  {store}", markup=False, soft_wrap=True)
    out.print(ASK_MORE.format(market=night.row["market"]), soft_wrap=True)


def _what_was_done(night: Night) -> str:
    return rendered(
        "night.txt",
        row=night.row,
        result=night.fetch_result,
        scored=night.scored,
        changed=night.changed,
    )
