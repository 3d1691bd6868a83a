"""Replay past nights and single predictions, and train models again.

A night is replayed from the bars that it knew, a prediction from its receipt `RUN/SYMBOL/TARGET`.
Every difference is reported; where another version or processor computed it, those within
`ROUNDING` count as rounding.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sqlalchemy import Engine

from db.engine import open_reader, reading
from db.errors import StoreUsageError
from db.read import query, read, read_row, selection
from db.rows import nights, runs
from db.rows.nights import COMPLETE
from dtml.checkpoints import checkpoint_hash, save_ensemble
from dtml.errors import DtmlError, UsageError
from dtml.machine import changes, computed_by, is_by_cpu
from dtml.markets import Constituent, Market
from dtml.self_test import TOLERANCE
from dtml.training import EpochReport, no_report
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
from flows.nightly.predict import first_needed, predict
from flows.nightly.ranking import load_trained, rank
from flows.nightly.train import Model, fit_bars, load_run
from flows.settings import weights_file

log = logging.getLogger(__name__)

# Largest difference between two figures that count as close. Probabilities are computed in float32,
# whose spacing below 1 is 6e-8: this leaves room for the rounding of some twenty sums.
ROUNDING = 1e-6
FIGURES = ("probability", "probability_std", "calibrated", "lowest", "highest", "rising_share")


def within(tolerance: float, stored: ArrayLike, again: ArrayLike) -> NDArray[np.bool_]:
    """Return, for each figure, whether both differ by at most this; NaN equals NaN."""
    then, now = np.asarray(stored, dtype=float), np.asarray(again, dtype=float)
    return np.asarray(np.isclose(then, now, rtol=0, atol=tolerance, equal_nan=True))


@dataclass(frozen=True)
class RankingDifference:
    """How many stocks of a night's rankings have another place or score, and of how many.

    A stock counts once for each predictor. `is_close` says that scores differ by at most ROUNDING
    (relative to a score beyond 1 or -1), and that only stocks with such close scores changed
    places.
    """

    differing: int
    total: int
    is_close: bool

    def __str__(self) -> str:
        return f"ranking: {self.differing} of {self.total} places and scores differ"


def ranking_difference(stored: pd.DataFrame, again: pd.DataFrame) -> RankingDifference | None:
    """Return how two frames `predictor, symbol, score, place` of one night differ, or None.

    A stock that one of them lacks differs, and is not close.
    """
    beside = stored.merge(again, on=["predictor", "symbol"], how="outer", suffixes=("", "_again"))
    is_same = within(0, beside[["score", "place"]], beside[["score_again", "place_again"]])
    differing = int((~is_same.all(axis=1)).sum())
    if differing == 0:
        return None
    # The stored score of each stock must be close to its new score, and to the stored score of the
    # stock that had its new place: then the two could change places by rounding alone.
    places = stored[["predictor", "place", "score"]].set_axis(
        ["predictor", "place_again", "score_of_place"], axis=1
    )
    beside = beside.merge(places, on=["predictor", "place_again"], how="left")
    others = beside[["score_again", "score_of_place"]]
    scale = beside["score"].abs().clip(lower=1)
    apart = others.sub(beside["score"], axis=0).abs().div(scale, axis=0)  # NaN if only one has it
    is_close = bool((apart <= ROUNDING).all(axis=None))
    return RankingDifference(differing=differing, total=len(beside), is_close=is_close)


class NotReplayedError(DtmlError):
    """Say that a past prediction differs when it is made again, or cannot be made again."""


@dataclass
class Archive:
    """Read the past of a market: nights, bars as known at any moment, models. Never writes.

    `device`: cpu, cuda, or auto for the kind that computed then.
    """

    engine: Engine
    market: Market
    device: str = "auto"
    models: dict[str, Model] = field(default_factory=dict)

    @classmethod
    def open(cls, request: RunRequest) -> "Archive":
        """Open the past of the market that a run request names, in an existing store."""
        market = read_market(request.market, request.market_file)
        return cls(engine=open_reader(), market=market, device=request.device)

    def night(self, as_of: date | None) -> dict[str, Any]:
        """Return a complete night's row, by default the last; UsageError names those there are."""
        complete = self.nights()
        if as_of is None:
            return complete[-1]
        named = next((row for row in complete if row["as_of"] == as_of), None)
        if named is not None:
            return named
        with reading(self.engine) as conn:
            stored = nights.night(conn, self.market.name, as_of)
        why = "was never run" if stored is None else f"is {stored['status']} ({stored['reason']})"
        raise UsageError(
            f"the night of {as_of} of {self.market.name} {why}: choose one of the complete nights "
            f"from {complete[0]['as_of']} to {complete[-1]['as_of']}, {len(complete)} in all"
        )

    def nights(self) -> list[dict[str, Any]]:
        """Return the rows of all complete nights, oldest first; raises UsageError without any."""
        name = self.market.name
        with reading(self.engine) as conn:
            newest_first = (
                conn.execute(selection("night_log", market=name, order="-as_of")).mappings().all()
            )
        complete = [dict(row) for row in reversed(newest_first) if row["status"] in COMPLETE]
        if not complete:
            command = f"dtml nightly {named_in_command(self.market)}"
            raise UsageError(f"no night of {name} is complete: run `{command}` first")
        return complete

    def device_for(self, computed_then: str | None) -> str:
        """Return the device on which to compute again what `computed_by` then named, or None."""
        if self.device != "auto" or computed_then is None:
            return self.device
        if is_by_cpu(computed_then):
            return "cpu"
        return "cuda" if torch.cuda.is_available() else "auto"

    def context(
        self, run: Mapping[str, Any], symbols: Iterable[str], computed_then: str | None
    ) -> MarketContext:
        """Return a context with these stocks and a run's index, whatever the list says today."""
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

    def model(self, run: Mapping[str, Any]) -> Model:
        """Return a run's model, loaded once; raises DtmlError for lost or changed weights."""
        if run["id"] not in self.models:
            self.models[run["id"]] = load_run(self.context(run, [], run["computed_by"]), run)
        return self.models[run["id"]]

    def tonight(
        self, night: Mapping[str, Any], known_at: datetime | None = None
    ) -> tuple[Tonight, pd.DataFrame]:
        """Return a past night, by default with bars as it knew them, and its stored
        `night_directions`.

        Its stocks are those that it predicted or left out.
        """
        with reading(self.engine) as conn:
            run = runs.run(conn, night["run_id"])
            stored = query(conn, "night_directions", market=self.market.name, as_of=night["as_of"])
        stocks = {*stored["symbol"], *(gap["symbol"] for gap in night["gaps"])}
        context = self.context(run, stocks, night["computed_by"])
        tonight = Tonight(context, night["as_of"], known_at or night["known_at"])
        tonight.row, tonight.run = night, run
        return tonight, stored


def market_then(market: Market, run: Mapping[str, Any]) -> Market:
    """Return the market with the index and the constituents that a run was trained on."""
    universe = run["universe"]
    constituents = [
        Constituent(
            symbol=symbol,
            source_symbol=symbol,  # the one of the source is not recorded, and nothing is asked
            since=date.fromisoformat(since) if since else None,
            until=date.fromisoformat(until) if until else None,
        )
        for symbol, since, until in universe["constituents"]
    ]
    as_of = universe.get("as_of")
    return replace(
        market,
        index=replace(market.index, symbol=universe["index"]),
        constituents=tuple(constituents),
        constituents_as_of=date.fromisoformat(as_of) if as_of else market.constituents_as_of,
    )


def changed_since(market: Market, run: Mapping[str, Any]) -> str | None:
    """Say how the market's index and list differ from those of a run, None where they do not.

    Stocks taken from prices have no list.
    """
    then = market_then(market, run)
    said = []
    if then.index.symbol != market.index.symbol:
        said.append(f"the index is {market.index.symbol}; it was {then.index.symbol}")
    if market.constituents:
        # A stock may have several stays, of which it may have lost one.
        stays = [
            {(stay.symbol, stay.since, stay.until) for stay in each.constituents}
            for each in (then, market)
        ]
        changed = {symbol for symbol, _, _ in stays[0] ^ stays[1]}
        joined = changed - set(then.symbols)
        departed = changed - set(market.symbols)
        for symbols, what in (
            (joined, "joined"),
            (departed, "left"),
            (changed - joined - departed, "with other dates"),
        ):
            if symbols:
                said.append(f"{', '.join(sorted(symbols))} {what}")
    return "; ".join(said) or None


def made_by(run: Mapping[str, Any], machine: str) -> str:
    """Return in words what decides the last bits: this `machine`, and what trained the model."""
    trained_by = run["computed_by"]
    if trained_by is None:
        return f"{machine}; trained by dtml {run['code_version']}, the rest is not recorded"
    return f"{machine}; trained by {'the same' if trained_by == machine else trained_by}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Stored predictions of one session beside the same predictions made again.

    `predictions`: `symbol`, `FIGURES` as stored, and with the prefix `replayed_` as predicted by
    `machine` from bars known at `known_at`; missing without a prediction. `computed_by` then,
    `recorded_hash` of the inputs then and `inputs_hash` now (SHA-256) are None where not recorded
    or read.
    """

    run: Mapping[str, Any]
    known_at: datetime
    computed_by: str | None
    machine: str
    predictions: pd.DataFrame
    recorded_hash: str | None
    inputs_hash: str | None

    @property
    def changes(self) -> str | None:
        """Return in words what computed them, if that is not what computes here; else None."""
        return changes(self.computed_by, self.machine)

    @property
    def inputs_equal(self) -> bool | None:
        """Return whether the model's inputs are the same as then; None when nothing was read."""
        return None if self.inputs_hash is None else self.recorded_hash == self.inputs_hash

    def are_within(self, tolerance: float) -> NDArray[np.bool_]:
        """Return whether each figure is this close, or missing in both, [stocks FIGURES]."""
        again = self.predictions[[f"replayed_{name}" for name in FIGURES]]
        return within(tolerance, self.predictions[[*FIGURES]], again)

    @property
    def inputs_reasons(self) -> list[str]:
        """Return how the model's inputs differ, in words."""
        if self.inputs_equal or self.recorded_hash is None:
            return []
        return [
            f"inputs: the windows have SHA-256 {str(self.inputs_hash)[:12]}..., "
            f"but the night recorded {self.recorded_hash[:12]}...: "
            "stored prices or the calendar have changed since"
        ]


@dataclass(frozen=True, kw_only=True)
class Replay(Comparison):
    """A night beside the result of running it again.

    `failure` says why stocks could not be predicted or ranked again. `ranking_difference` is None
    where nothing differs or could be ranked. `link` is the night's in the market's chain;
    `changes_since_frozen` in words.
    """

    night: Mapping[str, Any]
    failure: str | None = None
    ranking_difference: RankingDifference | None = None
    link: int | None = None
    changes_since_frozen: tuple[str, ...] = ()

    @cached_property
    def differing(self) -> pd.DataFrame:
        """Return the rows of `predictions` that are not the same to the last bit."""
        is_same = self.are_within(0).all(axis=1)
        rows: pd.DataFrame = self.predictions[~np.asarray(is_same)]
        return rows

    @property
    def largest(self) -> tuple[str, float]:
        """Return the stock whose probability differs most, and by how much; missing: NaN, first."""
        rows = self.differing
        difference = (rows["replayed_probability"] - rows["probability"]).abs().to_numpy()
        place = difference.argmax()  # of NaN, the first
        return str(rows["symbol"].iloc[place]), float(difference[place])

    @property
    def is_rounding(self) -> bool:
        """Return whether all differences count as rounding.

        Within the tolerance, of the same inputs, by another version or machine.
        """
        if self.failure is not None or not self.inputs_equal or self.changes is None:
            return False
        is_close = self.ranking_difference is None or self.ranking_difference.is_close
        return not self.is_equal and is_close and bool(self.are_within(ROUNDING).all())

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
        reasons = [*self.changes_since_frozen, *self.inputs_reasons]
        recorded = self.night["predictions"]
        stored = int(self.predictions["probability"].notna().sum())
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
        if len(self.differing):
            symbol, difference = self.largest
            most = f"most of all {symbol}, by {difference:.2g}"
            if np.isnan(difference):
                most = f"such as {symbol}, which was predicted only then or only now"
            reasons.append(
                f"predictions: {len(self.differing)} of {len(self.predictions)} differ, {most}"
            )
            if self.inputs_equal:
                cause = self.changes or "the versions, the processor and the device are the same"
                reasons.append(f"stored rows may have changed since; {cause}")
        if self.ranking_difference is not None:
            reasons.append(str(self.ranking_difference))
        return reasons


def replay_of(
    archive: Archive, night: Mapping[str, Any], known_at: datetime | None = None
) -> Replay:
    """Run a complete night again from the bars that it knew, or from those known at `known_at`."""
    tonight, stored = archive.tonight(night, known_at)
    forecast = None
    failure = None
    difference = None
    try:
        tonight.model = archive.model(tonight.run)
        predict(tonight)
        forecast = tonight.forecast
        difference = _rank_again(tonight)
    except DtmlError as error:
        failure = str(error)
    return Replay(
        run=tonight.run,
        known_at=known_at or night["known_at"],
        computed_by=night["computed_by"],
        machine=computed_by(tonight.context.place),
        predictions=_beside(stored, None if forecast is None else forecast.predictions),
        recorded_hash=night["inputs_hash"],
        inputs_hash=None if forecast is None else forecast.windows.digest,
        night=night,
        failure=failure,
        ranking_difference=difference,
    )


def _beside(stored: pd.DataFrame, again: pd.DataFrame | None) -> pd.DataFrame:
    """Return `Comparison.predictions`, of stored predictions and the same made again, if any."""
    if again is None:
        again = pd.DataFrame({name: [] for name in ("symbol", *FIGURES)})
    replayed = again[["symbol", *FIGURES]].rename(
        columns={name: f"replayed_{name}" for name in FIGURES}
    )
    replayed = replayed.astype({"symbol": str})  # an empty column has another type
    both = stored[["symbol", *FIGURES]].merge(replayed, on="symbol", how="outer")
    return both.sort_values("symbol", ignore_index=True)


def _rank_again(tonight: Tonight) -> RankingDifference | None:
    """Rank a night's stocks again by their rankers; return what differs, or None."""
    context, target = tonight.context, tonight.row["target"]
    with reading(context.engine) as conn:
        stored = read(
            conn,
            "stock_rank",
            market=context.name,
            target=target,
            order="target, made_at, predictor, place",
        )
        if stored.empty:
            return None
        # A session that was ranked more than once has its newest ranking last. Every ranking names
        # the row of its rankers, so there is one: `or {}` is for the type checker alone.
        ranker = read_row(conn, "ranker", id=stored["ranker_id"].iloc[-1]) or {}
    stored = stored[stored["ranker_id"] == ranker["id"]]  # the newest ranking alone
    tonight.rankers = load_trained(context, ranker)
    rank(tonight)
    # The ranking has no columns where the bars known at the moment end before the night.
    return ranking_difference(stored, stored[:0] if tonight.ranking.empty else tonight.ranking)


def restated_since(archive: Archive, replay: Replay) -> dict[str, int]:
    """Count the bars of the model's inputs that differ between the night and the replay.

    `new`, `gone`, or `restated`: with another `known_at` (`db.rows.prices.prices`).
    """
    tonight, _ = archive.tonight(replay.night)
    context = tonight.context
    as_of = replay.night["as_of"]
    first = first_needed(context, archive.model(replay.run).ensemble.windows, as_of)
    known = {}
    for name, moment in (("then", replay.night["known_at"]), ("now", replay.known_at)):
        bars = read_bars(context, first, as_of, moment)
        is_input = bars["symbol"].isin([*context.market.symbols, context.market.index.symbol])
        known[name] = bars[is_input].set_index(["symbol", "session"])["known_at"]
    beside = pd.concat(known, axis=1)
    in_both = beside.dropna()
    return {
        "restated": int((in_both["then"] != in_both["now"]).sum()),
        "new": int(beside["then"].isna().sum()),
        "gone": int(beside["now"].isna().sum()),
    }


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


@dataclass(frozen=True, kw_only=True)
class Reproduction(Comparison):
    """A stored prediction beside its reproduction, the one row of `predictions`.

    `universe`: which stocks the model saw, and how that is known; `changed_since`: how the market's
    index and list differ today.
    """

    receipt: Receipt
    universe: str
    changed_since: str | None

    @property
    def again(self) -> dict[str, float]:
        """Return the figures made again; all are NaN if the stock can no longer be predicted."""
        return {name: float(self.predictions[f"replayed_{name}"].iloc[0]) for name in FIGURES}

    @property
    def is_made(self) -> bool:
        """Return whether the stock could be predicted again."""
        return not np.isnan(self.again["probability"])

    @property
    def config_digest(self) -> str:
        """Return the SHA-256 of the settings of the run."""
        settings = json.dumps(self.run["config"], sort_keys=True)
        return hashlib.sha256(settings.encode()).hexdigest()

    @property
    def differing(self) -> list[str]:
        """Return the figures that are not the same to the last bit."""
        (is_same,) = self.are_within(0)
        return [name for name, same in zip(FIGURES, is_same, strict=True) if not same]

    @property
    def is_rounding(self) -> bool:
        """Return whether figures differ, all within tolerance, by another version or machine."""
        is_close = bool(self.are_within(ROUNDING).all())
        return bool(self.differing) and is_close and self.changes is not None

    @property
    def reasons(self) -> list[str]:
        """Return what differs by more than rounding, in words; empty when nothing does."""
        reasons = self.inputs_reasons
        if not self.is_made:
            reasons.append(f"{self.receipt.symbol} cannot be predicted again from the stored bars")
        elif self.differing and not self.is_rounding:
            first = self.differing[0]
            difference = abs(self.predictions[first].iloc[0] - self.again[first])
            reasons.append(
                f"{', '.join(self.differing)}: {first} {difference:.2g} apart; "
                f"{made_by(self.run, self.machine)}"
            )
        return reasons


def run_of(engine: Engine, receipt: Receipt) -> dict[str, Any]:
    """Return the row of a receipt's run.

    Raises StoreUsageError for an unknown run, UsageError for one of the published experiment.
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
    """Return a run's market, the package's or `market_file`'s; UsageError for another's."""
    name = run["market"]
    if market_file is not None and market_file.stem != name:
        raise UsageError(
            f"{market_file} describes another market: {run['id']} belongs to {name}, so leave "
            "out --market-file"
        )
    return read_market(name, market_file)


def reproduce(archive: Archive, receipt: Receipt, run: Mapping[str, Any]) -> Reproduction:
    """Predict again what a receipt names, from the bars that the prediction was made from.

    Raises StoreUsageError for an unknown prediction, DtmlError for lost weights or bars.
    """
    name = archive.market.name
    with reading(archive.engine) as conn:
        stored = read(
            conn, "prediction", market=name, run_id=run["id"], order="target, symbol, made_at"
        )
        on_target = stored[stored["target"] == pd.Timestamp(receipt.target)]
        named = on_target[on_target["symbol"] == receipt.symbol]
        if named.empty:
            raise StoreUsageError(_missing(receipt, stored))
        as_of = named["as_of"].iloc[0].date()
        known_at = named["known_at"].iloc[0].to_pydatetime()
        night = nights.night(conn, name, as_of)
    # A model looks at all stocks of a night. A complete night recorded which these were; for any
    # other prediction they are that day's constituents, as the model's training recorded them.
    if night is not None and night["run_id"] == run["id"] and night["status"] in COMPLETE:
        tonight, _ = archive.tonight(night, known_at)
        universe = "as the night recorded them"
        recorded_hash, computed_then = night["inputs_hash"], night["computed_by"]
    else:
        listed = market_then(archive.market, run).constituents_on(as_of)
        symbols = {*on_target["symbol"], *(stay.symbol for stay in listed)}
        universe = "as its model's training recorded them"
        recorded_hash, computed_then = None, run["computed_by"]
        tonight = Tonight(archive.context(run, symbols, computed_then), as_of, known_at)
    tonight.model = archive.model(run)
    predict(tonight)
    again = tonight.forecast.predictions
    return Reproduction(
        run=run,
        known_at=known_at,
        computed_by=computed_then,
        machine=computed_by(tonight.context.place),
        predictions=_beside(named, again[again["symbol"] == receipt.symbol]),
        recorded_hash=recorded_hash,
        inputs_hash=tonight.forecast.windows.digest,
        receipt=receipt,
        universe=f"{len(tonight.context.market.symbols)} stocks, {universe}",
        changed_since=changed_since(archive.market, run),
    )


def _missing(receipt: Receipt, stored: pd.DataFrame) -> str:
    made = f"run {receipt.run_id} has made none"
    if len(stored):
        first, last = stored["target"].min().date(), stored["target"].max().date()
        made = f"{receipt.run_id} has {len(stored)}, for sessions {first} .. {last}"
    return (
        f"there is no prediction {receipt}: {made}; the column receipt of prediction_history has "
        "all that are stored"
    )


@dataclass(frozen=True)
class Retraining:
    """A model trained again: its checkpoint's SHA-256, and what differs.

    `differing`: the largest absolute difference of each of the `parameters` tensors; on a GPU
    within TOLERANCE is equal. With `lost` weights only the SHA-256 is compared, and the checkpoint
    perhaps `restored`. `first` is the first session trained on.
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
        """Return what differs, in words; empty where all weights are equal, or close on a GPU."""
        by = made_by(self.run, self.machine)
        if self.lost and not self.restored:
            reason = (
                f"weights: those of {self.run['id']}, SHA-256 "
                f"{self.run['checkpoint_hash'][:12]}..., are lost, and training again gave "
                f"{self.checkpoint_hash[:12]}... instead ({by}): restore the checkpoint from a "
                "backup, train it again on the machine that trained it first, or train a new model "
                f"with `dtml train {self.run['market']}`"
            )
        elif self.differing and not self.is_close:
            worst = max(self.differing, key=lambda name: self.differing[name])
            reason = (
                f"weights: {len(self.differing)} of {self.parameters} parameters differ, most of "
                f"all {worst}, by {self.differing[worst]:.2g} ({by})"
            )
        else:
            return []
        if self.first == self.run["train_first"]:
            return [reason]
        train_first = self.run["train_first"]
        return [reason, f"trained from {self.first} on, but the run from {train_first} on"]


def retrain(
    archive: Archive, run: Mapping[str, Any], on_epoch: EpochReport = no_report
) -> Retraining:
    """Train the model of a run again on the same bars and universe, and compare the weights.

    The training begins anew. A missing or damaged checkpoint is restored by equal weights; if they
    differ, `archive` predicts with the new ones. Raises UsageError for warm starts, DtmlError for a
    checkpoint outside the folder of models, unknown settings or lost bars.
    """
    experiment = experiment_of(run)
    if experiment.warm_start:
        raise UsageError(
            f"{run['id']} cannot be trained again: it started from the weights of an earlier "
            "model, which the store does not name; leave out --retrain"
        )
    file = weights_file(run["checkpoint_path"])  # before the training: it may raise DtmlError
    stored = None
    try:
        stored = archive.model(run).ensemble.weights
    except DtmlError as error:
        log.warning(
            "the model of %s is trained again, as its weights cannot be used (%s)", run["id"], error
        )
    as_then = archive.context(run, [], run["computed_by"])
    context = replace(as_then, market=market_then(archive.market, run), experiment=experiment)
    as_of = run["train_last"]
    bars, _ = stored_bars(context, history_start(context, as_of), as_of, run["data_watermark"])
    with TemporaryDirectory() as folder:
        fitted = fit_bars(context, as_of, bars, Path(folder) / "training", on_epoch)
    weights = fitted.ensemble.weights
    sha = checkpoint_hash(fitted.ensemble)
    if stored is None and sha == run["checkpoint_hash"]:
        save_ensemble(fitted.ensemble, file)
    elif stored is None:
        archive.models[run["id"]] = Model(run, fitted.ensemble, fitted.calibration)
    apart = {
        name: float((then - weights[name]).abs().max()) for name, then in (stored or {}).items()
    }
    device = context.place
    return Retraining(
        run=run,
        device=device.type,
        machine=computed_by(device),
        checkpoint_hash=sha,
        parameters=len(weights),
        differing={name: most for name, most in apart.items() if most != 0},
        first=fitted.first,
        lost=stored is None,
    )
