"""Every Prefect flow of a market: nights, catching up, training, refetching and watching.

Commands run `nightly`, `missed` and `train` for their results, schedules the `scheduled_` flows for
their last state.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from db.connection.locks import market_lock
from db.engine import open_store, reading
from db.errors import StoreBusyError, StoreError
from dtml.errors import DtmlError
from dtml.pages.figures import counted, records
from flows.console import rendered
from flows.log_lines import logged_run
from flows.markets.opened import RunRequest, choose_as_of
from flows.markets.stored_night import Night
from flows.night_facts import NightFacts
from flows.nightly.context import MarketContext, Tonight, open_context, open_stored_context
from flows.nightly.night import CaughtUp, catch_up, models, run_night
from flows.nightly.train import Model
from flows.second_source import fetch_and_compare
from flows.service.alerts import after_night, watch_markets
from flows.service.schedules import skip_reason
from flows.service.status import named_markets
from flows.service.tasks import as_task
from flows.signals import begin_run, signals_of

log = logging.getLogger(__name__)

WAITS = (300, 900, 2700)  # seconds between tries: Yahoo's rate limit ends within an hour

P = ParamSpec("P")
Outcome = State[None]


@flow(name="nightly", flow_run_name="{request.market} {as_of}", persist_result=False)
def nightly(request: RunRequest, as_of: date) -> Night:
    """Run one night of one market, and raise its alerts; see `flows.nightly.night.run_night`."""
    with signals_of(request.attended):
        context = open_context(request)
        try:
            night = run_night(context, as_of, stage=as_task)
        finally:
            after_night(context.engine, context.name, as_of)
        leave_artifact(context, night)
        return night


@flow(name="catch-up", flow_run_name="{request.market} {last}", persist_result=False)
def missed(request: RunRequest, last: date) -> CaughtUp:
    """Run every missed night of a market up to a session; see `flows.nightly.night.catch_up`."""
    with signals_of(request.attended):
        return _run_missed_nights(open_context(request), last, ())


@flow(name="train", flow_run_name="{request.market} {as_of}", persist_result=False)
def train(request: RunRequest, as_of: date) -> Model:
    """Train one market's model, then its rankers, on its stored prices; return the model."""
    with signals_of(request.attended):
        return _train_with_rankers(open_stored_context(request), as_of)


def _train_with_rankers(context: MarketContext, as_of: date) -> Model:
    with logged_run("training", market=context.name, night=as_of) as run:
        with market_lock(context.engine, context.name):
            tonight = Tonight(context, as_of)
            as_task("train", lambda: models(tonight, anew=True))
        run.outcome = f"trained {tonight.model.run_id}"
        return tonight.model


def _skipped(reason: str) -> Outcome:
    return Completed(name="Skipped", message=reason)


def _ending_in_a_state(
    work: Callable[Concatenate[RunRequest, P], Outcome],
) -> Callable[Concatenate[RunRequest, P], Outcome]:
    """Return the function that does `work` as a run of the service, and ends in a state.

    An expected error becomes a failed state with its message; where another process works on the
    market, the run is skipped.
    """

    @wraps(work)
    def run_of_service(request: RunRequest, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        begin_run()
        name = work.__name__.removeprefix("scheduled_")
        with logged_run(name, market=request.market) as run:
            try:
                state = work(request, *args, **kwargs)
            except StoreBusyError as error:  # another process works on the market
                state = _skipped(str(error))
            except (DtmlError, StoreError, OSError) as error:
                state = Failed(message=str(error))
            run.outcome = f"{state.name}: {state.message}"
            if state.is_failed():
                run.level = logging.WARNING
            return state

    return run_of_service


@flow(name="night", flow_run_name="{request.market}", persist_result=False)
@_ending_in_a_state
def scheduled_night(
    request: RunRequest,
    as_of: date | None = None,
    waits: Sequence[int] = WAITS,
    any_day: bool = False,
) -> Outcome:
    """Run the night of the last session that had closed when the run was due, or of `as_of`.

    Where the source ends earlier, it is the night of its last session. Missed nights before it are
    run too. The run is skipped if the night is complete, and on a day without a session unless
    `any_day` or `as_of` is given. If the source fails, it is tried again after each of `waits`, in
    seconds.
    """
    due = _due()
    context = open_context(request)
    if as_of is None and not any_day:
        reason = skip_reason(context.market, due)
        if reason is not None:
            return _skipped(reason)
    as_of = choose_as_of(context, as_of, due)
    ended = _run_missed_nights(context, as_of, waits)
    refused = f"; refused: {ended.reason}" if ended.refused else ""
    if as_of in ended.refused:
        return Failed(message=str(ended.refused[as_of]))
    if not ended.nights:
        return _skipped(f"the night of {as_of} is complete already{refused}")
    nights = ", ".join(str(night.row["as_of"]) for night in ended.nights)
    last = ended.nights[-1].row
    return Completed(
        message=f"{nights}: {counted(last['predictions'], 'stock')} predicted for "
        f"{last['target']}, {len(last['gaps'])} left out{refused}"
    )


@flow(name="training", flow_run_name="{request.market}", persist_result=False)
@_ending_in_a_state
def scheduled_training(request: RunRequest) -> Outcome:
    """Train model and rankers on the stored sessions that had closed when the run was due."""
    context = open_stored_context(request)
    as_of = choose_as_of(context, None, _due())
    model = _train_with_rankers(context, as_of)
    return Completed(message=model.run_id)


@flow(name="refetch", flow_run_name="{request.market}", persist_result=False)
@_ending_in_a_state
def scheduled_refetch(request: RunRequest) -> Outcome:
    """Fetch the whole stored history again; fails in the end where symbols have no answer."""
    context = open_context(request)
    as_of = choose_as_of(context, None, _due())
    with market_lock(context.engine, context.name):
        result = as_task("fetch", lambda: fetch_and_compare(context, as_of, whole=True))
    bars = (
        f"{counted(result.fetched, 'bar')} up to {as_of}, {result.stored:,} new or restated, "
        f"{len(result.rejected):,} rejected"
    )
    if result.failures.empty:
        return Completed(message=bars)
    first = result.failures.iloc[0]
    return Failed(
        message=f"{bars}; {counted(len(result.failures), 'symbol')} without an answer, "
        f"such as {first['symbol']} ({first['detail']}); the next refetch, or "
        f"`dtml fetch {context.name} --again`, asks again"
    )


@flow(name="watch", persist_result=False)
def watch(markets: Sequence[str] = (), market_files: Sequence[Path] = ()) -> list[str]:
    """Raise these, or all, markets' alerts; return a line for each late or refused night."""
    begin_run()
    with logged_run("watch") as run:
        engine = open_store()
        stored = named_markets(engine, (), market_files)
        statuses = watch_markets(
            engine, {name: stored[name] for name in stored if not markets or name in markets}
        )
        problems = [status.problem for status in statuses if status.problem]
        run.outcome = "; ".join(problems) or "no night is late or refused"
        if problems:
            run.level = logging.WARNING
        return problems


def _due() -> datetime:
    """Return the moment at which the run was due; now if it was started by hand."""
    due = flow_run.scheduled_start_time.timestamp()
    return datetime.fromtimestamp(due, UTC)  # a plain datetime, not Prefect's type


def _run_missed_nights(context: MarketContext, as_of: date, waits: Sequence[int]) -> CaughtUp:
    """Run the missed nights up to `as_of`, their stages as tasks, and return how they ended.

    While that of `as_of` is refused for a reason that may pass, all are tried again after each of
    `waits`, in seconds.
    """
    total = CaughtUp()
    for wait in (*waits, None):  # there is no wait after the last try
        attempt = catch_up(context, as_of, partial(run_night, stage=as_task))
        # A night that was refused is tried again: only the refusals of the last try count.
        total = CaughtUp(nights=[*total.nights, *attempt.nights], refused=attempt.refused)
        for night in attempt.nights:
            leave_artifact(context, night)
            after_night(context.engine, context.name, night.row["as_of"])
        refusal = attempt.refused.get(as_of)
        is_worth_waiting = refusal is not None and refusal.may_pass
        if wait is None or not is_worth_waiting:
            break
        log.warning("%s; trying again in %d s", refusal, wait)
        time.sleep(wait)
    for day in sorted(total.refused):
        after_night(context.engine, context.name, day)
    return total


def leave_artifact(context: MarketContext, night: Night) -> None:
    """Create a Prefect artifact with a key like `night-simulated`; a failure is only logged."""
    row = night.row
    try:
        with reading(context.engine) as conn:
            scores = NightFacts(conn, row, scored_until=row["as_of"]).last_scores
        page = rendered(
            "night_page.txt",
            row=row,
            scores=records(scores[scores["protocol"] == "all"]),
            report=night.report,
        )
        key = f"night-{context.name.replace('_', '-')}"  # small letters, digits and dashes
        create_markdown_artifact(page, key=key)
    except Exception as error:  # noqa: BLE001 - a night must not fail for want of a page
        log.warning(
            "%s: Prefect got no artifact of the night of %s: %s; the night itself is not affected",
            context.name,
            row["as_of"],
            error,
        )
