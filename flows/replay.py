"""Replay past nights and single predictions, and train models again.

A night is replayed from the bars that it knew, a prediction from its receipt `RUN/SYMBOL/TARGET`.
Every difference is reported, to the last bit. Where other versions or another processor computed
it, sums are added in another order: differences within `ROUNDING` count as rounding."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sqlalchemy import Engine
from torch import Tensor

from db.engine import open_reader, reading
from db.errors import StoreUsageError
from db.rows import nights, predictions, rankings, runs
from db.rows import nights as stored_nights
from db.rows import predictions as stored_predictions
from db.rows.nights import COMPLETE
from dtml.checkpoints import checkpoint_hash, save_ensemble
from dtml.errors import DtmlError, UsageError
from dtml.inference import choose_device
from dtml.machine import changes, computed_by, is_by_cpu
from dtml.markets import Constituent, Market
from dtml.pages.figures import records
from dtml.training.fit import EpochReport, no_report
from dtml.training.self_test import TOLERANCE
from flows.markets.files import named_in_command, read_market
from flows.markets.opened import RunRequest, StoredSource
from flows.nightly.context import (
    MarketContext,
    Tonight,
    experiment_for,
    experiment_of,
    read_bars,
    stored_bars,
)
from flows.nightly.fetch import history_start
from flows.nightly.predict import first_needed, night_windows, predict_windows
from flows.nightly.ranking import load_trained, rank_night
from flows.nightly.train import Model, fit_bars, load_run
from flows.settings import weights_file
from translation.atomic_files import write_whole

# Largest difference between two figures that count as close. Probabilities are computed in float32,
# whose spacing below 1 is 6e-8: this leaves room for the rounding of some twenty sums.
ROUNDING = 1e-6


def same(stored: ArrayLike, again: ArrayLike) -> NDArray[np.bool_]:
    """Return, for each figure, whether both are the same to the last bit; NaN equals NaN."""
    then = np.asarray(stored, dtype=float)
    now = np.asarray(again, dtype=float)
    return np.asarray((then == now) | np.isnan(then) & np.isnan(now))


def close(stored: ArrayLike, again: ArrayLike) -> NDArray[np.bool_]:
    """Return, for each figure, whether both differ by at most ROUNDING; NaN equals NaN."""
    then = np.asarray(stored, dtype=float)
    now = np.asarray(again, dtype=float)
    return np.asarray(same(then, now) | (np.abs(then - now) <= ROUNDING))


@dataclass(frozen=True)
class RankingDifference:
    """Hold how many stocks of a night's rankings have another place or score, of how many.

    A stock counts once for each predictor. `is_close` says that all scores are within ROUNDING of
    the stored ones (of a score beyond 1 or -1, within that share of it), and that stocks changed
    places only where their scores are that close.
    """

    differing: int
    total: int
    is_close: bool

    def __str__(self) -> str:
        return f"ranking: {self.differing} of {self.total} places and scores differ"


def ranking_difference(stored: pd.DataFrame, again: pd.DataFrame) -> RankingDifference | None:
    """Return how two frames `predictor, symbol, score, place` differ; None where they do not.

    They are the rankings of one night. A stock that only one of them ranks counts as different, and
    then they are not close.
    """
    beside = stored.merge(again, on=["predictor", "symbol"], how="outer", suffixes=("", "_again"))
    is_same = same(beside[["score", "place"]], beside[["score_again", "place_again"]]).all(axis=1)
    differing = int((~is_same).sum())
    if differing == 0:
        return None
    is_in_both = beside[["place", "place_again"]].notna().all(axis=None)
    # Each stock now has the place `place_again`. Add the stored score of the stock that had this
    # place in the stored ranking.
    score_of_place = stored[["predictor", "place", "score"]].rename(
        columns={"place": "place_again", "score": "score_of_place"}
    )
    beside = beside.merge(score_of_place, on=["predictor", "place_again"], how="left")
    # The stored score of each stock must be close to its new score, and also to the score added
    # above: then the two stocks could change places by rounding alone.
    scale = np.maximum(1.0, beside["score"].abs())
    scores = beside[["score", "score"]].div(scale, axis=0)
    others = beside[["score_again", "score_of_place"]].div(scale, axis=0)
    is_close = bool(is_in_both and close(scores, others).all())
    return RankingDifference(differing=differing, total=len(beside), is_close=is_close)


FIGURES = ("probability", "probability_std", "calibrated", "lowest", "highest", "rising_share")


class NotReplayedError(DtmlError):
    """Say that a past prediction differs when it is made again, or cannot be made again."""


@dataclass
class Archive:
    """Read the past of a market, without ever writing to it.

    The past is its nights, its bars as known at any moment, and its models. `models` holds those
    that were loaded, by the id of their run. `device` computes again what was computed then: cpu,
    cuda, or auto for the CPU where the CPU computed it, and otherwise for the GPU, if there is one.
    """

    engine: Engine
    market: Market
    device: str = "auto"
    models: dict[str, Model] = field(default_factory=dict)

    @classmethod
    def open(cls, request: RunRequest) -> "Archive":
        """Open the past of the market that a run request names, in an existing store."""
        return cls(
            engine=open_reader(),
            market=read_market(request.market, request.market_file),
            device=request.device,
        )

    def night(self, as_of: date | None) -> dict[str, Any]:
        """Return the row of a complete night, by default the last.

        Raises UsageError if this night is not complete; the message says which nights are.
        """
        if as_of is None:
            return self.nights()[-1]
        with reading(self.engine) as conn:
            row = stored_nights.night(conn, self.market.name, as_of)
        if row is not None and row["status"] in COMPLETE:
            return row
        days = [night["as_of"] for night in self.nights()]
        raise UsageError(
            f"the night of {as_of} of {self.market.name} {_why_incomplete(row)}: "
            f"choose one of the complete nights from {days[0]} to {days[-1]}, {len(days)} in all"
        )

    def nights(self) -> list[dict[str, Any]]:
        """Return the rows of all complete nights, oldest first.

        Raises UsageError when there is none.
        """
        name = self.market.name
        with reading(self.engine) as conn:
            nights = conn.execute(stored_nights.night_log(name))
            newest_first = nights.mappings().all()
        complete = [dict(row) for row in reversed(newest_first) if row["status"] in COMPLETE]
        if not complete:
            command = f"dtml nightly {named_in_command(self.market)}"
            raise UsageError(f"no night of {name} is complete: run `{command}` first")
        return complete

    def device_for(self, computed_then: str | None) -> str:
        """Return the device on which to compute again what `computed_then` computed.

        `computed_then` is a text of `dtml.machine.computed_by`; None where none was recorded.
        """
        if self.device == "auto" and computed_then is not None and is_by_cpu(computed_then):
            return "cpu"
        return self.device

    def context(
        self, run: Mapping[str, Any], symbols: Iterable[str], computed_then: str | None
    ) -> MarketContext:
        """Return a market context with these stocks and the index of a run.

        The list and the index that the market has today do not matter. `computed_then` is what
        computed the predictions that are to be made again.
        """
        # `with_symbols` keeps the dates of listed stocks. Without a list, each of these stocks is a
        # constituent on every day.
        without_stocks = replace(market_then(self.market, run), constituents=())
        market = without_stocks.with_symbols(sorted(symbols))
        return MarketContext(
            market=market,
            source=StoredSource(self.engine, market),
            engine=self.engine,
            # A model predicts by the settings in its checkpoint. Of the market's present settings,
            # given here, only the limit on returns is used, and only to rank stocks again.
            experiment=experiment_for(market),
            device=self.device_for(computed_then),
            notice=None,
        )

    def of_night(
        self, night: Mapping[str, Any]
    ) -> tuple[MarketContext, dict[str, Any], pd.DataFrame]:
        """Return a market context, the row of the night's run, and its stored predictions.

        The context has the stocks that the night predicted or left out. A prediction is a row of
        `db.rows.predictions.night_directions`.
        """
        with reading(self.engine) as conn:
            run = runs.run(conn, night["run_id"])
            stored = stored_predictions.night_directions(conn, self.market.name, night["as_of"])
        symbols = stocks_of(night, stored["symbol"])
        return self.context(run, symbols, night["computed_by"]), run, stored

    def model(self, run: Mapping[str, Any]) -> Model:
        """Return the model of a run; its weights are loaded and checked only the first time.

        Raises DtmlError where they are lost or changed.
        """
        if run["id"] not in self.models:
            self.models[run["id"]] = load_run(self.context(run, [], run["computed_by"]), run)
        return self.models[run["id"]]

    def bars(
        self, context: MarketContext, model: Model, as_of: date, known_at: datetime
    ) -> pd.DataFrame:
        """Read the bars that a window ending at `as_of` can reach, as known at a moment.

        They are those of every symbol of the market in the store, not only of the context's stocks.
        The column `known_at` has the moment since which a bar is known.
        """
        first = first_needed(context, model.ensemble.windows, as_of)
        return read_bars(context, first, as_of, known_at)

    def again(
        self, context: MarketContext, model: Model, as_of: date, known_at: datetime
    ) -> tuple[pd.DataFrame, str]:
        """Predict the session after `as_of` again, from bars as known at a moment.

        Returns a row `symbol, FIGURES` for each stock, and the SHA-256 of the model's inputs. There
        is no row if the bars end before `as_of`. Raises DtmlError for too few bars.
        """
        bars = self.bars(context, model, as_of, known_at)
        tonight = night_windows(context, model, as_of, bars)
        predictions = predict_windows(context, model, tonight)
        return predictions[["symbol", *FIGURES]], tonight.digest


def _why_incomplete(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "was never run"
    if row["reason"]:
        return f"is {row['status']} ({row['reason']})"
    return f"is {row['status']}"


def market_then(market: Market, run: Mapping[str, Any]) -> Market:
    """Return the market with the index and the constituents that a run was trained on."""
    universe = run["universe"]
    constituents: list[Constituent] = []
    for symbol, since, until in universe["constituents"]:
        constituents.append(
            Constituent(
                symbol=symbol,
                source_symbol=symbol,  # the one of the source is not recorded, and nothing is asked
                since=date.fromisoformat(since) if since else None,
                until=date.fromisoformat(until) if until else None,
            )
        )
    index = replace(market.index, symbol=universe["index"])
    as_of = universe.get("as_of")
    return replace(
        market,
        index=index,
        constituents=tuple(constituents),
        constituents_as_of=date.fromisoformat(as_of) if as_of else market.constituents_as_of,
    )


def changed_since(market: Market, run: Mapping[str, Any]) -> str | None:
    """Say how the market's present index and list differ from those that a run was trained on.

    None where they do not differ. A market that takes its stocks from the prices has no list to
    compare.
    """
    then = market_then(market, run)
    changes: list[str] = []
    if then.index.symbol != market.index.symbol:
        changes.append(f"the index is {market.index.symbol}; it was {then.index.symbol}")
    if market.constituents:
        changes += _changes_of_list(then, market)
    return "; ".join(changes) or None


def _changes_of_list(then: Market, now: Market) -> list[str]:
    # A stay is a stock, its first day on the list and the first day after it. It may have several.
    stays_then = {(stay.symbol, stay.since, stay.until) for stay in then.constituents}
    stays_now = {(stay.symbol, stay.since, stay.until) for stay in now.constituents}
    new_symbols = {symbol for symbol, _, _ in stays_now - stays_then}
    old_symbols = {symbol for symbol, _, _ in stays_then - stays_now}
    joined = sorted(new_symbols - set(then.symbols))
    departed = sorted(old_symbols - set(now.symbols))
    # A stock that only lost one of several stays is among `old_symbols` alone.
    with_other_dates = sorted((new_symbols | old_symbols) - set(joined) - set(departed))
    changes: list[str] = []
    if joined:
        changes.append(f"{', '.join(joined)} joined")
    if departed:
        changes.append(f"{', '.join(departed)} left")
    if with_other_dates:
        changes.append(f"{', '.join(with_other_dates)} with other dates")
    return changes


def stocks_of(night: Mapping[str, Any], predicted: Iterable[str]) -> set[str]:
    """Return the stocks of a night: those it predicted, and those it left out."""
    left_out = {gap["symbol"] for gap in night["gaps"]}
    return set(predicted) | left_out


def made_by(run: Mapping[str, Any], machine: str) -> str:
    """Return in words what decides the last bits: this machine, and what trained the model.

    `machine` is the text of `dtml.machine.computed_by`.
    """
    trained_by = run["computed_by"]
    if trained_by is None:
        return f"{machine}; trained by dtml {run['code_version']}, the rest is not recorded"
    if trained_by == machine:
        return f"{machine}; trained by the same"
    return f"{machine}; trained by {trained_by}"


@dataclass(frozen=True)
class Replay:
    """Hold a night beside the result of running it again from bars as known at `known_at`.

    `predictions` has a row for each stock: `symbol`, `FIGURES` as stored, and the same figures with
    the prefix `replayed_`, as predicted again by `machine` (see `dtml.machine.computed_by`). A
    figure is missing where there is no prediction. `inputs_hash` is the SHA-256 of the model's
    inputs now. `failure` says why the stocks could not be predicted again, or why they could not be
    ranked again; None if neither failed. `ranking_difference` says what differs in the rankings of
    the stocks; None if nothing does, if the night ranked none, or after a failure. `link` is the
    number of the night's link in the market's chain, None if the night is not frozen.
    `changes_since_frozen` says in words what of the night has changed since.
    """

    night: Mapping[str, Any]
    run: Mapping[str, Any]
    known_at: datetime
    machine: str
    predictions: pd.DataFrame
    inputs_hash: str | None = None
    failure: str | None = None
    ranking_difference: RankingDifference | None = None
    link: int | None = None
    changes_since_frozen: tuple[str, ...] = ()

    @property
    def changes(self) -> str | None:
        """Return in words what computed the night, if that is not what computes here; else None."""
        return changes(self.night["computed_by"], self.machine)

    @property
    def inputs_equal(self) -> bool | None:
        """Return whether the model's inputs are the same as then; None when nothing was read."""
        if self.inputs_hash is None:
            return None
        return bool(self.night["inputs_hash"] == self.inputs_hash)

    @property
    def differing(self) -> pd.DataFrame:
        """Return the rows of `predictions` that are not the same to the last bit."""
        replayed = self.predictions[[f"replayed_{name}" for name in FIGURES]]
        equal = same(self.predictions[[*FIGURES]], replayed).all(axis=1)
        rows: pd.DataFrame = self.predictions[~np.asarray(equal)]
        return rows

    @property
    def largest(self) -> tuple[str, float]:
        """Return the stock whose probability differs most, and the absolute difference.

        A stock that has a probability on one side only comes first; its difference is NaN. At least
        one stock must be `differing`.
        """
        rows = self.differing
        difference = (rows["replayed_probability"] - rows["probability"]).abs()
        is_missing = difference.isna()
        if is_missing.any():
            place = is_missing.to_numpy().argmax()
        else:
            place = difference.to_numpy().argmax()
        return str(rows["symbol"].iloc[place]), float(difference.iloc[place])

    @property
    def is_rounding(self) -> bool:
        """Return whether figures differ, and all differences count as rounding.

        They do if they are within the tolerance, the inputs are the same, and another version or
        machine computed the night. False where the predictions or the ranking could not be made.
        """
        if self.failure is not None or not self.inputs_equal or self.changes is None:
            return False
        replayed = self.predictions[[f"replayed_{name}" for name in FIGURES]]
        has_close_figures = bool(close(self.predictions[[*FIGURES]], replayed).all())
        ranking = self.ranking_difference
        has_close_ranking = ranking is None or ranking.is_close
        return not self.is_equal and has_close_figures and has_close_ranking

    @property
    def is_frozen(self) -> bool:
        """Return whether the night is frozen and nothing of it has changed since."""
        return self.link is not None and not self.changes_since_frozen

    @property
    def is_equal(self) -> bool:
        """Return whether every figure, place and score is the same to the last bit."""
        return self.failure is None and self.differing.empty and self.ranking_difference is None

    @property
    def left_out(self) -> list[str]:
        """Return the stocks that the night left out, sorted."""
        return sorted(gap["symbol"] for gap in self.night["gaps"])

    @property
    def left_out_again(self) -> list[str]:
        """Return the stocks of the night that cannot be predicted again, sorted."""
        predicted = self.predictions.loc[self.predictions["replayed_probability"].notna(), "symbol"]
        return sorted({*self.predictions["symbol"], *self.left_out} - set(predicted))

    @property
    def reasons(self) -> list[str]:
        """Return what differs by more than rounding, in words; empty when nothing does."""
        if self.failure is not None:
            return [self.failure, *self.changes_since_frozen]
        reasons = [*self.changes_since_frozen]
        if not self.inputs_equal:
            reasons.append(
                f"inputs: the windows have SHA-256 {str(self.inputs_hash)[:12]}..., "
                f"but the night recorded {str(self.night['inputs_hash'])[:12]}...: "
                "stored prices or the calendar have changed since"
            )
        recorded = self.night["predictions"]
        has_stored = self.predictions["probability"].notna()
        stored = int(has_stored.sum())
        if recorded != stored:
            reasons.append(
                f"stored predictions: the night made {recorded}, but {stored} are stored"
            )
        if self.left_out != self.left_out_again:
            then = ", ".join(self.left_out) or "none"
            now = ", ".join(self.left_out_again) or "none"
            reasons.append(f"stocks left out: {then} then, {now} now")
        if self.is_rounding:
            return reasons
        reasons += self._differences()
        if self.ranking_difference is not None:
            reasons.append(str(self.ranking_difference))
        return reasons

    def _differences(self) -> list[str]:
        rows = self.differing
        if rows.empty:
            return []
        symbol, difference = self.largest
        most = f"most of all {symbol}, by {difference:.2g}"
        if np.isnan(difference):
            most = f"such as {symbol}, which was predicted only then or only now"
        differences = [f"predictions: {len(rows)} of {len(self.predictions)} differ, {most}"]
        if self.inputs_equal:
            cause = self.changes or "the versions, the processor and the device are the same"
            differences.append(f"stored rows may have changed since; {cause}")
        return differences


def replay_of(
    archive: Archive, night: Mapping[str, Any], known_at: datetime | None = None
) -> Replay:
    """Run a complete night again from the bars that it knew, or from those known at `known_at`.

    If its stocks cannot be predicted or ranked again, `failure` of the result says why.
    """
    context, run, stored = archive.of_night(night)
    moment = known_at or night["known_at"]
    again = pd.DataFrame({name: [] for name in ("symbol", *FIGURES)})  # if it cannot be predicted
    inputs_hash = None
    failure = None
    ranking_differs = None
    try:
        again, inputs_hash = archive.again(context, archive.model(run), night["as_of"], moment)
        ranking_differs = _ranking_difference(context, night, moment, again)
    except DtmlError as error:
        failure = str(error)
    replayed = again.rename(columns={name: f"replayed_{name}" for name in FIGURES})
    replayed = replayed.astype({"symbol": str})  # an empty column has another type
    predictions = stored[["symbol", *FIGURES]].merge(replayed, on="symbol", how="outer")
    return Replay(
        night=night,
        run=run,
        known_at=moment,
        machine=computed_by(choose_device(context.device)),
        predictions=predictions.sort_values("symbol", ignore_index=True),
        inputs_hash=inputs_hash,
        failure=failure,
        ranking_difference=ranking_differs,
    )


def _ranking_difference(
    context: MarketContext, night: Mapping[str, Any], moment: datetime, again: pd.DataFrame
) -> RankingDifference | None:
    """Rank a night's stocks again, from bars as known at `moment`, and return what differs.

    `again` are the predictions made again, whose probabilities rank stocks too. None where nothing
    differs, or where the night ranked no stocks.
    """
    target = night["target"]
    with reading(context.engine) as conn:
        stored = rankings.night_rankings(conn, context.name, first=target, last=target)
        if stored.empty:
            return None
        # A session that was ranked more than once has its newest ranking last. Every ranking names
        # the row of its rankers, so there is one: `or {}` is for the type checker alone.
        ranker = rankings.ranker(conn, stored["ranker_id"].iloc[-1])
        trained = load_trained(context, ranker or {})
    stored = stored[stored["ranker_id"] == trained.row["id"]]  # the newest ranking alone
    probabilities = again.set_index("symbol")["probability"]
    ranking = rank_night(Tonight(context, night["as_of"], moment), trained, probabilities)
    if ranking.empty:  # it has no columns then: the bars known at `moment` end before the night
        ranking = stored.iloc[:0]
    return ranking_difference(stored, ranking)


def restated_since(archive: Archive, replay: Replay) -> dict[str, int]:
    """Count the bars of the model's inputs that differ between the night and the replay.

    A bar is `new` if only the replay reads it, `gone` if only the night did, and `restated` if both
    do with another `known_at`: it has another version, or its neighbour was withdrawn meanwhile
    (`db.rows.prices.prices`).
    """
    symbols = {*replay.predictions["symbol"], *replay.left_out}
    # No device matters, as nothing is computed: the bars are only read.
    context = archive.context(replay.run, symbols, computed_then=None)
    then = _moments_of_bars(archive, context, replay, replay.night["known_at"])
    now = _moments_of_bars(archive, context, replay, replay.known_at)
    beside = pd.concat([then, now], axis=1, keys=["then", "now"])
    in_both = beside.dropna()
    is_restated = in_both["then"] != in_both["now"]
    return {
        "restated": int(is_restated.sum()),
        "new": int(beside["then"].isna().sum()),
        "gone": int(beside["now"].isna().sum()),
    }


def _moments_of_bars(
    archive: Archive, context: MarketContext, replay: Replay, moment: datetime
) -> "pd.Series[pd.Timestamp]":
    """Return the moment since which each bar of the model's inputs is known, by symbol and session.

    The bars are those known at `moment`, of the context's stocks and the index.
    """
    model = archive.model(replay.run)
    bars = archive.bars(context, model, replay.night["as_of"], moment)
    names = {*context.market.symbols, context.market.index.symbol}
    bars_of_inputs = bars[bars["symbol"].isin(names)]
    return bars_of_inputs.set_index(["symbol", "session"])["known_at"]


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Receipt:
    """Name a prediction: `RUN/SYMBOL/TARGET`."""

    run_id: str
    symbol: str
    target: date

    @classmethod
    def read(cls, text: str) -> "Receipt":
        """Parse a receipt in the form that the views show; raise UsageError for anything else."""
        try:
            run_id, rest = text.split("/", 1)
            symbol, day = rest.rsplit("/", 1)  # a symbol may hold a / as well
            return cls(run_id, symbol, date.fromisoformat(day))
        except ValueError as error:
            raise UsageError(
                f"{text!r} is not a receipt: write RUN/SYMBOL/TARGET, with a target such as "
                "2026-11-23, as in the column receipt of the view latest_prediction"
            ) from error

    def __str__(self) -> str:
        return f"{self.run_id}/{self.symbol}/{self.target}"


@dataclass(frozen=True)
class Reproduction:
    """Hold a stored prediction beside its reproduction.

    `prediction` is its stored row. `again` maps `FIGURES` to the reproduced values, or is None when
    the stock can no longer be predicted. `machine` is what computed it again, `computed_by` what
    computed it then (None: not recorded). `universe` says which stocks the model saw and how that
    is known, and `changed_since` how the market's index and list differ today, which changes
    nothing here. `night_hash` is the digest of the windows that the night recorded (None if it was
    not a night, or recorded none), `inputs_hash` that of the windows now.
    """

    receipt: Receipt
    run: Mapping[str, Any]
    machine: str
    computed_by: str | None
    prediction: Mapping[str, Any]
    again: Mapping[str, float] | None
    universe: str
    changed_since: str | None
    night_hash: str | None
    inputs_hash: str

    @property
    def config_digest(self) -> str:
        """Return the SHA-256 of the settings of the run."""
        settings = json.dumps(self.run["config"], sort_keys=True)
        return hashlib.sha256(settings.encode()).hexdigest()

    @property
    def changes(self) -> str | None:
        """Return in words what computed the prediction; None if the same computes here."""
        return changes(self.computed_by, self.machine)

    @property
    def differing(self) -> list[str]:
        """Return the figures that are not the same to the last bit; none if `again` is None."""
        again = self.again or {}
        return [name for name in again if not same(self.prediction[name], again[name])]

    @property
    def is_rounding(self) -> bool:
        """Return whether figures differ, and all differences count as rounding.

        They do if they are within the tolerance, and another version or machine computes now.
        """
        again = self.again or {}
        has_close_figures = all(close(self.prediction[name], again[name]) for name in again)
        return bool(self.differing) and has_close_figures and self.changes is not None

    @property
    def reasons(self) -> list[str]:
        """Return what differs by more than rounding, in words; empty when nothing does."""
        reasons: list[str] = []
        if self.night_hash is not None and self.night_hash != self.inputs_hash:
            reasons.append(
                f"inputs: SHA-256 {self.inputs_hash[:12]}..., "
                f"but the night recorded {self.night_hash[:12]}...: "
                "stored prices or the calendar have changed since"
            )
        if self.again is None:
            reasons.append(f"{self.receipt.symbol} cannot be predicted again from the stored bars")
            return reasons
        if self.differing and not self.is_rounding:
            first = self.differing[0]
            difference = abs(self.prediction[first] - self.again[first])
            reasons.append(
                f"{', '.join(self.differing)}: {first} {difference:.2g} apart; "
                f"{made_by(self.run, self.machine)}"
            )
        return reasons


def run_of(engine: Engine, receipt: Receipt) -> dict[str, Any]:
    """Return the row of a receipt's run.

    Raises StoreUsageError where the store has no such run, and UsageError for a run of the
    published experiment, which a night's code cannot reproduce.
    """
    with reading(engine) as conn:
        run = runs.run(conn, receipt.run_id)
    if run["kind"] == "benchmark":
        raise UsageError(
            f"{run['id']} is a run of the published experiment: "
            "its predictions come from the windows of a whole set, "
            f"so run `dtml benchmark {run['market']}` to make them again"
        )
    return run


def market_of(run: Mapping[str, Any], market_file: Path | None) -> Market:
    """Return the market of a run: one of the package, or the one that `market_file` describes.

    Raises UsageError for the file of another market.
    """
    name = run["market"]
    if market_file is not None and market_file.stem != name:
        raise UsageError(
            f"{market_file} describes another market: {run['id']} belongs to {name}, so leave "
            "out --market-file"
        )
    return read_market(name, market_file)


def reproduce(archive: Archive, receipt: Receipt, run: Mapping[str, Any]) -> Reproduction:
    """Predict again what a receipt names, from the bars that the prediction was made from.

    Raises StoreUsageError where the store has no such prediction, and DtmlError where the model's
    weights or the bars are lost.
    """
    name = archive.market.name
    target = pd.Timestamp(receipt.target)
    with reading(archive.engine) as conn:
        stored = predictions.predictions(conn, name, run_id=run["id"])
        on_target = stored[stored["target"] == target]
        rows_of_receipt = on_target[on_target["symbol"] == receipt.symbol]
        if rows_of_receipt.empty:
            raise StoreUsageError(_missing(receipt, stored))
        (prediction,) = records(rows_of_receipt)
        as_of = prediction["as_of"].date()
        night = nights.night(conn, name, as_of)
    # A model looks at all stocks of a night. A complete night recorded which these were; for any
    # other prediction they are that day's constituents, as the model's training recorded them.
    symbols = set(on_target["symbol"])
    night_hash = None
    computed_then = run["computed_by"]
    if night is not None and night["run_id"] == run["id"] and night["status"] in COMPLETE:
        symbols = stocks_of(night, symbols)
        universe = "as the night recorded them"
        night_hash = night["inputs_hash"]
        computed_then = night["computed_by"]
    else:
        listed = market_then(archive.market, run).constituents_on(as_of)
        symbols |= {stay.symbol for stay in listed}
        universe = "as its model's training recorded them"
    known_at = prediction["known_at"].to_pydatetime()
    context = archive.context(run, symbols, computed_then)
    reproduced, inputs_hash = archive.again(context, archive.model(run), as_of, known_at)
    reproduced = reproduced[reproduced["symbol"] == receipt.symbol]
    again: Mapping[str, float] | None = None
    if not reproduced.empty:
        (again,) = records(reproduced[list(FIGURES)])
    return Reproduction(
        receipt=receipt,
        run=run,
        machine=computed_by(choose_device(context.device)),
        computed_by=computed_then,
        prediction=prediction,
        again=again,
        universe=f"{len(symbols)} stocks, {universe}",
        changed_since=changed_since(archive.market, run),
        night_hash=night_hash,
        inputs_hash=inputs_hash,
    )


def _missing(receipt: Receipt, stored: pd.DataFrame) -> str:
    if stored.empty:
        return (
            f"there is no prediction {receipt}: run {receipt.run_id} has made none; the column "
            "receipt of prediction_history has all that are stored"
        )
    first = stored["target"].min().date()
    last = stored["target"].max().date()
    return (
        f"there is no prediction {receipt}: "
        f"{receipt.run_id} has {len(stored)}, for sessions {first} .. {last}; the column receipt "
        "of prediction_history has all that are stored"
    )


@dataclass(frozen=True)
class Retraining:
    """Hold the result of training a model again: its checkpoint's SHA-256, and what differs.

    `parameters` is the number of parameters, which are tensors of weights. `differing` maps the
    name of each that differs to its largest absolute difference. If the run's own weights are
    `lost`, `differing` is empty, and only the SHA-256 is compared; if that is the same, the
    checkpoint was `restored`.
    On a GPU some sums have no fixed order: weights within TOLERANCE of the run's count as equal.
    `first` is the first session trained on.
    """

    run: Mapping[str, Any]
    device: str
    machine: str
    checkpoint_hash: str
    parameters: int
    differing: Mapping[str, float]
    first: date
    lost: bool = False

    @property
    def restored(self) -> bool:
        """Return whether lost weights were reproduced to the last bit."""
        return self.lost and self.checkpoint_hash == self.run["checkpoint_hash"]

    @property
    def is_close(self) -> bool:
        """Return whether the weights differ, but no more than by the order of a GPU's sums."""
        if self.lost or self.device == "cpu":
            return False
        return 0 < max(self.differing.values(), default=0) <= TOLERANCE

    @property
    def reasons(self) -> list[str]:
        """Return what differs, in words; empty when all weights are the same to the last bit.

        Weights that are close on a GPU count as the same.
        """
        has_difference = self.lost or bool(self.differing)
        if self.restored or self.is_close or not has_difference:
            return []
        reasons = [
            (
                f"weights: those of {self.run['id']}, SHA-256 "
                f"{self.run['checkpoint_hash'][:12]}..., are lost, and training again gave "
                f"{self.checkpoint_hash[:12]}... instead ({made_by(self.run, self.machine)}): "
                "restore the checkpoint from a backup, train it again on the machine that trained "
                f"it first, or train a new model with `dtml train {self.run['market']}`"
            )
            if self.lost
            else self._differing_weights()
        ]
        if self.first != self.run["train_first"]:
            train_first = self.run["train_first"]
            reasons.append(f"trained from {self.first} on, but the run from {train_first} on")
        return reasons

    def _differing_weights(self) -> str:
        worst = max(self.differing, key=lambda name: self.differing[name])
        return (
            f"weights: {len(self.differing)} of {self.parameters} parameters differ, most of all "
            f"{worst}, by {self.differing[worst]:.2g} ({made_by(self.run, self.machine)})"
        )


def retrain(
    archive: Archive, run: Mapping[str, Any], on_epoch: EpochReport = no_report
) -> Retraining:
    """Train the model of a run again on the same bars and universe, and compare the weights.

    The training begins anew, not from a state that an interrupted one left. A checkpoint that is
    missing or damaged is restored if training gives the same weights; if not, `archive` predicts
    with the new ones from then on, without storing them. Raises UsageError for a run whose settings
    ask for warm starts, and DtmlError for one whose checkpoint would lie outside the folder of
    models, whose settings this version lacks, or whose bars are lost.
    """
    experiment = experiment_of(run)
    if experiment.warm_start:
        raise UsageError(
            f"{run['id']} cannot be trained again: it started from the weights of an earlier "
            "model, which the store does not name; leave out --retrain"
        )
    file = weights_file(run["checkpoint_path"])  # before the training: it may raise DtmlError
    stored_weights = _stored_weights(archive, run)
    market = market_then(archive.market, run)
    context = MarketContext(
        market=market,
        source=StoredSource(archive.engine, market),
        engine=archive.engine,
        experiment=experiment,
        device=archive.device_for(run["computed_by"]),
        notice=None,
    )
    as_of = run["train_last"]
    bars, _ = stored_bars(context, history_start(context, as_of), as_of, run["data_watermark"])
    with TemporaryDirectory() as folder:
        fitted = fit_bars(context, as_of, bars, Path(folder) / "training", on_epoch)
    sha = checkpoint_hash(fitted.ensemble)
    device = choose_device(context.device)
    # If the stored weights are lost, there is nothing to compare: no parameter differs.
    weights_then: Mapping[str, Tensor] = fitted.ensemble.weights
    if stored_weights is not None:
        weights_then = stored_weights
    elif sha == run["checkpoint_hash"]:
        save_ensemble(fitted.ensemble, file, write_whole)
    else:
        archive.models[run["id"]] = Model(run, fitted.ensemble, fitted.calibration)
    return Retraining(
        run=run,
        device=device.type,
        machine=computed_by(device),
        checkpoint_hash=sha,
        parameters=len(weights_then),
        differing=_differences(weights_then, fitted.ensemble.weights),
        first=fitted.first,
        lost=stored_weights is None,
    )


def _differences(then: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> dict[str, float]:
    differences: dict[str, float] = {}
    for name, weights in then.items():
        if not torch.equal(weights, now[name]):
            change = weights - now[name]
            differences[name] = float(change.abs().max())
    return differences


def _stored_weights(archive: Archive, run: Mapping[str, Any]) -> Mapping[str, Tensor] | None:
    try:
        return archive.model(run).ensemble.weights
    except DtmlError as error:
        log.warning(
            "the model of %s is trained again, as its weights cannot be used (%s)", run["id"], error
        )
        return None
