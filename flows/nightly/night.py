"""Run one night of one market, up to stored predictions of its next session.

A night belongs to a closed session, and predicts the one after it. Then it scores earlier
predictions, follows its ranking in the paper account, measures whether inputs, skill and coverage
are still as in the training, and writes its page. Of missed nights, which the store knows, the bars
are fetched together; they run in order.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import pandas as pd

from db.connection.locks import market_lock
from db.engine import reading, transaction
from db.errors import StoreError, StoreUsageError
from db.rows import attention, nights, prices, rankings
from db.rows import predictions as stored_predictions
from dtml.errors import DtmlError, UsageError
from dtml.inference import choose_device
from dtml.machine import computed_by
from dtml.pages.figures import counted
from dtml.prices.sessions import REMEDY, next_known_session, session_open
from flows.freezing import ChainFileError, add_lines, extend, is_frozen
from flows.log_lines import logged_run, logged_stage
from flows.markets.files import settings_place
from flows.markets.stored_night import (
    Night,
    finished_night,
    is_complete,
    last_page,
    missed_nights,
    passed_over,
)
from flows.nightly.context import MarketContext, NightBars
from flows.nightly.drift import watch_drift
from flows.nightly.fetch import FetchResult
from flows.nightly.own_code import change
from flows.nightly.paper import follow_rankings
from flows.nightly.predict import NOT_TRAINED_ON, Forecast, forecast, shortage, too_few
from flows.nightly.ranking import Trained, rank_night, rankers_for
from flows.nightly.report import publish_night
from flows.nightly.score import Scored, rule_directions, score_market
from flows.nightly.train import Model, load_model, train_with_progress, why_due
from flows.second_source import fetch_and_compare, words_of_lost_bars
from flows.upkeep.parquet_export import export_if_asked
from flows.upkeep.pruning import drop_states

log = logging.getLogger(__name__)

T = TypeVar("T")
# Runs a stage of a night, given its name and its work, and returns what the work returns.
Stage = Callable[[str, Callable[[], Any]], Any]


class NightRefusedError(DtmlError):
    """Say that a night ended without predictions; its row says why, and nothing is half-written."""

    def __init__(self, message: str, exit_code: int, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.may_pass = may_pass  # the source failed, so another run may complete the night


def directly(name: str, work: Callable[[], T]) -> T:
    """Run a stage as a plain call."""
    with logged_stage(name):
        return work()


def stored_stages(context: MarketContext, as_of: date, stage: Stage) -> Stage:
    """Return a function that runs a stage by `stage`, and stores whether it failed and its seconds.

    A stage is stored when it begins, too, so that the store says which stage a night is in.
    """

    def run_stage(name: str, work: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        with transaction(context.engine) as conn:
            nights.start_stage(conn, context.name, as_of, name, started_at=datetime.now(UTC))
        try:
            result = stage(name, work)
        except Exception:
            with suppress(StoreError):  # the failure of the stage is the one to report
                finish(name, "failed", begun)
            raise
        finish(name, "done", begun)
        return result

    def finish(name: str, status: Literal["done", "failed"], begun: float) -> None:
        seconds = time.monotonic() - begun
        with transaction(context.engine) as conn:
            nights.finish_stage(conn, context.name, as_of, name, status=status, seconds=seconds)

    return run_stage


def run_night(
    context: MarketContext,
    as_of: date,
    *,
    stage: Stage = directly,
    only_stored: bool = False,
    fetch: Callable[[], FetchResult] | None = None,
    known_at: datetime | None = None,
) -> Night:
    """Fetch, check, store, train if due, predict, rank, store, score, report; return how it ended.

    `stage` runs the work of each stage: directly, or as a task of a flow. With `only_stored` the
    source is not asked and nothing is trained: the latest model predicts from the stored bars.
    `fetch` replaces the night's own fetch, and the model sees bars as known at the moment
    `known_at` (None: now).

    The predictions of a complete night stay as they are; only the stages after them are run, if a
    killed run left them undone. A night that was interrupted or refused is run again as a whole;
    bars and trainings that are stored already serve it.

    Where the calendar does not know the next session yet, a night fetches, stores and scores, and
    is refused. It predicts when it runs again after the calendar has been extended.

    Every stage is stored with the time that it took, and the night's end is logged in one line.
    Raises NightRefusedError, after recording the reason, when an expected failure, such as missing
    bars or lost weights, prevents predictions, and StoreBusyError when another process is working
    on the market, be it a night, a training or a fetch.
    """
    with logged_run("night", market=context.name, night=as_of) as run:
        night = _locked_night(
            context, as_of, stage=stage, only_stored=only_stored, fetch=fetch, known_at=known_at
        )
        run.outcome = _outcome(night)
        return night


def _outcome(night: Night) -> str:
    row = night.row
    if night.was_done_before:
        return f"{row['status']} before"
    return f"{row['status']}: {counted(row['predictions'], 'stock')} predicted for {row['target']}"


def _locked_night(
    context: MarketContext,
    as_of: date,
    *,
    stage: Stage,
    only_stored: bool,
    fetch: Callable[[], FetchResult] | None,
    known_at: datetime | None,
) -> Night:
    """Run a night while no other process works on the market; see `run_night`."""
    stored_stage = stored_stages(context, as_of, stage)

    def bars_of_night() -> FetchResult:
        if only_stored:
            return FetchResult()
        return fetch_and_compare(context, as_of) if fetch is None else fetch()

    with market_lock(context.engine, context.name):
        completed = finished_night(context, as_of)
        if completed is not None:
            # A run that was killed after it completed the night may have left states of trainings.
            drop_states(context.name, as_of)
            report = _ensure_last_stages(context, completed)
            return Night(row=completed, report=report, changed=_own_code_change(context, as_of))
        before = passed_over(context, [as_of]).get(as_of)
        if before is not None:
            raise UsageError(
                f"{as_of} has no night: it became a session of {context.name} after the night of "
                f"{before} had predicted the one after it, and that prediction stays"
            )
        _start(context, as_of)
        with _recording_refusal(context, as_of) as fetched:
            # The fetch also checks the bars, and compares them with a second source.
            fetch_result = stored_stage("fetch", bars_of_night)
            fetched.append(fetch_result)
            night_bars = NightBars(context, as_of, known_at)
            _require_bars(context, night_bars, fetch_result)
            _require_target(context, night_bars, stored_stage)
            _predict(context, night_bars, stored_stage, fetch_result, only_stored=only_stored)
        # The night is complete now, so that a failure of these stages does not refuse it.
        scored, report = _run_last_stages(context, night_bars, stored_stage)
        finished = finished_night(context, as_of)
        assert finished is not None
        return Night(row=finished, report=report, fetch_result=fetch_result, scored=scored)


def _require_bars(context: MarketContext, night_bars: NightBars, fetch_result: FetchResult) -> None:
    short = shortage(context, night_bars.as_of, night_bars.symbols_of_the_session())
    if short is None:
        return
    index = context.market.index
    lacks_the_index = short.missing == {index.symbol}
    if fetch_result.outcomes.empty:  # as for `dtml predict`, or where the store has later bars
        cause = (
            f"the source was not asked for that session: run `dtml fetch {context.name} --again`, "
            "which asks for the whole history, with --prices FILE if the prices come from files"
        )
    else:
        missing = short.missing
        if lacks_the_index and index.of_constituents:  # computed: its stocks are what did not come
            missing = set(context.constituents(night_bars.as_of))
        cause = _cause(fetch_result, missing, night_bars.as_of)
    message = f"{short.what}: {cause}{words_of_lost_bars(context, night_bars.as_of)}"
    if lacks_the_index and not index.of_constituents and context.source.name == "files":
        raise DtmlError(f"{message}; if another file has the index, give that file with --index")
    raise DtmlError(message)


def _start(context: MarketContext, as_of: date) -> None:
    target = next_known_session(context.market.calendar, as_of)
    source = context.source.name
    begun = datetime.now(UTC)
    with transaction(context.engine) as conn:
        nights.start_night(
            conn, context.name, as_of, target=target, source=source, started_at=begun
        )


def _predict(
    context: MarketContext,
    night_bars: NightBars,
    stage: Stage,
    fetch_result: FetchResult,
    *,
    only_stored: bool,
) -> None:
    """Find or train the night's models, and store what they predict and how they rank.

    Raises DtmlError where too many constituents cannot be predicted; models trained for the night
    stay stored.
    """
    as_of = night_bars.as_of
    known_at = night_bars.known_at

    def models() -> tuple[Model, Trained | None]:
        if only_stored:
            # No caller gives both `only_stored` and `known_at`: the latest model may serve.
            model = load_model(context, as_of)
        else:
            reason = why_due(context, as_of, known_at)
            if reason is None:
                model = load_model(context, as_of, known_at)
            else:
                log.info("training %s: %s", context.name, reason)
                model = train_with_progress(context, as_of, known_at)
        return model, rankers_for(context, as_of, known_at, only_stored=only_stored)

    model, rankers = stage("model", models)
    predicted = stage("predict", lambda: forecast(context, model, night_bars))
    if too_few(context, as_of, predicted.predictions):
        reason = pd.Series(predicted.gaps).mode().iloc[0]
        constituents = len(context.constituents(as_of))
        allowed = context.market.checks.max_missing
        remedy = (
            f"fetch the missing bars with `dtml fetch {context.name} --again`, with --prices FILE "
            "if the prices come from files"
        )
        if reason == NOT_TRAINED_ON:
            remedy = f"train another model with `dtml train {context.name} --as-of {as_of}`"
        raise DtmlError(
            f"{len(predicted.gaps)} of {constituents} constituents cannot be predicted as of "
            f"{as_of}, more than the share of {allowed:g} that max_missing allows (most common "
            f"reason: {reason}): {remedy}, or raise max_missing under [checks] in "
            f"{settings_place(context.market)}; then run the night again"
        )
    ranking = pd.DataFrame()
    if rankers is not None:
        probabilities = predicted.predictions.set_index("symbol")["probability"]
        ranking = stage("rank", lambda: rank_night(context, rankers, night_bars, probabilities))
    stage("store", lambda: _store(context, night_bars, fetch_result, model, predicted, ranking))


def _run_last_stages(
    context: MarketContext, night_bars: NightBars, stage: Stage
) -> tuple[Scored, Path]:
    """Run the stages that follow the predictions of a night; return what was scored and the page.

    All of them may run again after a run that was killed. Views are exported last, if the user has
    asked for that.
    """
    if is_frozen(context.engine, context.name):
        stage("freeze", lambda: _freeze(context))
    scored = stage("score", lambda: score_market(context, night_bars))
    stage("paper account", lambda: follow_rankings(context, night_bars))
    stage("drift", lambda: watch_drift(context, night_bars))
    report = stage("report", lambda: publish_night(context, night_bars))
    export_if_asked(context.engine, context.name)
    return scored, report


def _freeze(context: MarketContext) -> None:
    """Add to the market's chain, and to its file, each night that is new or was run again.

    A file that does not fit the chain, or cannot be written, is left as it is, with a warning; so
    it is where the store lacks the run of a link, or has a link that cannot be read.
    """
    for link in extend(context.engine, context.name):
        if link["replaces"] is not None:
            log.warning(
                "%s: the night of %s was run again: link %d replaces link %d, which stays in the "
                "chain; nothing needs to be done",
                context.name,
                link["as_of"],
                link["number"],
                link["replaces"],
            )
    try:
        add_lines(context.engine, context.name)
    except (ChainFileError, StoreUsageError, ValueError, OSError) as error:
        log.warning(
            "%s: the night is frozen in the store, but is not in the chain's file: %s; once that "
            "is fixed, `dtml freeze %s` adds the night",
            context.name,
            error,
            context.name,
        )


def _ensure_last_stages(context: MarketContext, completed: Mapping[str, Any]) -> Path:
    """Run the last stages of a complete night if they are not done, and return its page.

    The run that completed the night may have been killed before them; `last_page` says whether it
    was.
    """
    as_of = completed["as_of"]
    page = last_page(context, completed)
    if page is not None:
        # The export follows the page, and may not have been done.
        export_if_asked(context.engine, context.name)
        return page
    night_bars = NightBars(context, as_of, completed["known_at"])
    _, page = _run_last_stages(context, night_bars, stored_stages(context, as_of, directly))
    return page


def _own_code_change(context: MarketContext, as_of: date) -> str:
    """Say how the market's own code has changed since its rankers were trained; empty if not.

    A file that cannot be read does not count as changed: the words say why it cannot. The next
    night audits the new code.
    """
    with reading(context.engine) as conn:
        latest = rankings.latest_ranker(conn, context.name, on_or_before=as_of)
    if not latest:
        return ""
    _, words = change(context, latest["config"])
    return words


@contextmanager
def _recording_refusal(context: MarketContext, as_of: date) -> Iterator[list[FetchResult]]:
    """Record why a night failed; raise NightRefusedError for the failures that a night can expect.

    The body of the `with` appends to the list yielded what the night has fetched, so that its
    counts are recorded with the failure. Other exceptions are recorded too, and raised as they are.
    """
    fetched = [FetchResult()]
    try:
        yield fetched
    except (DtmlError, StoreError, OSError) as error:
        _refuse(context, as_of, str(error), fetched[-1])
        code = getattr(error, "exit_code", 1)
        message = f"night {as_of} of {context.name} refused: {error}"
        # The status "no_data" is an answer. With any other failure the source was out of reach,
        # limited the rate of requests, or sent what cannot be read.
        is_source_failure = fetched[-1].failures["status"] != "no_data"
        raise NightRefusedError(message, code, may_pass=bool(is_source_failure.any())) from error
    except Exception as error:
        _refuse(context, as_of, f"unexpected {type(error).__name__}: {error}", fetched[-1])
        raise


def _require_target(context: MarketContext, night_bars: NightBars, stage: Stage) -> None:
    """Score earlier nights and raise DtmlError where the calendar does not know the next session.

    The paper account is brought up to date too. Otherwise do nothing: a night that can predict
    scores later.
    """
    as_of = night_bars.as_of
    calendar = context.market.calendar
    if next_known_session(calendar, as_of) is not None:
        return
    stage("score", lambda: score_market(context, night_bars))
    stage("paper account", lambda: follow_rankings(context, night_bars))
    raise DtmlError(
        f"the calendar {calendar} has no session after {as_of}, so the session to predict is not "
        f"known; the bars are stored and earlier nights are scored: {REMEDY}; then run `dtml "
        f"nightly {context.name} --catch-up`, which the service does by itself"
    )


def _cause(fetch_result: FetchResult, symbols: set[str], as_of: date) -> str:
    """Return the most common reason why symbols lack a session's bar, and what to do if anything.

    Symbols that the source did not answer give the reason. If there are none, the bars of these
    symbols and of the session that the fetch rejected give it.
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


def _store(
    context: MarketContext,
    night_bars: NightBars,
    fetch_result: FetchResult,
    model: Model,
    predicted: Forecast,
    ranking: pd.DataFrame,
) -> None:
    """Store the predictions, the ranking and the end of the night in one transaction.

    The attention and the directions of the naive rules are stored in it too. A night that another
    process has completed meanwhile stays as it is. There may be one, because the market's lock on
    PostgreSQL ends with the connection that holds it (`db.connection.locks`).
    """
    now = datetime.now(UTC)
    as_of = night_bars.as_of
    market = context.name
    known_at = predicted.known_at
    directions = rule_directions(context, night_bars)
    predictions = predicted.predictions.assign(run_id=model.run_id)
    looks = predicted.looks.assign(run_id=model.run_id)
    with transaction(context.engine) as conn:
        if is_complete(nights.night(conn, market, as_of)):
            return
        stored_predictions.save_predictions(
            conn, market, predictions, known_at=known_at, made_at=now
        )
        rankings.save_night_ranking(conn, market, ranking, known_at=known_at, made_at=now)
        attention.save_attention(conn, market, looks)
        stored_predictions.save_rule_directions(conn, market, directions)
        nights.finish_night(
            conn,
            market,
            as_of,
            status="complete_with_gaps" if predicted.gaps else "complete",
            finished_at=now,
            counts={**fetch_result.counts, "predictions": len(predictions)},
            gaps=[
                {"symbol": symbol, "reason": reason} for symbol, reason in predicted.gaps.items()
            ],
            reason=ranking.attrs.get("note") or None,  # what `rank_night` says of own code
            run_id=model.run_id,
            known_at=known_at,
            inputs_hash=predicted.inputs_hash,
            computed_by=computed_by(choose_device(context.device)),
        )


def _refuse(context: MarketContext, as_of: date, reason: str, fetch_result: FetchResult) -> None:
    """Record that a night ended without predictions, unless another process completed it."""
    with transaction(context.engine) as conn:
        if is_complete(nights.night(conn, context.name, as_of)):
            return
        nights.finish_night(
            conn,
            context.name,
            as_of,
            status="refused",
            reason=reason,
            finished_at=datetime.now(UTC),
            counts={**fetch_result.counts, "predictions": 0},
            gaps=[],
        )


@dataclass
class CaughtUp:
    """Hold how the missed nights of a market ended, in their order."""

    nights: list[Night] = field(default_factory=list)
    refused: dict[date, NightRefusedError] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Return why nights were refused: the first of them in full, the others by their day.

        At least one night must have been refused.
        """
        first, *others = self.refused.items()
        _, error = first
        if not others:
            return str(error)
        days = ", ".join(str(day) for day, _ in others)
        return f"{error}; also refused: {days}"


def known_then(context: MarketContext, day: date) -> datetime | None:
    """Return the moment for which a missed night of `day` reads its bars; None stands for now.

    It is the open of the session that the night predicts, if enough bars of `day` were known by
    then. It is now if too few were, or if the calendar does not know that session.
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
    """Run the missed nights up to `last`; after a refused night the next ones still run.

    `missed_nights` says which nights are missed. The source is asked once, for the bars of all of
    them. A night predicts from the bars that were known before the session that it predicts, if
    these are enough; otherwise from those known now, up to its own session. `run` takes the
    arguments of `run_night`; a flow passes one whose stages are tasks. Raises StoreBusyError when
    another process is working on the market.
    """
    caught_up = CaughtUp()
    fetch = _one_fetch_for_all(context, last)
    for day in missed_nights(context, last):
        known_at = known_then(context, day)
        try:
            night = run(context, day, fetch=partial(fetch, day), known_at=known_at)
            caught_up.nights.append(night)
        except NightRefusedError as error:
            caught_up.refused[day] = error
    return caught_up


def _one_fetch_for_all(context: MarketContext, last: date) -> Callable[[date], FetchResult]:
    """Return a function that gives the night of a day its part of one fetch up to `last`.

    The first call fetches, for all nights. The night of `last` gets the whole result, an earlier
    one what `_part_of_night` returns. If the fetch fails, every call raises the same error.
    """

    @cache  # which keeps what is returned, not what is raised: so an error is returned
    def answer() -> FetchResult | Exception:
        try:
            return fetch_and_compare(context, last)
        except (DtmlError, StoreError, OSError) as error:
            return error

    def fetch(day: date) -> FetchResult:
        fetched = answer()
        if isinstance(fetched, Exception):
            raise fetched
        return fetched if day == last else _part_of_night(fetched, day)

    return fetch


def _part_of_night(fetch_result: FetchResult, day: date) -> FetchResult:
    """Return a fetch as the night of `day`, not the last one, records it.

    It has only the rejected bars of that day, which the result of the last night has too. Nothing
    counts as asked for, fetched or stored: these counts belong to the last night, so that all
    nights together count each bar once. The rest, such as the answers by symbol, concerns every
    night and stays.
    """
    rejected = fetch_result.rejected[fetch_result.rejected["session"] == pd.Timestamp(day)]
    return replace(fetch_result, asked=0, fetched=0, stored=0, rejected=rejected)
