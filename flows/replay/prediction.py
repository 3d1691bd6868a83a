"""Reproduce one prediction from its receipt, or train again the model that made it.

A receipt names a prediction: `RUN/SYMBOL/TARGET`. Every difference is reported, to the last bit.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from sqlalchemy import Engine
from torch import Tensor

from db.engine import reading
from db.errors import StoreUsageError
from db.rows import nights, predictions, runs
from db.rows.nights import COMPLETE
from dtml.checkpoints import checkpoint_hash, save_ensemble
from dtml.errors import DtmlError, UsageError
from dtml.inference import choose_device
from dtml.machine import changes, computed_by
from dtml.markets import Market
from dtml.pages.figures import records
from dtml.training.fit import EpochReport, no_report
from dtml.training.self_test import TOLERANCE
from flows.markets.files import read_market
from flows.markets.opened import StoredSource
from flows.nightly.context import MarketContext, experiment_of, stored_bars
from flows.nightly.fetch import history_start
from flows.nightly.train import Model, fit_bars
from flows.replay.archive import (
    FIGURES,
    Archive,
    changed_since,
    made_by,
    market_then,
    stocks_of,
)
from flows.replay.closeness import close, same
from flows.settings import weights_file
from translation.atomic_files import write_whole

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
    """Return the message that a run made no such prediction, and which ones it made."""
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
        """Say how many parameters differ, and which most."""
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
        archive.models[run["id"]] = Model(run["id"], fitted.ensemble, fitted.calibration)
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
    """Return the largest absolute difference of each parameter that differs."""
    differences: dict[str, float] = {}
    for name, weights in then.items():
        if not torch.equal(weights, now[name]):
            change = weights - now[name]
            differences[name] = float(change.abs().max())
    return differences


def _stored_weights(archive: Archive, run: Mapping[str, Any]) -> Mapping[str, Tensor] | None:
    """Return the weights of a run; None, with a warning, when they are lost."""
    try:
        return archive.model(run).ensemble.weights
    except DtmlError as error:
        log.warning(
            "the model of %s is trained again, as its weights cannot be used (%s)", run["id"], error
        )
        return None
