"""The nightly commands: a whole night, or one step of it; torch is imported to compute."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from typing import Annotated, Any

import pandas as pd
import typer
from rich.text import Text

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
from flows.commands.answers import Answer, answering
from flows.commands.options import AsOf, of_a_market, refuse
from flows.console import ConsoleTable, Formats, Part, announce, bold, rendered, score_tables
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
from flows.settings import data_folder, err, tell

commands = typer.Typer()

ASK_MORE = (
    'ask more  dtml query "select * from prediction_history '
    "where market = '{market}' order by target desc\" "
)
SHOWN = 12  # rows of each part of a printed table


@commands.command()
@of_a_market("source", "prices", "index", "universe", "seeds", "epochs", "device")
@answering("json")
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
) -> Answer:
    """Run a night: fetch, check and store prices, train if due, predict, score and report.

    Example: dtml nightly kdd17 --prices kdd17.parquet --index GSPC.parquet --as-of 2016-06-30
    """
    refuse({"--nights": missed and nights > 1}, "--catch-up finds the missed nights by itself")
    opened = open_market(request)
    last = choose_as_of(opened, as_of)
    announce(opened)
    if missed:
        return _catch_up(opened, request, last)
    days = [session.date() for session in sessions_up_to(opened.market.calendar, last, nights)]
    if nights > 1:
        over = passed_over(opened, days)
        days = [day for day in days if day not in over]
    return _answer(opened, [_run_or_read_night(opened, request, day) for day in days])


def _catch_up(opened: OpenedMarket, request: RunRequest, last: date) -> Answer:
    """Run the nights missed among the last LIMIT sessions up to a session, or show its night.

    The answer fails, or DtmlError is raised before the first, if a night is refused.
    """
    first = sessions_up_to(opened.market.calendar, last, LIMIT)[0].date()
    missed = missed_nights(opened, last, limit=None)
    days = [day for day in missed if day >= first]
    older = [day for day in missed if day < first]
    if older:
        sessions = sessions_between(opened.market.calendar, older[0], older[-1])
        tell(
            f"note: --catch-up covers the last {LIMIT} sessions; "
            f"{counted(len(older), 'older night')} missed, {older[0]} .. {older[-1]}: "
            f"`--as-of {older[-1]} --nights {len(sessions)}` in its place runs them"
        )
    if not days:
        tell(f"no night was missed in the last {LIMIT} sessions")
        return _answer(opened, [_run_or_read_night(opened, request, last)])
    tell(f"{counted(len(days), 'night')} missed: {', '.join(map(str, days))}")
    require_server()  # before Prefect is imported
    from flows.service.flows import missed as run_missed

    caught_up = run_missed(replace(request, attended=True), last)
    failure = DtmlError(caught_up.reason) if caught_up.refused else None
    if failure and not caught_up.nights:
        raise failure
    return _answer(opened, caught_up.nights, failure)


def _run_or_read_night(opened: OpenedMarket, request: RunRequest, day: date) -> Night:
    """Return the night of a day: run it as a flow, or read it if it is complete.

    `run_night` does what is left of a complete one, without a flow.
    """
    stored = stored_night(opened, day)
    if stored is not None:
        return stored
    if finished_night(opened, day) is not None:
        from flows.nightly.context import with_experiment
        from flows.nightly.night import run_night

        return run_night(with_experiment(opened, request), day)
    tell(f"night of {day}")
    require_server()  # before Prefect is imported
    from flows.service.flows import nightly as run_nightly

    return run_nightly(replace(request, attended=True), day)


@commands.command()
@of_a_market("source", "prices", "index", "universe")
@answering("json")
def fetch(
    request: RunRequest,
    as_of: AsOf = None,
    again: Annotated[
        bool, typer.Option("--again", help="Fetch the whole history again to find restatements.")
    ] = False,
) -> Answer:
    """Fetch the bars that the store lacks, check them, and store them.

    Example: dtml fetch ndx100
    """
    from flows.nightly.context import open_context
    from flows.second_source import fetch_and_compare

    context = open_context(request)
    last = choose_as_of(context, as_of)
    announce(context)
    with (
        logged_run("fetch", market=context.name, night=last) as run,
        market_lock(context.engine, context.name),
        err.status(f"fetching {context.name} up to {last}"),
    ):
        result = fetch_and_compare(context, last, whole=again)
        run.outcome = f"{counted(result.fetched, 'bar')} fetched, {result.stored:,} stored"
    index = context.market.index.symbol
    failures = result.failures
    # With no_data, the source answered that it has no bar of these sessions.
    of_index = failures[(failures["symbol"] == index) & (failures["status"] != "no_data")]
    failure = None
    for row in of_index.head(1).itertuples():
        failure = DtmlError(
            f"the index {index} is missing ({row.status}: {row.detail}), but every night needs it: "
            "fetch again once the source delivers the index or, for prices from files, its file is "
            "corrected"
        )
    document = {"as_of": last, **asdict(result), "outcomes": failures}
    del document["first"]  # the spans asked for, of use only to `fetch_and_compare`
    parts: list[Part] = [rendered("fetch.txt", name=context.name, as_of=last, result=result)]
    if len(failures):
        parts.append(ConsoleTable(failures, "symbols without an answer", prose=("detail",)))
    if len(result.rejected):
        reasons = result.rejected["reason"].value_counts().rename("bars").reset_index()
        parts.append(ConsoleTable(reasons, "rejected", prose=("reason",)))
    return Answer(parts, document, failure=failure)


@commands.command()
@of_a_market("seeds", "epochs", "device")
@answering("json")
def train(request: RunRequest, as_of: AsOf = None) -> Answer:
    """Train the market's model on the stored prices; run again after an interruption to resume.

    Example: dtml train simulated --seeds 3
    """
    opened = open_stored_market(request)
    last = choose_as_of(opened, as_of)
    require_server()  # before Prefect is imported
    from flows.service.flows import train as run_training

    model = run_training(replace(request, attended=True), last)
    with reading(opened.engine) as conn:
        run = runs.run(conn, model.run_id)
    best_epochs = [
        {"seed": seed["seed"], **seed["epochs"][seed["best_epoch"] - 1]}  # counted from 1
        for seed in run["losses"]
    ]
    formats: Formats = {"loss": figure, "validation_loss": figure, "validation_acc": percent}
    parts = (
        f"{run['id']}: trained on {run['train_first']} .. {run['train_last']}, "
        f"SHA-256 {run['checkpoint_hash']}",
        f"model     {data_folder() / run['checkpoint_path']}",
        ConsoleTable(
            pd.DataFrame(best_epochs).rename(columns={"number": "best epoch"}), None, formats
        ),
    )
    return Answer(parts, run)


@commands.command()
@of_a_market("device")
@answering("json")
def predict(request: RunRequest, as_of: AsOf = None) -> Answer:
    """Predict the next session from the stored prices, with the latest model.

    Nothing is fetched or trained, and the night is complete with it.

    Example: dtml predict simulated
    """
    from flows.nightly.context import open_stored_context
    from flows.nightly.night import PREDICTING_FROM_STORE, run_night

    context = open_stored_context(request)
    last = choose_as_of(context, as_of)
    return _answer(context, [run_night(context, last, PREDICTING_FROM_STORE)])


@commands.command()
@of_a_market()
@answering("json")
def score(request: RunRequest, as_of: AsOf = None) -> Answer:
    """Score every past prediction whose outcome is stored, and compare with the naive rules.

    Example: dtml score simulated
    """
    from flows.nightly.context import Tonight, open_stored_context
    from flows.nightly.score import score as score_nights

    context = open_stored_context(request)
    last = choose_as_of(context, as_of)
    with (
        logged_run("score", market=context.name, night=last) as run,
        market_lock(context.engine, context.name),
    ):
        scored = score_nights(Tonight(context, last))
        run.outcome = f"{counted(len(scored.nights), 'night')} rescored"
    with reading(context.engine) as conn:
        scores = read(conn, "score", market=context.name, target=where.until(last))
    is_newest = scores["target"] == scores["target"].max()
    words = (
        f"{context.name}: {counted(scored.outcomes, 'new outcome')}, "
        f"{counted(len(scored.nights), 'night')} rescored, "
        f"{counted(scored.unresolved, 'prediction')} without an outcome, "
        "because no valid bar arrived"
    )
    none = ["no prediction of this market has an outcome yet"]
    document = {
        "new_outcomes": scored.outcomes,
        "unresolved": scored.unresolved,
        "nights": scored.nights,
        "scores": scores,
    }
    tables = [*score_tables(scores[(scores["span"] == "running") & is_newest])]
    return Answer([words, *(tables or none)], document)


def _answer(
    opened: OpenedMarket, nights: Sequence[Night], failure: Exception | None = None
) -> Answer:
    """Return the answer of a command: its last night in full, and what was done for the others.

    In its document, `nights` has the row of every night, and `rejected` the bars that any of them
    rejected.
    """
    night = nights[-1]
    level = opened.market.level
    rejected = [
        each.fetch_result.rejected.assign(night=each.row["as_of"])
        for each in nights
        if each.fetch_result  # None for a night that was complete before
    ]
    columns = ["night", "symbol", "session", "reason", "value"]
    with reading(opened.engine) as conn:
        facts = NightFacts(conn, night.row, scored_until=night.row["as_of"])
        counts = facts.band_counts
        document = {
            "night": night.row,
            "new": not night.was_done_before,
            "report": str(night.report),
            "nights": [done.row for done in nights],
            "rejected": pd.concat(rejected, ignore_index=True)[columns]
            if rejected
            else pd.DataFrame(columns=columns),
            "predictions": facts.directions(level).drop(columns=["low", "high"]),
            "scores": facts.last_scores,
            "coverage": coverage(counts[counts["level"] == level]),
            "ranking": facts.ranking,
            "rank_scores": facts.rank_scores,
        }
        words = ""
        if len(facts.ranking):
            words = ranking_words(facts.ranking, facts.rank_scores, facts.champion)
    store = location(opened.engine)
    return Answer(_parts(nights, words, store, document), document, failure=failure)


def _parts(
    nights: Sequence[Night], ranking_text: str, store: str, found: Mapping[str, Any]
) -> Iterator[Part]:
    *earlier_nights, night = nights
    row = night.row
    for earlier in earlier_nights:
        yield f"night of {earlier.row['as_of']}: {_what_was_done(earlier)}"
    yield bold(f"{row['market']}, night of {row['as_of']}: {row['target']} predicted")
    directions = found["predictions"]
    # The calibrated probability decides, where the model has been calibrated.
    column = "calibrated" if directions["calibrated"].notna().any() else "probability"
    ordered = directions.sort_values([column, "symbol"], ascending=[False, True])
    stocks = ordered[["symbol", "probability", "probability_std", "calibrated", "direction"]]
    formats = dict.fromkeys(("probability", "probability_std", "calibrated"), percent)
    if len(stocks) > 2 * SHOWN:
        yield ConsoleTable(stocks.head(SHOWN), "most probable risers", formats)
        yield f"... {len(stocks) - 2 * SHOWN} more in the report and in the store"
        stocks = stocks.tail(SHOWN)
    yield ConsoleTable(stocks, None, formats)
    if ranking_text:
        yield ranking_text
        yield first_and_last(found["ranking"])
    elif not row["reason"]:  # else the reason printed below explains it
        yield (
            "the stocks are not ranked: either there is less than a year of sessions, or the "
            "night's log gives the reason"
        )
    if row["reason"]:  # of a complete night, it is about the user's own code
        yield f"own code: {row['reason']}"
    yield _what_was_done(night)
    for gap in row["gaps"][:SHOWN]:
        yield f"  left out: {gap['symbol']}, {gap['reason']}"
    rejected = found["rejected"]
    if len(rejected):
        counts = rejected.value_counts(["night", "reason"], sort=False).rename("bars").reset_index()
        yield ConsoleTable(counts, "bars rejected", prose=("reason",))
        title = (
            f"the last of {counted(len(rejected), 'rejected bar')}; the view `rejected` has all of "
            "them"
        )
        yield ConsoleTable(rejected.tail(SHOWN), title, prose=("reason", "value"))
    scores = found["scores"]
    if scores.empty:
        yield "No prediction of this market has an outcome yet: the next night will score this one."
    else:
        last = f"Scores of all nights up to {scores['target'].max():%Y-%m-%d}"
        yield Text.assemble("\n", (last, "bold"), ", with 95 % intervals from resampled days")
        yield (
            "ACC is the share of correct directions. MCC is the Matthews correlation coefficient, "
            "which is 0 without skill."
        )
        yield from score_tables(scores)
        yield rendered("coverage.txt", rows=found["coverage"].to_dict("records")) or None
        if scores["nights"].max() < MINIMUM_DAYS:
            yield f"Intervals are printed from {MINIMUM_DAYS} nights on."
    yield f"\nreport    {night.report}\ndatabase  {store}"
    yield ASK_MORE.format(**row)


def first_and_last(ranking: pd.DataFrame) -> str:
    """Return the symbols of the best and of the worst stocks, a line each; of one stock, a line."""
    symbols = [stock["symbol"] for stock in ends(ranking)]
    half = (len(symbols) + 1) // 2
    last = f"\n  last  {', '.join(symbols[half:])}" if len(symbols) > 1 else ""
    return f"  first {', '.join(symbols[:half])}{last}"


def _what_was_done(night: Night) -> str:
    return rendered(
        "night.txt",
        row=night.row,
        result=night.fetch_result,
        scored=night.scored,
        changed=night.changed,
    )
