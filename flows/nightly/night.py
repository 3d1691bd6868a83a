"""Run one night of one market: a tuple of steps, each of which does its work on `Tonight`.

A night belongs to a closed session, and predicts the one after it. `PREDICTING` ends with its
predictions stored, and may refuse the night; each step of `AFTERWARDS` may run again. The bars of
missed nights are fetched together; the nights run in order.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Literal, TypeVar

import pandas as pd

from db.connection.locks import market_lock
from db.engine import reading, transaction
from db.errors import StoreBusyError, StoreError
from db.rows import nights, prices
from db.rows.runs import latest_trained
from db.save import save
from dtml.errors import DtmlError, UsageError
from dtml.machine import computed_by
from dtml.pages.figures import counted
from dtml.prices.sessions import REMEDY, next_known_session, session_open
from flows.freezing import ChainFileError, extend, is_frozen
from flows.log_lines import logged_run, logged_stage
from flows.markets.files import settings_place
from flows.markets.stored_night import (
    Night,
    finished_night,
    is_complete,
    last_stage_done,
    missed_nights,
    page_file,
    passed_over,
)
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.drift import watch_drift
from flows.nightly.fetch import FetchResult
from flows.nightly.own_code import change
from flows.nightly.paper import follow_rankings
from flows.nightly.predict import NOT_TRAINED_ON, attention_of, predict, shortage, too_few
from flows.nightly.ranking import rank, rankers_for
from flows.nightly.report import publish_night
from flows.nightly.score import rule_directions, score
from flows.nightly.train import MODEL_WEIGHTS, weights_for
from flows.second_source import fetch_and_compare, words_of_lost_bars
from flows.upkeep.parquet_export import export_if_asked
from flows.upkeep.pruning import drop_states

log = logging.getLogger(__name__)

T = TypeVar("T")
# Runs a stage of a night, given its name and its work, and returns what the work returns.
Stage = Callable[[str, Callable[[], Any]], Any]
# Stocks that are stored for each stock as those it looked at most: all pairs of 500 stocks would be
# 250,000 rows a night.
LOOKS = 3


@dataclass(frozen=True)
class Step:
    """Hold the work of a step, and its stage in the store; without one, it takes no time."""

    work: Callable[[Tonight], object]
    stage: str = ""


class NightRefusedError(DtmlError):
    """Say that a night ended without predictions; its row says why, and nothing is half-written."""

    def __init__(self, message: str, exit_code: int, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.may_pass = may_pass  # see BarsMissingError


class BarsMissingError(DtmlError):
    """Which bars a night lacks; `may_pass` if another try may bring them soon.

    The status "no_data" is an answer; others mean that the source failed.
    """

    def __init__(self, message: str, failures: pd.DataFrame) -> None:
        super().__init__(message)
        self.may_pass = bool((failures["status"] != "no_data").any())


def fetch(tonight: Tonight) -> None:
    """Fetch and check the bars that the store lacks, and compare them with a second source."""
    tonight.fetched = fetch_and_compare(tonight.context, tonight.as_of)


def require_bars(tonight: Tonight) -> None:
    """Raise DtmlError where the index or too many constituents lack a bar of the session."""
    context = tonight.context
    short = shortage(context, tonight.as_of, tonight.symbols_of_the_session())
    if short is None:
        return
    index = context.market.index
    lacks_the_index = short.missing == {index.symbol}
    if tonight.fetched.outcomes.empty:  # as for `dtml predict`, or where the store has later bars
        cause = (
            f"the source was not asked for that session: run `dtml fetch {context.name} --again`, "
            "which asks for the whole history, with --prices FILE if the prices come from files"
        )
    else:
        missing = short.missing
        if lacks_the_index and index.of_constituents:  # computed: its stocks are what did not come
            missing = set(context.constituents(tonight.as_of))
        cause = _cause(tonight.fetched, missing, tonight.as_of)
    message = f"{short.what}: {cause}{words_of_lost_bars(context, tonight.as_of)}"
    if lacks_the_index and not index.of_constituents and context.source.name == "files":
        message = f"{message}; if another file has the index, give that file with --index"
    raise BarsMissingError(message, tonight.fetched.failures)


def _cause(fetch_result: FetchResult, symbols: set[str], as_of: date) -> str:
    """Return the most common reason why symbols lack a session's bar, and what to do if anything.

    Symbols without an answer come first, then bars that the fetch rejected.
    """
    failed = fetch_result.failures[fetch_result.failures["symbol"].isin(symbols)]
    if not failed.empty:
        status = failed["status"].mode().iloc[0]
        of_status = failed[failed["status"] == status]
        symbols_of_status = counted(len(of_status), "symbol")
        detail = of_status["detail"].iloc[0]
        cause = f"the fetch of {symbols_of_status} ended in {status} ({detail})"
        if status == "no_data":
            return f"{cause}: run the night again once the source has the bars"
        if status == "malformed":  # another run may well get the same answer
            return f"{cause}; the other bars are stored: run the night again once this is fixed"
        return f"{cause}; the bars that arrived are stored: run the night again to fetch the rest"
    rejected = fetch_result.rejected
    is_missing = rejected["symbol"].isin(symbols)
    is_of_session = pd.to_datetime(rejected["session"]) == pd.Timestamp(as_of)
    rejected = rejected[is_missing & is_of_session]
    if not rejected.empty:
        reason = rejected["reason"].mode().iloc[0]
        bars = "1 bar was" if len(rejected) == 1 else f"{len(rejected)} bars were"
        return (
            f"{bars} rejected, mostly for {reason}: read them in the view `rejected` with `dtml "
            "query`, and run the night again once the source has corrected them"
        )
    return "the source has no bars of that session: run the night again once it has them"


def models(tonight: Tonight, *, only_stored: bool = False, anew: bool = False) -> None:
    """Load the model and the rankers of the night, trained as `weights_for` says."""
    tonight.model = weights_for(tonight, MODEL_WEIGHTS, only_stored=only_stored, anew=anew)
    tonight.rankers = rankers_for(tonight, only_stored=only_stored, anew=anew)


def stored_models(tonight: Tonight) -> None:
    """Load the latest model and rankers, and train none."""
    models(tonight, only_stored=True)


def require_predictions(tonight: Tonight) -> None:
    """Raise DtmlError where too many constituents cannot be predicted."""
    context = tonight.context
    as_of = tonight.as_of
    gaps = tonight.forecast.gaps
    if not too_few(context, as_of, tonight.forecast.predictions):
        return
    reason = pd.Series(gaps).mode().iloc[0]
    remedy = (
        f"fetch the missing bars with `dtml fetch {context.name} --again`, with --prices FILE "
        "if the prices come from files"
    )
    if reason == NOT_TRAINED_ON:
        remedy = f"train another model with `dtml train {context.name} --as-of {as_of}`"
    raise DtmlError(
        f"{len(gaps)} of {len(context.constituents(as_of))} constituents cannot be predicted as of "
        f"{as_of}, more than the share of {context.market.checks.max_missing:g} that max_missing "
        f"allows (most common reason: {reason}): {remedy}, or raise max_missing under [checks] in "
        f"{settings_place(context.market)}; then run the night again"
    )


def store(tonight: Tonight) -> None:
    """Store what the night predicted and ranked, and its end, in one transaction.

    A night that another process has completed meanwhile stays: the lock on PostgreSQL ends with its
    connection.
    """
    context = tonight.context
    market = context.name
    run_id = tonight.model.run_id
    forecast = tonight.forecast
    directions = rule_directions(tonight)
    stamps: Any = {"known_at": tonight.watermark, "made_at": datetime.now(UTC)}
    tonight.attention = attention_of(context, tonight.model, forecast.windows)
    looks = pd.DataFrame(
        [
            (symbol, source, weight)
            for symbol, drivers in tonight.attention.drivers(LOOKS).items()
            for source, weight in drivers
        ],
        columns=["symbol", "source", "weight"],
    )
    with transaction(context.engine) as conn:
        if not is_complete(nights.night(conn, market, tonight.as_of)):
            save(
                conn,
                "prediction",
                forecast.predictions.assign(run_id=run_id),
                market=market,
                **stamps,
            )
            save(conn, "stock_rank", tonight.ranking, market=market, **stamps)
            save(
                conn,
                "attention_weight",
                looks.assign(run_id=run_id, target=pd.Timestamp(forecast.target)),
                market=market,
            )
            save(conn, "rule_direction", directions, market=market)
            nights.finish_night(
                conn,
                market,
                tonight.as_of,
                status="complete_with_gaps" if forecast.gaps else "complete",
                finished_at=stamps["made_at"],
                counts={**tonight.fetched.counts, "predictions": len(forecast.predictions)},
                gaps=[
                    {"symbol": symbol, "reason": reason} for symbol, reason in forecast.gaps.items()
                ],
                reason=tonight.ranking.attrs.get("note") or None,  # what `rank` says of own code
                run_id=run_id,
                known_at=tonight.watermark,
                inputs_hash=forecast.windows.digest,
                computed_by=computed_by(context.place),
            )
            # Here too, so that the stage does not stay "running" if the process dies after this.
            nights.finish_stage(conn, market, tonight.as_of, "store", status="done", seconds=0)
        tonight.row = nights.night(conn, market, tonight.as_of) or {}


def refuse_without_target(tonight: Tonight) -> None:
    """Raise DtmlError: the calendar does not know the session to predict."""
    calendar = tonight.context.market.calendar
    raise DtmlError(
        f"the calendar {calendar} has no session after {tonight.as_of}, so the session to predict "
        f"is not known; the bars are stored and earlier nights are scored: {REMEDY}; then run "
        f"`dtml nightly {tonight.context.name} --catch-up`, which the service does by itself"
    )


def freeze(tonight: Tonight) -> None:
    """Add nights that are new or were run again to the market's chain; warn if impossible."""
    context = tonight.context
    try:
        links = extend(context.engine, context.name)
    except (ChainFileError, OSError) as error:
        log.warning(
            "%s: the night is complete, but not frozen: %s; once that is right, `dtml freeze %s` "
            "freezes it",
            context.name,
            error,
            context.name,
        )
        return
    for link in links:
        if link.replaces is not None:
            log.warning(
                "%s: the night of %s was run again: link %d replaces link %d, which stays in the "
                "chain; nothing needs to be done",
                context.name,
                link.as_of,
                link.number,
                link.replaces,
            )


def export(tonight: Tonight) -> None:
    """Export the views of each night, if the user has asked for that."""
    export_if_asked(tonight.context.engine, tonight.context.name)


PREDICTING = (
    Step(fetch, "fetch"),
    Step(require_bars),
    Step(models, "model"),
    Step(predict, "predict"),
    Step(require_predictions),
    Step(rank, "rank"),
    Step(store, "store"),
)
# As `dtml predict` does: the source is not asked, and nothing is trained.
PREDICTING_FROM_STORE = (
    Step(require_bars),
    Step(stored_models, "model"),
    Step(predict, "predict"),
    Step(require_predictions),
    Step(rank, "rank"),
    Step(store, "store"),
)
AFTERWARDS = (
    Step(freeze, "freeze"),
    Step(score, "score"),
    Step(follow_rankings, "paper account"),
    Step(watch_drift, "drift"),
    Step(publish_night, "report"),
    Step(export),
)
# Where the calendar does not know the session to predict: bars are stored, earlier nights scored.
WITHOUT_TARGET = (
    Step(score, "score"),
    Step(follow_rankings, "paper account"),
    Step(refuse_without_target),
)


def directly(name: str, work: Callable[[], T]) -> T:
    """Run a stage as a plain call."""
    with logged_stage(name):
        return work()


def run_night(
    context: MarketContext,
    as_of: date,
    steps: tuple[Step, ...] = PREDICTING,
    *,
    stage: Stage = directly,
    known_at: datetime | None = None,
) -> Night:
    """Run the steps of a night, up to its stored predictions, and those after; return how it ended.

    `stage` runs each stage: directly, or as a task of a flow. The model sees bars as known at
    `known_at` (None: now). A complete night stays, but for steps after it that are not done
    (night_stage). One that was interrupted or refused is run again. Where the calendar does not
    know the next session yet, it fetches, stores, scores, and is refused.

    Raises NightRefusedError, after recording the reason, for an expected failure, such as missing
    bars or lost weights, and StoreBusyError when another process works on the market.
    """
    with (
        logged_run("night", market=context.name, night=as_of) as run,
        market_lock(context.engine, context.name),
    ):
        completed = finished_night(context, as_of)
        if completed is not None:
            tonight = Tonight(context, as_of, completed["known_at"])
            tonight.row = completed
            # A run that was killed after it completed the night may have left states of trainings.
            drop_states(context.name, as_of)
        else:
            tonight = Tonight(context, as_of, known_at)
            _start(tonight)
            with _recording_refusal(tonight):
                if next_known_session(context.market.calendar, as_of) is None:
                    bars = [step.work for step in steps].index(require_bars)
                    steps = (*steps[: bars + 1], *WITHOUT_TARGET)
                for step in steps:
                    _take(tonight, step, stage)
        # The night is complete now, so that a failure of these steps does not refuse it.
        for step in AFTERWARDS if completed is None else _left_of(tonight):
            _take(tonight, step, stage)
        row = dict(tonight.row)
        report = page_file(context, as_of, context.market.level)
        if completed is not None:
            run.outcome = f"{row['status']} before"
            return Night(row=row, report=report, changed=_own_code_change(context, as_of))
        predicted = f"{counted(row['predictions'], 'stock')} predicted for {row['target']}"
        run.outcome = f"{row['status']}: {predicted}"
        return Night(row=row, report=report, fetch_result=tonight.fetched, scored=tonight.scored)


def _start(tonight: Tonight) -> None:
    context, as_of = tonight.context, tonight.as_of
    before = passed_over(context, [as_of]).get(as_of)
    if before is not None:
        raise UsageError(
            f"{as_of} has no night: it became a session of {context.name} after the night of "
            f"{before} had predicted the one after it, and that prediction stays"
        )
    tonight.fetched = FetchResult()
    with transaction(context.engine) as conn:
        nights.start_night(
            conn,
            context.name,
            as_of,
            target=next_known_session(context.market.calendar, as_of),
            source=context.source.name,
            started_at=datetime.now(UTC),
        )


def _left_of(tonight: Tonight) -> tuple[Step, ...]:
    """Return the steps after the predictions of a complete night that are not done."""
    done = last_stage_done(tonight.context, tonight.row)
    stages = [step.stage for step in AFTERWARDS]
    return AFTERWARDS if done is None else AFTERWARDS[stages.index(done) + 1 :]


def _take(tonight: Tonight, step: Step, stage: Stage) -> None:
    """Run a step; of a stage, the store says when it began, whether it failed, and its seconds."""
    if step.work is freeze and not is_frozen(tonight.context.name):
        return
    if not step.stage:
        step.work(tonight)
        return
    key = (tonight.context.name, tonight.as_of, step.stage)
    begun = time.monotonic()

    def finish(status: Literal["done", "failed"]) -> None:
        with transaction(tonight.context.engine) as conn:
            nights.finish_stage(conn, *key, status=status, seconds=time.monotonic() - begun)

    with transaction(tonight.context.engine) as conn:
        nights.start_stage(conn, *key, started_at=datetime.now(UTC))
    try:
        stage(step.stage, partial(step.work, tonight))
    except Exception:
        with suppress(StoreError):  # the failure of the stage is the one to report
            finish("failed")
        raise
    finish("done")


def _own_code_change(context: MarketContext, as_of: date) -> str:
    """Say how the market's own code has changed since its rankers were trained; empty if not."""
    with reading(context.engine) as conn:
        latest = latest_trained(conn, "ranker", context.name, on_or_before=as_of)
    if not latest:
        return ""
    _, words = change(context, latest["config"])
    return words


@contextmanager
def _recording_refusal(tonight: Tonight) -> Iterator[None]:
    """Record why a night failed; raise NightRefusedError for what a night can expect."""
    try:
        yield
    except (DtmlError, StoreError, OSError) as error:
        _refuse(tonight, str(error))
        code = getattr(error, "exit_code", 1)
        message = f"night {tonight.as_of} of {tonight.context.name} refused: {error}"
        may_pass = isinstance(error, BarsMissingError) and error.may_pass
        raise NightRefusedError(message, code, may_pass=may_pass) from error
    except Exception as error:
        _refuse(tonight, f"unexpected {type(error).__name__}: {error}")
        raise


def _refuse(tonight: Tonight, reason: str) -> None:
    """Record that a night ended without predictions, unless another process completed it."""
    market = tonight.context.name
    with transaction(tonight.context.engine) as conn:
        if is_complete(nights.night(conn, market, tonight.as_of)):
            return
        nights.finish_night(
            conn,
            market,
            tonight.as_of,
            status="refused",
            reason=reason,
            finished_at=datetime.now(UTC),
            counts={**tonight.fetched.counts, "predictions": 0},
            gaps=[],
        )


@dataclass
class CaughtUp:
    """Hold how the missed nights of a market ended, in their order."""

    nights: list[Night] = field(default_factory=list)
    refused: dict[date, NightRefusedError] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Return why nights were refused: the first of them in full, the others by their day."""
        first, *others = self.refused.items()
        _, error = first
        if not others:
            return str(error)
        days = ", ".join(str(day) for day, _ in others)
        return f"{error}; also refused: {days}"


def known_then(context: MarketContext, day: date) -> datetime | None:
    """Return the moment for which a missed night of `day` reads its bars; None stands for now.

    The open of the session predicted, if enough bars of `day` were known by then.
    """
    calendar = context.market.calendar
    target = next_known_session(calendar, day)
    if target is None:
        return None
    moment = session_open(calendar, target)
    with reading(context.engine) as conn:
        known = prices.prices(conn, context.name, day, day, known_at=moment)
    is_short = shortage(context, day, set(known["symbol"])) is not None
    return None if is_short else moment


def catch_up(context: MarketContext, last: date, run: Callable[..., Night] = run_night) -> CaughtUp:
    """Run the missed nights up to `last`, the later ones even after one fails.

    Each reads the bars known before the session that it predicts, if these are enough
    (`known_then`). The source is asked once for all. `run` takes the arguments of `run_night`.
    Raises StoreBusyError when another process works on the market.
    """
    answers: list[FetchResult | Exception] = []

    def fetch_once(tonight: Tonight) -> None:
        """Fetch for all nights when the first one asks; if that fails, every night is refused.

        All that was fetched counts for the last night; an earlier one has the rejected bars of its
        day.
        """
        if not answers:
            try:
                answers.append(fetch_and_compare(context, last))
            except (DtmlError, StoreError, OSError) as error:
                answers.append(error)
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        if tonight.as_of < last:
            is_own = answer.rejected["session"] == pd.Timestamp(tonight.as_of)
            answer = replace(answer, asked=0, fetched=0, stored=0, rejected=answer.rejected[is_own])
        tonight.fetched = answer

    steps = (Step(fetch_once, "fetch"), *PREDICTING[1:])
    caught_up = CaughtUp()
    for day in missed_nights(context, last):
        try:
            night = run(context, day, steps, known_at=known_then(context, day))
            caught_up.nights.append(night)
        except NightRefusedError as error:
            caught_up.refused[day] = error
        except StoreBusyError:
            raise
        except (DtmlError, StoreError, OSError) as error:
            message = (
                f"the night of {day} has its predictions, but what follows them failed: {error}; "
                "the next run goes on from there"
            )
            code = getattr(error, "exit_code", 1)
            caught_up.refused[day] = NightRefusedError(message, code)
    return caught_up
