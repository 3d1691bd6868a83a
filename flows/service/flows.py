"""Every Prefect flow of a market: nights, catching up, training, refetching and watching.

`nightly`, `missed` and `train` are run by commands and return what they made; the `scheduled_`
flows are run by schedules and say in their last state what they did, or why they did nothing.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec

import pandas as pd
from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from db.connection.locks import market_lock
from db.engine import open_store, reading
from db.errors import StoreBusyError, StoreError
from db.rows import scores as stored_scores
from dtml.errors import DtmlError
from dtml.pages.figures import records, with_interval
from flows.console import rendered
from flows.nightly.catch_up import CaughtUp, catch_up, missed_nights
from flows.nightly.context import (
    MarketContext,
    RunRequest,
    choose_as_of,
    open_context,
    open_stored_context,
)
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import Night, run_night
from flows.nightly.order import rankers_for
from flows.nightly.train import Model, train_with_progress
from flows.service.alerts import after_night, watch_markets
from flows.service.schedules import DELAY, skip_reason
from flows.service.status import named_markets
from flows.signals import end_with_service, signals_of

log = logging.getLogger(__name__)

MINUTE = timedelta(minutes=1)
WAITS = (300, 900, 2700)  # seconds: a rate limit of Yahoo's passes within the hour

P = ParamSpec("P")
Outcome = State[None]


def as_task(name: str, work: Callable[[], Any]) -> Any:
    """Run one stage as a task of the flow around it."""
    return task(name=name, cache_policy=NO_CACHE)(work)()


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
    """Run every missed night of a market up to a session; see `flows.nightly.catch_up.catch_up`."""
    with signals_of(request.attended):
        return _caught_up(open_context(request), last, ())


@flow(name="train", flow_run_name="{request.market} {as_of}", persist_result=False)
def train(request: RunRequest, as_of: date) -> Model:
    """Train one market's model on what is stored; see `flows.nightly.train.train_model`."""
    with signals_of(request.attended):
        return _trained(open_stored_context(request), as_of)


def _trained(context: MarketContext, as_of: date) -> Model:
    with market_lock(context.engine, context.name):
        model: Model = as_task("train", lambda: train_with_progress(context, as_of))
        as_task("rankers", lambda: rankers_for(context, as_of, anew=True))
    return model


def _skipped(reason: str) -> Outcome:
    return Completed(name="Skipped", message=reason)


def _ending_in_a_state(work: Callable[P, Outcome]) -> Callable[P, Outcome]:
    """Make a run of the service of this work; a failure of ours is one line,
    without its traceback.
    """

    @wraps(work)
    def ended(*given: P.args, **named: P.kwargs) -> Outcome:
        end_with_service()
        try:
            return work(*given, **named)
        except StoreBusyError as error:
            return _skipped(str(error))
        except (DtmlError, StoreError, OSError) as error:
            return Failed(message=str(error))

    return ended


@flow(name="night", flow_run_name="{request.market}", persist_result=False)
@_ending_in_a_state
def scheduled_night(
    request: RunRequest,
    as_of: date | None = None,
    waits: Sequence[int] = WAITS,
    any_day: bool = False,
) -> Outcome:
    """Run the night of the last session that had closed when the run was due, and those missed
    before it.

    It is skipped on a day without a session, unless `any_day` or `as_of` is given. When the source
    failed, it is tried again after each of `waits`, in seconds.
    """
    due = _due()
    context = open_context(request)
    if as_of is None and not any_day and (reason := skip_reason(context.market, due)) is not None:
        return _skipped(reason)
    as_of = choose_as_of(context, as_of, due)
    if (known := context.source.last_session()) is not None:
        as_of = min(as_of, known)  # files that end early have no later night
    if not missed_nights(context, as_of):
        return _skipped(f"the night of {as_of} is complete already")
    done = _caught_up(context, as_of, waits)
    if as_of in done.refused:
        return Failed(message=str(done.refused[as_of]))
    if not done.nights:  # another run completed it meanwhile, or only older ones were missed
        older = f"; refused: {done.reason}" if done.refused else ""
        return _skipped(f"the night of {as_of} is complete already{older}")
    return Completed(message=_summary(done))


@flow(name="training", flow_run_name="{request.market}", persist_result=False)
@_ending_in_a_state
def scheduled_training(request: RunRequest) -> Outcome:
    """Train on what was stored of the sessions that had closed when the run was due."""
    context = open_stored_context(request)
    return Completed(message=_trained(context, choose_as_of(context, None, _due())).run_id)


@flow(name="refetch", flow_run_name="{request.market}", persist_result=False)
@_ending_in_a_state
def scheduled_refetch(request: RunRequest) -> Outcome:
    """Fetch the whole stored history again, up to the last session that had
    closed when the run was due.
    """
    context = open_context(request)
    as_of = choose_as_of(context, None, _due())
    with market_lock(context.engine, context.name):
        found = as_task("fetch", lambda: fetch_bars(context, as_of, whole=True))
    said = (
        f"{found.fetched} bars up to {as_of}, {found.stored} new or restated, "
        f"{len(found.rejected)} rejected"
    )
    if found.failures.empty:
        return Completed(message=said)
    first = found.failures.iloc[0]
    return Failed(
        message=f"{said}; {len(found.failures)} not answered, such as {first['symbol']}: "
        f"{first['detail']}"
    )


@flow(name="watch", persist_result=False)
def watch(
    markets: Sequence[str] = (),
    market_files: Sequence[Path] = (),
    delay_minutes: int = DELAY // MINUTE,
) -> list[str]:
    """Raise what is late or refused of these markets, or of all in the store, and return it.

    See `flows.service.alerts.watch_markets`. A market without a night is passed over.
    """
    end_with_service()
    engine = open_store()
    known = named_markets(engine, (), market_files)
    asked = {name: market for name, market in known.items() if not markets or name in markets}
    return [
        each.problem
        for each in watch_markets(engine, asked, delay=delay_minutes * MINUTE)
        if each.problem
    ]


def _due() -> datetime:
    """Return when the run was to start, however late it is; now where it was started by hand."""
    due = flow_run.scheduled_start_time.timestamp()
    return datetime.fromtimestamp(due, UTC)  # a plain datetime, not Prefect's type


def _caught_up(context: MarketContext, as_of: date, waits: Sequence[int]) -> CaughtUp:
    """Run the missed nights, again after each of `waits` while the source fails
    for `as_of`; return how they ended.
    """
    done = CaughtUp()
    for wait in (*waits, None):
        tried = catch_up(context, as_of, partial(run_night, stage=as_task))
        done = CaughtUp([*done.nights, *tried.nights], tried.refused)
        for night in tried.nights:
            leave_artifact(context, night)
            after_night(context.engine, context.name, night.row["as_of"])
        last = tried.refused.get(as_of)
        if wait is None or last is None or not last.may_pass:
            break
        log.warning("%s; the next try is in %d s", last, wait)
        time.sleep(wait)
    for day in sorted(done.refused):
        after_night(context.engine, context.name, day)
    return done


def _summary(done: CaughtUp) -> str:
    nights = ", ".join(str(night.row["as_of"]) for night in done.nights)
    last = done.nights[-1].row
    said = (
        f"{nights}: {last['predictions']} stocks predicted for {last['target']}, "
        f"{len(last['gaps'])} left out"
    )
    return f"{said}; refused: {done.reason}" if done.refused else said


def leave_artifact(context: MarketContext, night: Night) -> None:
    """Leave an artifact with a key like `night-simulated`; a failure is a line
    in the log, no more.
    """
    row = night.row
    try:
        with reading(context.engine) as conn:
            scores = stored_scores.running_scores(conn, context.name, last=row["as_of"])
        key = f"night-{context.name.replace('_', '-')}"  # small letters, digits and dashes
        create_markdown_artifact(night_page(context.name, scores, night), key=key)
    except Exception as error:  # noqa: BLE001 - a page is not worth a night
        log.warning("night of %s of %s: no artifact is left: %s", row["as_of"], context.name, error)


def night_page(market: str, scores: pd.DataFrame, night: Night) -> str:
    """Return the latest running scores beside the naive rules, and where the
    report lies, as Markdown.
    """
    figures = [
        each | {name: with_interval(each, name) for name in ("acc", "mcc")}
        for each in records(scores)
    ]
    last = scores["target"].iloc[0].date() if figures else None
    return rendered(
        "night_page.txt",
        market=market,
        row=night.row,
        scores=figures,
        last=last,
        report=night.report,
    )
