"""The nightly commands: a whole night, or one step of it."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from db.connection.locks import market_lock
from db.engine import location, reading
from db.rows import calibration, predictions, rankings, runs
from db.rows import scores as stored_scores
from dtml.errors import DtmlError
from dtml.evaluation.calibration import coverage, decide
from dtml.evaluation.metrics import MINIMUM_DAYS
from dtml.pages.order import ends, order_words
from dtml.prices.sessions import sessions_up_to
from flows.commands.options import AsJson, AsOf, day_of, of_a_market
from flows.console import announce, print_frame, print_json, print_scores, rendered
from flows.nightly.catch_up import missed_nights
from flows.nightly.context import (
    MarketContext,
    RunRequest,
    choose_as_of,
    open_context,
    open_stored_context,
)
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import Night, finished_night, run_night
from flows.nightly.report import threshold_at
from flows.nightly.score import score_market
from flows.service.prefect_server import require_server
from flows.settings import err, out

commands = typer.Typer()

ASK_MORE = (
    'ask more  dtml query "select * from prediction_history '
    "where market = '{market}' order by target desc\" "
)
PROBABILITIES = dict.fromkeys(("probability", "probability_std", "calibrated"), ".3f")
SHOWN = 12  # rows of the most and the least probable risers


@commands.command()
@of_a_market("source", "prices", "index", "universe", "seeds", "epochs", "device")
def nightly(
    request: RunRequest,
    as_of: AsOf = None,
    nights: Annotated[
        int, typer.Option(min=1, help="Run this many nights in order, the last one at --as-of.")
    ] = 1,
    missed: Annotated[
        bool, typer.Option("--catch-up", help="Run every missed night, up to --as-of.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a night: fetch, check, store, train if due, predict, score, report.

    Example: dtml nightly kdd17 --prices kdd17.parquet --index GSPC.parquet --as-of 2016-06-30
    """
    if missed and nights > 1:
        raise typer.BadParameter("--catch-up finds the missed nights itself: leave out --nights")
    context = open_context(request)
    last = choose_as_of(context, day_of(as_of))
    announce(context)
    if missed:
        return _catch_up(context, request, last, as_json=as_json)
    days = [day.date() for day in sessions_up_to(context.market.calendar, last, nights)]
    return _show_nights(context, [_night(context, request, day) for day in days], as_json=as_json)


def _catch_up(context: MarketContext, request: RunRequest, last: date, *, as_json: bool) -> None:
    """Run every missed night up to a session, in order, and print them; raises
    for those refused.
    """
    days = missed_nights(context, last)
    if not days:
        err.print("no night was missed")
        return _show_nights(context, [run_night(context, last)], as_json=as_json)
    err.print(f"{len(days)} night{'s'[: len(days) > 1]} missed: {', '.join(map(str, days))}")
    require_server()  # before Prefect is imported
    from flows.service.flows import missed as run_missed

    done = run_missed(replace(request, attended=True), last)
    if done.nights:
        _show_nights(context, done.nights, as_json=as_json)
    if done.refused:
        raise DtmlError(done.reason)
    return None


def _night(context: MarketContext, request: RunRequest, day: date) -> Night:
    """A night as a flow; one that is complete already needs none."""
    if finished_night(context, day) is not None:
        return run_night(context, day)
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
        bool, typer.Option("--again", help="Fetch the whole history again, to find restatements.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch the bars that the store lacks, check them, and store them.

    Example: dtml fetch ndx100
    """
    context = open_context(request)
    last = choose_as_of(context, day_of(as_of))
    announce(context)
    with (
        market_lock(context.engine, context.name),
        err.status(f"fetching {context.name} up to {last}"),
    ):
        fetch_result = fetch_bars(context, last, whole=again)
    if as_json:
        print_json({"as_of": last} | asdict(fetch_result) | {"outcomes": fetch_result.failures})
    else:
        out.print(rendered("fetch.txt", name=context.name, as_of=last, result=fetch_result), end="")
        if len(fetch_result.failures):
            print_frame(fetch_result.failures, "not answered")
        if len(fetch_result.rejected):
            print_frame(
                fetch_result.rejected["reason"].value_counts().rename("bars").reset_index(),
                "rejected",
            )
    symbol, failed = context.market.index.symbol, fetch_result.failures
    for status in failed.loc[
        (failed["symbol"] == symbol) & (failed["status"] != "no_data"), "status"
    ]:
        raise DtmlError(
            f"the index {symbol} is missing ({status}), and every night needs it: fetch again"
        )


@commands.command()
@of_a_market("seeds", "epochs", "device")
def train(request: RunRequest, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Train the market's model on the stored prices; if interrupted, it resumes when run again.

    Example: dtml train simulated --seeds 3
    """
    context = open_stored_context(request)
    last = choose_as_of(context, day_of(as_of))
    require_server()  # before Prefect is imported
    from flows.service.flows import train as run_training

    model = run_training(replace(request, attended=True), last)
    with reading(context.engine) as conn:
        run = runs.run(conn, model.run_id)
    if as_json:
        return print_json(run)
    out.print(
        f"{run['id']}: trained on {run['train_first']} .. {run['train_last']}, SHA-256 "
        f"{run['checkpoint_hash']}"
    )
    best = [
        {"seed": each["seed"]} | each["epochs"][each["best_epoch"] - 1] for each in run["losses"]
    ]
    shown = pd.DataFrame(best).rename(columns={"number": "best epoch"})
    return print_frame(
        shown, formats=dict.fromkeys(("loss", "validation_loss", "validation_acc"), ".4f")
    )


@commands.command()
@of_a_market("device")
def predict(request: RunRequest, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Predict the next session from the stored prices, with the latest model.

    Nothing is fetched or trained.

    Example: dtml predict simulated
    """
    context = open_stored_context(request)
    _show_nights(
        context,
        [run_night(context, choose_as_of(context, day_of(as_of)), only_stored=True)],
        as_json=as_json,
    )


@commands.command()
@of_a_market()
def score(request: RunRequest, as_of: AsOf = None, as_json: AsJson = False) -> None:
    """Score every past prediction whose outcome is stored, and compare with the naive rules.

    Example: dtml score simulated
    """
    context = open_stored_context(request)
    last = choose_as_of(context, day_of(as_of))
    scored = score_market(context, last)
    with reading(context.engine) as conn:
        scores = stored_scores.scores(conn, context.name, last=last)
    if as_json:
        named = {
            "new_outcomes": scored.outcomes,
            "unresolved": scored.unresolved,
            "nights": scored.nights,
        }
        return print_json(named | {"scores": scores})
    out.print(
        f"{context.name}: {scored.outcomes} new outcomes, {len(scored.nights)} nights rescored, "
        f"{scored.unresolved} predictions have no outcome: no valid bar came"
    )
    if scores.empty:
        return out.print("no prediction of this market has an outcome yet")
    return print_scores(
        scores[(scores["span"] == "running") & (scores["target"] == scores["target"].max())]
    )


def _show_nights(context: MarketContext, nights: Sequence[Night], *, as_json: bool) -> None:
    """Print what the nights of a command did, the last one whole."""
    row, level = nights[-1].row, context.market.level
    with reading(context.engine) as conn:
        made = predictions.night_directions(conn, context.name, row["as_of"])
        scores = stored_scores.scores(conn, context.name, last=row["as_of"], span="running")
        bands = calibration.bands(conn, row["run_id"])
        counts = calibration.band_counts(conn, context.name, row["as_of"])
        order = rankings.night_order(conn, context.name, row["target"])
        ranks = rankings.last_rank_scores(conn, context.name, row["as_of"])
        champion = rankings.champion(conn, context.name, row["target"])
    latest = scores[scores["target"] == scores["target"].max()]
    said = made.assign(direction=_directions_at(made["calibrated"], bands, level))
    kept = coverage(counts[counts["level"] == level])
    if as_json:
        last = {
            "night": row,
            "new": not nights[-1].was_done_before,
            "report": str(nights[-1].report),
        }
        rows = {"nights": [each.row for each in nights], "rejected": _rejected(nights)}
        found = {
            "predictions": said,
            "scores": latest,
            "coverage": kept,
            "order": order,
            "rank_scores": ranks,
        }
        return print_json(last | rows | found)
    _print_nights(nights, said, order, order_words(order, ranks, champion) if len(order) else "")
    return _print_scores(nights[-1], latest, kept, location(context.engine))


def _directions_at(
    calibrated: "pd.Series[float]", bands: pd.DataFrame, level: float
) -> "pd.Series[str]":
    """Return what is decided at a level: 'rise', 'fall' or 'none'; None where
    the model was not calibrated.
    """
    threshold = threshold_at(bands, level)
    if threshold is None:
        return pd.Series(None, index=calibrated.index, dtype=object)
    said = decide(calibrated.to_numpy(), threshold)
    return pd.Series(
        np.select([said == 1, said == 0], ["rise", "fall"], "none"), index=calibrated.index
    )


def _rejected(nights: Sequence[Night]) -> pd.DataFrame:
    """Return the bars rejected by the fetches of these nights: night, symbol,
    session, reason, value.
    """
    found = [
        each.fetch_result.rejected.assign(night=each.row["as_of"])
        for each in nights
        if each.fetch_result
    ]
    columns = ["night", "symbol", "session", "reason", "value"]
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)


def _print_predictions(predictions: pd.DataFrame) -> None:
    """Print the most and the least probable risers of a night, and their directions."""
    ordered = predictions.sort_values(["probability", "symbol"], ascending=[False, True])
    shown = ordered[["symbol", "probability", "probability_std", "calibrated", "direction"]]
    if len(shown) > 2 * SHOWN:
        left = len(shown) - 2 * SHOWN
        print_frame(shown.head(SHOWN), "most probable risers", formats=PROBABILITIES)
        out.print(f"... {left} more in the report and in the store")
        shown = shown.tail(SHOWN)
    print_frame(shown, formats=PROBABILITIES)


def _print_nights(
    nights: Sequence[Night], predictions: pd.DataFrame, order: pd.DataFrame, said: str
) -> None:
    """Print what the last of these nights says of the next session, its order
    in words too, and what the others did.
    """
    *earlier, night = nights
    row = night.row
    for each in earlier:
        out.print(f"night of {each.row['as_of']}: {_what_was_done(each)}", end="")
    out.print(f"[bold]{row['market']}, night of {row['as_of']}: {row['target']} predicted[/bold]")
    _print_predictions(predictions)
    if len(order):
        out.print(said, soft_wrap=True)
        names = [each["symbol"] for each in ends(order)]
        half = len(names) // 2
        out.print(
            f"  first {', '.join(names[:half])}\n  last  {', '.join(names[half:])}", soft_wrap=True
        )
    elif not row["reason"]:
        out.print(
            "the stocks are not ranked: rankers need a year of sessions; otherwise the night's log "
            "says why"
        )
    if row["reason"]:
        out.print(f"own code: {row['reason']}", markup=False, soft_wrap=True)
    out.print(_what_was_done(night), end="")
    for gap in row["gaps"][:SHOWN]:
        out.print(f"  left out: {gap['symbol']}, {gap['reason']}")
    if len(rejected := _rejected(nights)):
        counts = rejected.value_counts(["night", "reason"], sort=False).rename("bars").reset_index()
        print_frame(counts, "bars rejected")
        print_frame(
            rejected.tail(SHOWN), f"the last of the {len(rejected)}, all in the view `rejected`"
        )


def _print_scores(night: Night, scores: pd.DataFrame, coverage: pd.DataFrame, store: str) -> None:
    """Print what the nights so far were worth, and where they are kept."""
    if scores.empty:
        out.print(
            "No prediction of this market has an outcome yet: the next night scores this one."
        )
    else:
        last = scores["target"].max().date()
        out.print(
            f"\n[bold]Scores of all nights up to {last}[/bold], with 95 % intervals that "
            "resample days"
        )
        out.print(
            "ACC is the share of correct directions, MCC the Matthews correlation coefficient, 0 "
            "without skill."
        )
        print_scores(scores)
        out.print(
            rendered("coverage.txt", rows=coverage.to_dict("records")), end="", soft_wrap=True
        )
        if scores["nights"].max() < MINIMUM_DAYS:
            out.print(f"No interval is printed below {MINIMUM_DAYS} nights.")
    out.print(f"\nreport    {night.report}\ndatabase  {store}")
    out.print(ASK_MORE.format(market=night.row["market"]), soft_wrap=True)


def _what_was_done(night: Night) -> str:
    told = {"result": night.fetch_result, "scored": night.scored, "changed": night.changed}
    return rendered("night.txt", row=night.row, **told)
