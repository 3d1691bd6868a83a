"""Store, score and publish the results of a backtest's folds, and trade them in portfolios."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from jaxtyping import Float, Int
from numpy import ndarray
from sqlalchemy import Connection, Engine

from db.engine import reading, transaction
from db.rows import attention, backtests, calibration, outcomes, predictions, runs
from dtml.backtest.performance import expected_best, performance, session_sharpe
from dtml.backtest.portfolio import equal_weight_track, follow, index_track, positions
from dtml.backtest.quotes import Fill
from dtml.baselines.naive_rules import MODEL, directions_on, rules_read_from
from dtml.errors import DtmlError, UsageError
from dtml.evaluation.breakdowns import (
    Directions,
    rank_ics_by_slice,
    rolling_mcc,
    rolling_rank_ic,
    slice_scores,
)
from dtml.evaluation.calibration import calibration_curve, coverage
from dtml.evaluation.survivorship import Survivorship, survivorship_of
from dtml.inference import choose_device
from dtml.pages.backtest import backtest_page
from dtml.prices.returns import on_grid, returns_between
from dtml.prices.sessions import (
    previous_session,
    require_session,
    sessions_a_year,
    sessions_between,
)
from flows.backtest.folds import Backtest, Runner, jobs_of, known_before, one_by_one, read_card
from flows.nightly.bars import NightBars
from flows.nightly.context import newest_source, quotes_of, read_bars
from flows.nightly.predict import first_needed, look
from flows.nightly.score import dated_directions, outcome_rows, record_outcomes, save_counts
from flows.nightly.train import load_run
from flows.settings import page_of, write_page

OnFold = Callable[[int], None]  # called with the number of folds done


@dataclass(frozen=True)
class Result:
    """Hold a backtest as it is stored, and the path of its page.

    `row` is its row of the table `backtest`. The frames are those that the functions of
    `db.rows.backtests` return, and `folds` has the column `validation_acc` too.
    """

    row: Mapping[str, Any]
    folds: pd.DataFrame
    scores: pd.DataFrame
    portfolios: pd.DataFrame
    page: Path


def run_backtest(
    backtest: Backtest,
    runner: Runner = one_by_one,
    on_fold: OnFold = lambda _: None,
    attention_on: Sequence[date] = (),
) -> Result:
    """Train and predict fold by fold, then score.

    A backtest that is stored is not run again, and neither are the folds that an interrupted one
    has finished. In any case attention between stocks is stored for the sessions `attention_on`
    (`keep_attention`), and the page is written if it is missing. `on_fold` is called after each
    fold. Raises UsageError for a day of `attention_on` that is no session of the backtest, and
    DtmlError when another process is running the same backtest, when a fold cannot be trained, when
    every night was refused, and when a portfolio has lost all its equity.
    """
    for day in attention_on:
        require_session(backtest.context.market.calendar, day)
        if not backtest.plan.first <= day <= backtest.plan.last:
            raise UsageError(
                f"--attention-on {day} is outside {backtest.plan.first} .. {backtest.plan.last}, "
                "the span of the backtest: choose a session in it"
            )
    backtest.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(backtest.folder.with_suffix(".lock"))
    try:
        with lock.acquire(timeout=0):
            if stored_backtest(backtest.context.engine, backtest.id) is None:
                _walk(backtest, runner, on_fold)
            # All results are in the store now, so the files of the folds are not needed any more.
            shutil.rmtree(backtest.folder, ignore_errors=True)
            keep_attention(backtest, attention_on)
            stored = stored_backtest(backtest.context.engine, backtest.id)
            assert stored is not None
            if not stored.page.exists():
                record = read_record(backtest, scored_bars(backtest))
                with reading(backtest.context.engine) as conn:
                    returns = backtests.backtest_returns(conn, backtest.id)
                    band_counts = calibration.fold_counts(conn, backtest.id)
                rolling = rolling_mcc(record.directions(), record.movement, record.target)
                rolling_ranks = rolling_rank_ic(record.probability, record.movement, record.target)
                rolling = rolling.merge(rolling_ranks, how="left", on=["session", "predictor"])
                is_known = np.isfinite(record.movement)
                settled_probability = np.where(is_known, record.probability, np.nan)
                page = backtest_page(
                    backtest=stored.row,
                    folds=stored.folds,
                    scores=stored.scores,
                    tracks=returns,
                    performances=stored.portfolios,
                    rolling=rolling,
                    curve=calibration_curve(settled_probability, record.movement > 0),
                    coverage=coverage(band_counts),
                )
                write_page(stored.page, page)
            return stored
    except Timeout as error:
        raise DtmlError(
            f"another process is running the backtest {backtest.id}: wait until it ends"
        ) from error


def _walk(backtest: Backtest, runner: Runner, on_fold: OnFold) -> None:
    """Store the backtest as begun, run the folds not yet done, store each, and score them all."""
    with transaction(backtest.context.engine) as conn:
        backtests.save_backtest(conn, _backtest_row(backtest))
    start = time.perf_counter()
    jobs = jobs_of(backtest)
    # The time that an earlier process spent is not known.
    is_resumed = any(job.card.exists() for job in jobs)
    for number, card in enumerate(runner(jobs), start=1):
        _store_fold(backtest, card)
        on_fold(number)
    seconds = None if is_resumed else time.perf_counter() - start
    _score_and_store(backtest, seconds)


def keep_attention(backtest: Backtest, days: Sequence[date]) -> None:
    """Store, for each session of `days`, which stocks looked at which when it was predicted.

    The session is predicted again by the model of its fold, from the bars that its night read.
    Nothing is stored for a refused night.
    """
    context = backtest.context
    with reading(context.engine) as conn:
        folds = backtests.backtest_folds(conn, backtest.id)
    for day in days:
        target = pd.Timestamp(day)
        # Every session of the backtest is in one fold.
        fold = folds[(folds["first"] <= target) & (target <= folds["last"])].iloc[0]
        as_of = previous_session(context.market.calendar, day)
        if str(as_of) in fold["refused"]:  # the reasons by night
            continue
        with reading(context.engine) as conn:
            model = load_run(context, runs.run(conn, fold["run_id"]))
        first = first_needed(context, model.ensemble.windows, as_of)
        known_at = known_before(context, as_of, backtest.known_at, backtest.plan.prices_known)
        bars = read_bars(context, first, as_of, known_at)
        pairs = look(context, model, as_of, bars).rows().assign(run_id=model.run_id, target=target)
        with transaction(context.engine) as conn:
            attention.save_attention(conn, context.name, pairs)


def stored_backtest(engine: Engine, backtest_id: str) -> Result | None:
    """Return a backtest from the store; None if it is not stored or not finished."""
    with reading(engine) as conn:
        row = backtests.backtest(conn, backtest_id)
        if row is None or row["finished_at"] is None:
            return None
        folds = backtests.backtest_folds(conn, backtest_id)
        accuracies = [_validation_acc(runs.run(conn, run_id)) for run_id in folds["run_id"]]
        return Result(
            row=row,
            folds=folds.assign(validation_acc=accuracies),
            scores=backtests.backtest_scores(conn, backtest_id),
            portfolios=backtests.backtest_portfolios(conn, backtest_id),
            page=page_of("backtest", row),
        )


def _validation_acc(run: Mapping[str, Any]) -> float:
    """Return the validation accuracy in the chosen epoch of each seed, as a mean over the seeds."""
    # Epochs are numbered from 1.
    chosen_epochs = [seed["epochs"][seed["best_epoch"] - 1] for seed in run["losses"]]
    return float(np.mean([epoch["validation_acc"] for epoch in chosen_epochs]))


def _backtest_row(backtest: Backtest) -> dict[str, Any]:
    """Return the row of the table `backtest` for one that has begun and is not finished."""
    context = backtest.context
    plan = backtest.plan
    survivorship = _survivorship(backtest, scored_bars(backtest)).stored
    return {
        "id": backtest.id,
        "market": context.name,
        "first": plan.first,
        "last": plan.last,
        "retrain_every": plan.retrain_every,
        "config": {
            **backtest.config,
            "list": survivorship,
            "source": newest_source(context),
            "sessions_a_year": sessions_a_year(context.market.calendar),
        },
        "seeds": list(range(context.experiment.seeds)),
        "code_version": version("dtml-nightshift"),
        "data_watermark": backtest.known_at,
        "created_at": datetime.now(UTC),
        "list_is_snapshot": context.market.is_snapshot,
        "list_as_of": None if context.market.of_prices else context.market.constituents_as_of,
        "device": choose_device(context.device).type,
    }


def _store_fold(backtest: Backtest, file: Path) -> None:
    """Store a fold's run and its predictions in one transaction; rows already stored stay."""
    card = read_card(file)
    predicted = pd.read_parquet(file.with_suffix(".parquet"))
    run = card["run"]
    fold = {
        **card["fold"],
        "run_id": run["id"],
        "predictions": len(predicted),
        "refused": card["refused"],
        "seconds": card["seconds"],
    }
    now = datetime.now(UTC)
    with transaction(backtest.context.engine) as conn:
        runs.save_run(conn, run)
        if card["bands"]:
            bands = pd.DataFrame(card["bands"])
            calibration.save_bands(conn, run["id"], bands, default=backtest.context.market.level)
        # `save_predictions` takes predictions of a single watermark, `known_at`. Without
        # predictions the frame has no columns.
        moments = predicted["known_at"].unique() if len(predicted) else ()
        for known_at in moments:
            rows = predicted[predicted["known_at"] == known_at].assign(run_id=run["id"])
            predictions.save_predictions(
                conn,
                backtest.context.name,
                rows,
                known_at=known_at.to_pydatetime(),
                made_at=now,
            )
        backtests.save_fold(conn, backtest.id, fold)


@dataclass(frozen=True)
class TrackRecord:
    """Hold the predictions and the outcomes of all predicted sessions.

    A day has the session `as_of`, from whose bars it was predicted, and the session `target` that
    follows. `probability` is that of a rise, NaN where nothing was predicted. `movement` is the
    return from `as_of` to `target`, a ratio minus 1, NaN where it is unknown or beyond the market's
    `max_return`. `losers` is minus the return to `as_of`: a rule that ranks the losers first.
    """

    probability: Float[ndarray, "days stocks"]
    movement: Float[ndarray, "days stocks"]
    as_of: pd.DatetimeIndex
    target: pd.DatetimeIndex
    fold: Int[ndarray, " days"]  # the number of each day's fold
    symbols: tuple[str, ...]
    rules: pd.DataFrame  # a row a day, a column a rule: 1 for a rise, 0 for a fall, or NaN
    losers: Float[ndarray, "days stocks"]

    def directions(self) -> Directions:
        """Return the directions that the model and each rule predicted, [days stocks].

        They are 1 for a rise, 0 for a fall and NaN for none. A rule says the same of all stocks.
        """
        model = np.where(np.isfinite(self.probability), self.probability > 0.5, np.nan)
        directions = {MODEL: model}
        all_stocks = np.ones_like(self.probability)
        for rule in self.rules:
            direction_of_day = self.rules[rule].to_numpy()[:, None]  # [days 1]
            directions[str(rule)] = all_stocks * direction_of_day
        return directions


def scored_bars(backtest: Backtest) -> pd.DataFrame:
    """Read the bars of the predicted sessions, and those before them that the rules need."""
    first = rules_read_from(backtest.context.market.calendar, backtest.plan.first)
    return read_bars(backtest.context, first, backtest.plan.last, backtest.known_at)


def read_record(backtest: Backtest, bars: pd.DataFrame) -> TrackRecord:
    """Read the predictions of all folds, and compute their outcomes from `bars`.

    Raises DtmlError if no night has a prediction.
    """
    market = backtest.context.market
    with reading(backtest.context.engine) as conn:
        predicted = backtests.backtest_predictions(conn, backtest.id)
        folds = backtests.backtest_folds(conn, backtest.id)
    if predicted.empty:
        refused = [refusal for of_fold in folds["refused"] for refusal in of_fold.items()]
        raise DtmlError(
            f"all {len(refused)} nights were refused, the first ({refused[0][0]}) for this reason: "
            f"{refused[0][1]}; choose another --from and --to, leave out --prices-known if given, "
            f"or fetch the missing prices with `dtml fetch {market.name} --again` (and --prices "
            "FILE for files)"
        )
    days = predicted[["as_of", "target"]].drop_duplicates()
    days = days.sort_values("target", ignore_index=True)  # portfolios are traded in this order
    as_of = pd.DatetimeIndex(days["as_of"])
    target = pd.DatetimeIndex(days["target"])
    # A day belongs to the last fold that begins on it or before it.
    fold_of_day = folds["first"].searchsorted(days["target"], side="right") - 1
    day_before = pd.DatetimeIndex([previous_session(market.calendar, day.date()) for day in as_of])
    by_session = predicted.rename(columns={"target": "session"})  # the column that `on_grid` reads
    stocks = (market.symbols, market.returns)
    return TrackRecord(
        probability=on_grid(by_session, "probability", target, market.symbols),
        movement=returns_between(bars, as_of, target, *stocks, market.checks.max_return),
        as_of=as_of,
        target=target,
        fold=folds["number"].to_numpy()[fold_of_day],
        symbols=market.symbols,
        rules=directions_on(as_of, bars, market.index.symbol),
        losers=-returns_between(bars, day_before, as_of, *stocks),
    )


def save_outcomes(conn: Connection, backtest: Backtest, record: TrackRecord) -> None:
    """Store the outcome of every prediction whose return is known, as a night's scoring would."""
    is_settled = np.isfinite(record.probability) & np.isfinite(record.movement)
    day_places, stock_places = np.nonzero(is_settled)
    symbols = pd.Index(record.symbols)[stock_places]
    returns = record.movement[day_places, stock_places]
    rows = outcome_rows(symbols, record.target[day_places], returns)
    record_outcomes(
        conn,
        backtest.context,
        # Nights that these outcomes settle are scored too, beside rules computed from these bars.
        NightBars(backtest.context, backtest.plan.last),
        rows,
        known_at=backtest.known_at,
        recorded_at=datetime.now(UTC),
    )


def _score_and_store(backtest: Backtest, seconds: float | None) -> None:
    """Score the predictions, trade them in portfolios, and store all figures in one transaction.

    `seconds` is the time that the folds took; None where it is not known.
    """
    context = backtest.context
    bars = scored_bars(backtest)
    survivorship = _survivorship(backtest, bars)
    record = read_record(backtest, bars)
    # Only the model's rows of the protocol "all" have ranks too; those of single stocks have none.
    scores = slice_scores(
        record.directions(), record.movement, record.target, record.fold, record.symbols
    )
    ranks = rank_ics_by_slice(
        record.probability, record.losers, record.movement, record.target, record.fold
    )
    ranks = ranks.assign(predictor=MODEL, protocol="all")
    scores = scores.merge(ranks, how="left", on=["slice", "value", "protocol", "predictor"])
    traded = _trade_portfolios(backtest, record, bars)
    year = sessions_a_year(context.market.calendar)
    # Earlier backtests count too: the more strategies are tried, the better the best looks by
    # chance.
    with reading(backtest.context.engine) as conn:
        yearly = backtests.sharpe_ratios(conn, backtest.context.name, other_than=backtest.id)
    trials = list(yearly / np.sqrt(year))
    for name in traded.strategies:
        net_returns = traded.tracks[name]["net"].to_numpy()
        trials.append(session_sharpe(net_returns))
    # The yearly Sharpe ratio that the best of so many strategies would have without any skill.
    best_by_chance = 0.0
    if np.isfinite(trials).any():
        best_by_chance = expected_best(trials) * np.sqrt(year)
    # The trials concern only the portfolios that follow predictions.
    rows: list[dict[str, Any]] = []
    for name, track in traded.tracks.items():
        figures = performance(
            track,
            trials=trials if name in traded.strategies else None,
            index=traded.indices.get(name),
            year=year,
        )
        strategy = traded.strategies.get(name)
        rows.append({"portfolio": name, "strategy": strategy, **asdict(figures)})
    portfolios = pd.DataFrame(rows)
    is_predicted = np.isfinite(record.probability).any(axis=0)  # [stocks], on any day
    tracks = [track.assign(portfolio=name) for name, track in traded.tracks.items()]
    with transaction(context.engine) as conn:
        save_outcomes(conn, backtest, record)
        rules = dated_directions(record.rules, record.target)
        predictions.save_rule_directions(conn, context.name, rules)
        settled = outcomes.settled_folds(conn, backtest.id)  # with the outcomes stored above
        run_ids = settled["run_id"].unique().tolist()
        # The views calibration and coverage read these counts.
        save_counts(conn, settled, calibration.bands_of(conn, run_ids))
        backtests.finish_backtest(
            conn,
            backtest.id,
            scores=scores,
            returns=pd.concat(tracks, ignore_index=True),
            portfolios=portfolios,
            counts={
                "stocks": int(is_predicted.sum()),
                "tried": len(trials),
                "expected_best": best_by_chance,
                "constituent_days": survivorship.constituent_days,
                "without_price": survivorship.without_price,
            },
            finished_at=datetime.now(UTC),
            seconds=seconds,
        )


@dataclass(frozen=True)
class _Traded:
    """Hold the daily returns of each portfolio in `tracks`, by its name, like the other mappings.

    Columns: those of a track of `dtml.backtest.portfolio.follow`. `strategies` has the settings of
    the portfolios that follow predictions. `indices` has the track of the index that a portfolio is
    compared with: bought when its stocks are, so that the two have the same sessions.
    """

    tracks: dict[str, pd.DataFrame]
    strategies: dict[str, dict[str, Any]]
    indices: dict[str, pd.DataFrame]


def _trade_portfolios(backtest: Backtest, record: TrackRecord, bars: pd.DataFrame) -> _Traded:
    """Trade the predictions by each strategy, and hold the index and equal parts for comparison.

    The last two are bought at the next open. Portfolios without a single session are left out.
    """
    context = backtest.context
    quotes = quotes_of(context, bars, record.symbols)
    index_quotes = quotes_of(context, bars, (context.market.index.symbol,))
    index_tracks = {fill: index_track(index_quotes, record.as_of, fill) for fill in get_args(Fill)}
    tracks: dict[str, pd.DataFrame] = {}
    strategies: dict[str, dict[str, Any]] = {}
    indices: dict[str, pd.DataFrame] = {}
    for strategy in backtest.plan.strategies:
        weights = positions(record.probability, strategy)
        track = follow(weights, record.as_of, quotes, strategy)
        tracks[strategy.name] = track
        indices[strategy.name] = index_tracks[strategy.fill]
        if len(track):
            strategies[strategy.name] = asdict(strategy)
    indices["equal weight"] = index_tracks["next_open"]
    tracks["index"] = index_tracks["next_open"]
    tracks["equal weight"] = equal_weight_track(
        record.probability, record.as_of, quotes, "next_open"
    )
    # A track can lack every session: that of the index does if the store has no opens of it.
    with_sessions = {name: track for name, track in tracks.items() if len(track)}
    return _Traded(tracks=with_sessions, strategies=strategies, indices=indices)


def _survivorship(backtest: Backtest, bars: pd.DataFrame) -> Survivorship:
    """Count the constituents on the sessions of the plan, and those without a bar."""
    market = backtest.context.market
    days = sessions_between(market.calendar, backtest.plan.first, backtest.plan.last)
    return survivorship_of(market, days, bars)
