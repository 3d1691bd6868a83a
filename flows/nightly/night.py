"""Run one night of one market, up to stored predictions of its next session.

A night begins with the last closed session. Once earlier predictions are scored, it measures
whether inputs, skill and coverage are still what the model was trained on. Missed nights are found
in the store, fetched for all at once, and run in order.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from db.connection.locks import market_lock
from db.engine import reading, transaction
from db.errors import StoreError
from db.rows import attention, calibration, nights, prices, rankings, runs
from db.rows import predictions as stored_predictions
from db.rows.nights import COMPLETE
from dtml.errors import DtmlError
from dtml.evaluation.drift import RECENT, REFERENCE, Inputs, coverage_drift, skill_drift
from dtml.features import FEATURES, HISTORY, MAX_GAP, features
from dtml.prices.sessions import next_session, session_open, sessions_between, sessions_up_to
from dtml.windows import panel_on
from flows.nightly.context import MarketContext, read_bars
from flows.nightly.fetch import FetchResult, fetch_bars
from flows.nightly.order import Trained, order_night, rankers_for
from flows.nightly.own_code import change
from flows.nightly.paper import follow_orders
from flows.nightly.predict import Forecast, forecast, shortage, too_few
from flows.nightly.report import publish_night
from flows.nightly.score import Scored, rule_directions, score_market
from flows.nightly.train import Model, drop_states, load_model, train_with_progress, why_due
from flows.settings import data_folder
from flows.upkeep.parquet_export import export_if_asked
from translation.atomic_files import write_whole

LIMIT = 30  # sessions looked back for missed nights: for older ones there is `dtml backtest`

log = logging.getLogger(__name__)

T = TypeVar("T")
Stage = Callable[[str, Callable[[], Any]], Any]


class NightRefusedError(DtmlError):
    """Say that a night ended without predictions; its row says why, and nothing is half-written."""

    def __init__(self, message: str, exit_code: int, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.may_pass = may_pass  # the source failed, so another run may complete the night


@dataclass(frozen=True)
class Night:
    """Hold how a night ended.

    `row` is its row in the store; `fetch_result` is missing when nothing had to be done.
    """

    row: dict[str, Any]
    report: Path
    fetch_result: FetchResult | None = None
    scored: Scored | None = None
    changed: str = ""  # of own code, since the market's rankers were trained

    @property
    def was_done_before(self) -> bool:
        """Return whether an earlier run had completed the night."""
        return self.fetch_result is None


def directly(_name: str, work: Callable[[], T]) -> T:
    """Run a stage as a plain call."""
    return work()


def finished_night(context: MarketContext, as_of: date) -> dict[str, Any] | None:
    """Return the row of a complete night, or None when there is something to do."""
    with reading(context.engine) as conn:
        row = nights.night(conn, context.name, as_of)
    return row if _is_complete(row) else None


def _is_complete(row: Mapping[str, Any] | None) -> bool:
    return row is not None and row["status"] in COMPLETE


def run_night(
    context: MarketContext,
    as_of: date,
    *,
    stage: Stage = directly,
    only_stored: bool = False,
    fetch: Callable[[], FetchResult] | None = None,
    known_at: datetime | None = None,
) -> Night:
    """Fetch, check, store, train if due, predict, store, score, report.

    With `only_stored` the source is not asked and nothing is trained: the latest model predicts
    from the stored bars. `fetch` replaces the night's own fetch, and the model sees bars as known
    at a moment (None: now).

    A complete night is left as it is. An interrupted or refused one runs again from what is stored.
    Raises NightRefusedError, after recording the reason, when the bars do not allow predictions,
    and StoreBusyError when another process is running a night of the market.
    """

    def bars_of_night() -> FetchResult:
        if only_stored:
            return FetchResult()
        return fetch_bars(context, as_of) if fetch is None else fetch()

    with market_lock(context.engine, context.name):
        completed = finished_night(context, as_of)
        if completed is not None:
            drop_states(context.name, as_of)
            # The run that completed the night may have ended before these stages.
            _, report = _end(context, as_of, directly)
            return Night(row=completed, report=report, changed=_changed(context, as_of))
        _start(context, as_of)
        with _recording_refusal(context, as_of) as fetched:
            fetch_result = stage("fetch", bars_of_night)  # which checks and stores the bars
            fetched.append(fetch_result)
            _require_bars(context, as_of, fetch_result, known_at)
            _predict(context, as_of, stage, fetch_result, known_at, only_stored=only_stored)
        scored, report = _end(context, as_of, stage)
        finished = finished_night(context, as_of)
        assert finished is not None
        return Night(row=finished, report=report, fetch_result=fetch_result, scored=scored)


def _start(context: MarketContext, as_of: date) -> None:
    """Record that a night began."""
    target = next_session(context.market.calendar, as_of)
    source = context.source.name
    begun = datetime.now(UTC)
    with transaction(context.engine) as conn:
        nights.start_night(
            conn, context.name, as_of, target=target, source=source, started_at=begun
        )


def _predict(
    context: MarketContext,
    as_of: date,
    stage: Stage,
    fetch_result: FetchResult,
    known_at: datetime | None,
    *,
    only_stored: bool,
) -> None:
    """Find or train the night's models, and store what they predict and how they rank."""

    def models() -> tuple[Model, Trained | None]:
        if only_stored:
            model = load_model(context, as_of)
        else:
            model = _train_if_due(context, as_of, known_at)
        return model, rankers_for(context, as_of, known_at, only_stored=only_stored)

    model, rankers = stage("model", models)
    predicted = stage("predict", lambda: forecast(context, model, as_of, known_at))
    _require_predictions(context, predicted, as_of)
    order = pd.DataFrame()
    if rankers is not None:
        probabilities = predicted.predictions.set_index("symbol")["probability"]
        order = order_night(context, rankers, as_of, probabilities, known_at)
    stage("store", lambda: _store(context, as_of, fetch_result, model, predicted, order))


def _end(context: MarketContext, as_of: date, stage: Stage) -> tuple[Scored, Path]:
    """Do what follows the predictions of a night, and return what was scored and the page."""
    scored = stage("score", lambda: score_market(context, as_of))
    stage("orders", lambda: follow_orders(context, as_of))
    stage("drift", lambda: watch_drift(context, as_of))
    report = stage("report", lambda: publish_night(context, as_of))
    export_if_asked(context.engine, context.name)
    return scored, report


def _changed(context: MarketContext, as_of: date) -> str:
    """Return how the market's own code changed since the training, which the next night audits.

    Nothing when it did not.
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

    The list that it yields takes what the night has fetched.
    """
    fetched = [FetchResult()]
    try:
        yield fetched
    except (DtmlError, StoreError, OSError) as error:
        _refuse(context, as_of, str(error), fetched[-1])
        code = getattr(error, "exit_code", 1)
        message = f"night {as_of} of {context.name} refused: {error}"
        # Out of reach, or limited the rate, or answered nonsense.
        is_source_failure = fetched[-1].failures["status"] != "no_data"
        raise NightRefusedError(message, code, may_pass=bool(is_source_failure.any())) from error
    except Exception as error:
        _refuse(context, as_of, f"unexpected {type(error).__name__}: {error}", fetched[-1])
        raise


def _require_bars(
    context: MarketContext, as_of: date, fetch_result: FetchResult, known_at: datetime | None
) -> None:
    """Raise DtmlError for a night without its index, or with too many stocks missing."""
    with reading(context.engine) as conn:
        today = prices.prices(conn, context.name, as_of, as_of, known_at=known_at)
    short = shortage(context, as_of, set(today["symbol"]))
    if short is None:
        return
    message = f"{short.what}: {_cause(fetch_result, short.missing)}"
    is_index = short.missing == {context.market.index.symbol}
    if is_index and context.source.name == "files":
        raise DtmlError(f"{message}; name its file with --index")
    raise DtmlError(message)


def _cause(fetch_result: FetchResult, symbols: set[str]) -> str:
    """Return the most common reason why these symbols have no bar, and what to do."""
    failed = fetch_result.failures[fetch_result.failures["symbol"].isin(symbols)]
    if not failed.empty:
        status = failed["status"].mode().iloc[0]
        detail = failed.loc[failed["status"] == status, "detail"].iloc[0]
        cause = f"{len(failed)} {status} ({detail})"
        if status == "no_data":
            return cause
        return f"{cause}; what came is stored, run the night again to go on"
    rejected = fetch_result.rejected[fetch_result.rejected["symbol"].isin(symbols)]
    if not rejected.empty:
        reason = rejected["reason"].mode().iloc[0]
        return f"{len(rejected)} bars rejected, mostly {reason}: ask the view `rejected`"
    return "the source has none for that session"


def _train_if_due(context: MarketContext, as_of: date, known_at: datetime | None) -> Model:
    """Train where the market's policy wants it; else load the latest model."""
    reason = why_due(context, as_of, known_at)
    if reason is None:
        return load_model(context, as_of, known_at)
    log.info("training %s: %s", context.name, reason)
    return train_with_progress(context, as_of, known_at)


def _require_predictions(context: MarketContext, predicted: Forecast, as_of: date) -> None:
    """Raise DtmlError for a night in which too many constituents cannot be predicted."""
    if too_few(context, as_of, predicted.predictions):
        reason = pd.Series(predicted.gaps).mode().iloc[0]
        constituents = len(context.constituents(as_of))
        raise DtmlError(
            f"{len(predicted.gaps)} of {constituents} constituents cannot be predicted "
            f"from {as_of}, mostly: {reason}"
        )


def _store(
    context: MarketContext,
    as_of: date,
    fetch_result: FetchResult,
    model: Model,
    predicted: Forecast,
    order: pd.DataFrame,
) -> None:
    """Write the predictions and the night's end: a night is stored whole or not at all.

    A night that another process completed meanwhile stays as that one left it.
    """
    now = datetime.now(UTC)
    market = context.name
    known_at = predicted.known_at
    predictions = predicted.predictions.assign(run_id=model.run_id)
    looks = predicted.looks.assign(run_id=model.run_id)
    with transaction(context.engine) as conn:
        if _is_complete(nights.night(conn, market, as_of)):
            return
        stored_predictions.save_predictions(
            conn, market, predictions, known_at=known_at, made_at=now
        )
        rankings.save_order(conn, market, order, known_at=known_at, made_at=now)
        attention.save_attention(conn, market, looks)
        directions = rule_directions(conn, context, as_of, known_at)
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
            reason=order.attrs.get("note") or None,
            run_id=model.run_id,
            known_at=known_at,
            inputs_hash=predicted.inputs_hash,
        )


def _refuse(context: MarketContext, as_of: date, reason: str, fetch_result: FetchResult) -> None:
    """Record that a night ended without predictions, unless another process completed it."""
    with transaction(context.engine) as conn:
        if _is_complete(nights.night(conn, context.name, as_of)):
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


def watch_drift(context: MarketContext, as_of: date) -> None:
    """Store what has drifted in the night of `as_of`.

    What was stored stands, and a failure is a warning.
    """
    with reading(context.engine) as conn:
        night = nights.night(conn, context.name, as_of)
        assert night is not None
        run = runs.run(conn, night["run_id"])
    try:
        reference = _trained_on(context, run)
        # More than the mean needs, so that a session without bars does not end the watch.
        recent = _features(context, as_of, RECENT + MAX_GAP)
        input_drifts = list(reference.drift(recent, FEATURES))
    except DtmlError as error:  # such as bars of the training that this store lacks
        log.warning(
            "the inputs of %s are not compared with the training's: %s", context.name, error
        )
        input_drifts = []
    drifts = input_drifts + _drift_of_outcomes(context, as_of)
    if not drifts:
        return
    with transaction(context.engine) as conn:
        nights.save_drift(conn, context.name, as_of, pd.DataFrame(drifts))


def _trained_on(context: MarketContext, run: dict[str, Any]) -> Inputs:
    """Return the inputs that a run was trained on.

    They are those of a file, or measured again where it is missing or damaged.
    """
    file = data_folder() / "models" / f"{run['id']}-inputs.json"
    with suppress(OSError, ValueError, TypeError):
        return Inputs(**json.loads(file.read_text()))
    inputs = Inputs.of(_features(context, run["train_last"], REFERENCE))
    write_whole(file, lambda path: path.write_text(json.dumps(asdict(inputs))))
    return inputs


def _features(context: MarketContext, last: date, sessions: int) -> np.ndarray:
    """Return the features of the last `sessions` up to `last`, [sessions, stocks, features]."""
    market = context.market
    grid = sessions_up_to(market.calendar, last, sessions + HISTORY + MAX_GAP)
    bars = read_bars(context, grid[0].date(), last)
    panel = panel_on(bars, grid, market.symbols, market.returns)
    largest_return = context.experiment.windows.largest_return
    values = features(panel, z_close=market.z_close, max_return=largest_return)
    return values[-sessions:]


def _drift_of_outcomes(context: MarketContext, as_of: date) -> list[dict[str, Any]]:
    """Return the drift of the champion's rank IC and of the band's coverage, where there is any."""
    market = context.market
    target = next_session(market.calendar, as_of)
    with reading(context.engine) as conn:
        ranks = rankings.rank_scores(conn, context.name, span="night", leg=market.leg)
        champion = rankings.chosen_predictor(conn, context.name, target)
        counts = calibration.band_counts(conn, context.name, as_of)
    is_until = ranks["target"] <= pd.Timestamp(as_of)
    champion_ranks = ranks[(ranks["predictor"] == champion) & is_until]
    skill = skill_drift(champion_ranks["rank_ic"].to_numpy(dtype=float))
    band = counts[np.isclose(counts["level"].astype(float), market.level)]
    covered = (band["covered"] / band["n"]).to_numpy(dtype=float)
    coverage = coverage_drift(covered, market.level)
    return [drift for drift in (skill, coverage) if drift is not None]


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
        return f"{error}; refused too: {days}"


def missed_nights(context: MarketContext, last: date) -> list[date]:
    """Return which of the last 30 sessions up to `last` lack a complete night.

    They begin with the market's first complete night. Before it, or without one, that is `last`
    alone.
    """
    with reading(context.engine) as conn:
        stored = nights.nights(conn, context.name)
    complete = stored.loc[stored["status"].isin(COMPLETE), "as_of"]
    first = last if complete.empty else min(complete.min().date(), last)
    sessions = sessions_between(context.market.calendar, first, last)[-LIMIT:]
    return [session.date() for session in sessions[~sessions.isin(complete)]]


def known_then(context: MarketContext, day: date) -> datetime | None:
    """Return the open of the session that a night predicts, if its bars were known by then.

    Else None, for now.
    """
    calendar = context.market.calendar
    moment = session_open(calendar, next_session(calendar, day))
    with reading(context.engine) as conn:
        known = prices.prices(conn, context.name, day, day, known_at=moment)
    is_short = shortage(context, day, set(known["symbol"])) is not None
    return None if is_short else moment


def catch_up(context: MarketContext, last: date, run: Callable[..., Night] = run_night) -> CaughtUp:
    """Run every missed night up to `last`; a refused one does not keep the next from running.

    The source is asked once. A night sees the bars that were known before the session that it
    predicts, if they suffice; else those known now, up to its own session. `run` takes the
    arguments of `run_night`, as in a flow. Raises StoreBusyError when another process is running a
    night.
    """
    caught_up = CaughtUp()
    fetch = _asked_once(context, last)
    for day in missed_nights(context, last):
        known_at = known_then(context, day)
        try:
            night = run(context, day, fetch=partial(fetch, day), known_at=known_at)
            caught_up.nights.append(night)
        except NightRefusedError as error:
            caught_up.refused[day] = error
    return caught_up


def _asked_once(context: MarketContext, last: date) -> Callable[[date], FetchResult]:
    """Return a function that gives each night its part of one fetch up to `last`.

    A failure of the fetch is every night's.
    """

    @cache
    def answer() -> FetchResult | Exception:
        try:
            return fetch_bars(context, last)
        except (DtmlError, StoreError, OSError) as error:
            return error

    def fetch(day: date) -> FetchResult:
        fetched = answer()
        if isinstance(fetched, Exception):
            raise fetched
        return fetched if day == last else _of_session(fetched, day)

    return fetch


def _of_session(fetch_result: FetchResult, day: date) -> FetchResult:
    """Return what of a fetch concerns an earlier night: its rejected bars.

    The rest counts for the last night.
    """
    rejected = fetch_result.rejected[fetch_result.rejected["session"] == pd.Timestamp(day)]
    return replace(fetch_result, asked=0, fetched=0, stored=0, rejected=rejected)
