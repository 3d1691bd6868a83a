"""Train the model of a run again from the bars that it knew, and compare the weights, to the last bit."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from dtml.checkpoints import Ensemble, checkpoint_hash, save_ensemble
from dtml.errors import DtmlError, UsageError
from dtml.inference import choose_device
from dtml.training.fit import EpochReport, no_report
from dtml.training.self_test import TOLERANCE
from flows.nightly.context import MarketContext, StoredSource, experiment_of, stored_bars
from flows.nightly.fetch import history_start
from flows.nightly.train import Model, fit_bars
from flows.replay.archive import Archive, made_by, market_then
from flows.settings import data_folder
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retraining:
    """Hold a model trained again: its checkpoint's SHA-256, and the largest difference of each parameter that differs.

    If the run's own weights are lost, no difference is known but that of the SHA-256. Where there is none, the
    checkpoint was `restored`. On a GPU some sums have no fixed order: weights within TOLERANCE of the run's are equal.
    """

    run: Mapping[str, Any]
    device: str
    checkpoint_hash: str
    parameters: int
    differing: Mapping[str, float]
    first: date
    lost: bool = False

    @property
    def restored(self) -> bool:
        """Return whether lost weights came out as they were."""
        return self.lost and self.checkpoint_hash == self.run["checkpoint_hash"]

    @property
    def is_close(self) -> bool:
        """Return whether weights differ on a GPU, by no more than the order of its sums may change them."""
        return not self.lost and self.device != "cpu" and 0 < max(self.differing.values(), default=0) <= TOLERANCE

    @property
    def reasons(self) -> list[str]:
        """Say in words what differs; return nothing when all weights are the same to the last bit."""
        if self.restored or not (self.lost or self.differing) or self.is_close:
            return []
        computed = made_by(self.run, self.device)
        if self.lost:
            then, now = (f"{each[:12]}..." for each in (self.run["checkpoint_hash"], self.checkpoint_hash))
            lost = f"those of {self.run['id']}, SHA-256 {then}, are lost, and trained again they are {now} ({computed})"
            other = f"train it again on the machine that did, or go on with new ones: `dtml train {self.run['market']}`"
            said = [f"weights: {lost}: restore its checkpoint from a backup, {other}"]
        else:
            worst = max(self.differing, key=lambda name: self.differing[name])
            by = f"most {worst} by {self.differing[worst]:.2g}"
            said = [f"weights: {len(self.differing)} of {self.parameters} parameters differ, {by} ({computed})"]
        if self.first != self.run["train_first"]:
            said.append(f"trained from {self.first} on, the run from {self.run['train_first']}")
        return said


def retrain(archive: Archive, run: Mapping[str, Any], on_epoch: EpochReport = no_report) -> Retraining:
    """Train the model of a run again, in a temporary folder, on the bars and the universe that it knew, and compare.

    A checkpoint that is missing or damaged is restored if training gives the same weights; if not, the archive predicts
    with the new ones. Raises UsageError for a run that began with another's weights.
    """
    experiment = experiment_of(run)
    if experiment.warm_start:
        raise UsageError(f"{run['id']} went on from the weights of the model before, which its row does not name")
    kept = _kept(archive, run)
    market = market_then(archive.market, run)
    source = StoredSource(archive.engine, market)
    context = MarketContext(market, source, archive.engine, experiment, archive.device, None)
    as_of = run["train_last"]
    bars, _ = stored_bars(context, history_start(context, as_of), as_of, run["data_watermark"])
    with TemporaryDirectory() as folder:
        fitted = fit_bars(context, as_of, bars, Path(folder) / "training", on_epoch)
    sha = checkpoint_hash(fitted.ensemble)
    if kept is None and sha == run["checkpoint_hash"]:
        save_ensemble(fitted.ensemble, data_folder() / run["checkpoint_path"], write_whole)
    elif kept is None:
        archive.models[run["id"]] = Model(run["id"], fitted.ensemble, fitted.calibration)
    then, now = (kept or fitted.ensemble).weights, fitted.ensemble.weights
    both = ((name, then[name], now[name]) for name in then)
    differing = {name: float((one - two).abs().max()) for name, one, two in both if not torch.equal(one, two)}
    device = choose_device(archive.device).type
    return Retraining(run, device, sha, len(then), differing, fitted.first, lost=kept is None)


def _kept(archive: Archive, run: Mapping[str, Any]) -> Ensemble | None:
    """Return the weights of a run; None when they are lost."""
    try:
        return archive.model(run).ensemble
    except DtmlError as error:
        log.warning("%s; training it again", error)
        return None
