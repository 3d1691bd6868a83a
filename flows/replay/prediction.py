"""Make one prediction, or the model that made it, again from its receipt, and
say what differs, to the last bit.
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

from db.engine import reading
from db.errors import StoreUsageError
from db.rows import nights, predictions, runs
from db.rows.nights import COMPLETE
from dtml.checkpoints import Ensemble, checkpoint_hash, save_ensemble
from dtml.errors import DtmlError, UsageError
from dtml.inference import choose_device
from dtml.markets import Market
from dtml.pages.figures import records
from dtml.training.fit import EpochReport, no_report
from dtml.training.self_test import TOLERANCE
from flows.market_files import read_market
from flows.nightly.context import MarketContext, StoredSource, experiment_of, stored_bars
from flows.nightly.fetch import history_start
from flows.nightly.train import Model, fit_bars
from flows.replay.archive import (
    FIGURES,
    Archive,
    changed_since,
    made_by,
    market_then,
    same,
    stocks_of,
)
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
        """Read it as the views show it; raise UsageError for anything else."""
        try:
            run_id, symbol, day = text.split("/")
            return cls(run_id, symbol, date.fromisoformat(day))
        except ValueError as error:
            raise UsageError(
                f"{text!r} is no receipt: they are RUN/SYMBOL/TARGET, as in the column receipt of "
                "latest_prediction"
            ) from error

    def __str__(self) -> str:
        return f"{self.run_id}/{self.symbol}/{self.target}"


@dataclass(frozen=True)
class Reproduction:
    """Hold a stored prediction beside the one made again.

    `prediction` is its stored row; `again` maps `FIGURES`, or is None when the stock cannot be
    predicted any more. `universe` says which stocks the model saw and how that is known,
    `changed_since` how the market's index and list differ today, which changes nothing here;
    `night_hash` is the digest of the windows that the night recorded (None: not a night, or none
    recorded), `inputs_hash` that of the windows now.
    """

    receipt: Receipt
    run: Mapping[str, Any]
    device: str
    prediction: Mapping[str, Any]
    again: Mapping[str, float] | None
    universe: str
    changed_since: str | None
    night_hash: str | None
    inputs_hash: str

    @property
    def config_digest(self) -> str:
        """Return the SHA-256 of the settings of the run."""
        return hashlib.sha256(json.dumps(self.run["config"], sort_keys=True).encode()).hexdigest()

    @property
    def reasons(self) -> list[str]:
        """Say in words what differs; return nothing when all is equal to the last bit."""
        said = []
        if self.night_hash is not None and self.night_hash != self.inputs_hash:
            said.append(
                f"inputs: SHA-256 {self.inputs_hash[:12]}..., the night recorded "
                f"{self.night_hash[:12]}..."
            )
        if self.again is None:
            said.append(f"{self.receipt.symbol} cannot be predicted again from the stored bars")
        elif apart := [
            name for name in FIGURES if not same(self.prediction[name], self.again[name])
        ]:
            by = abs(self.prediction[apart[0]] - self.again[apart[0]])
            said.append(
                f"{', '.join(apart)}: {apart[0]} {by:.2g} apart; {made_by(self.run, self.device)}"
            )
        return said


def run_of(engine: Engine, receipt: Receipt) -> dict[str, Any]:
    """Return the row of a receipt's run; raise UsageError for a run of the published experiment."""
    with reading(engine) as conn:
        run = runs.run(conn, receipt.run_id)
    if run["kind"] == "benchmark":
        told = "its predictions come from the windows of a whole set"
        again = f"which `dtml benchmark {run['market']}` makes again"
        raise UsageError(f"{run['id']} is a run of the published experiment: {told}, {again}")
    return run


def market_of(run: Mapping[str, Any], market_file: Path | None) -> Market:
    """Return the market of a run: one of the package, or the one that `market_file` describes."""
    name = run["market"]
    if market_file is not None and market_file.stem != name:
        raise UsageError(f"{run['id']} is of {name}: {market_file} describes another market")
    return read_market(name, market_file)


def reproduce(archive: Archive, receipt: Receipt, run: Mapping[str, Any]) -> Reproduction:
    """Predict again what a receipt names, from the bars that its row says it saw."""
    name = archive.market.name
    with reading(archive.engine) as conn:
        made = predictions.predictions(conn, name, run_id=run["id"])
        mine = made[
            (made["symbol"] == receipt.symbol) & (made["target"] == pd.Timestamp(receipt.target))
        ]
        if mine.empty:
            raise StoreUsageError(_missing(receipt, made))
        (prediction,) = records(mine)
        as_of = prediction["as_of"].date()
        night = nights.night(conn, name, as_of)
    predicted = set(made.loc[made["target"] == mine["target"].iloc[0], "symbol"])
    if night is not None and night["run_id"] == run["id"] and night["status"] in COMPLETE:
        symbols, universe = stocks_of(night, predicted), "as the night recorded them"
    else:
        symbols = predicted | {
            each.symbol for each in market_then(archive.market, run).constituents_on(as_of)
        }
        universe = "as its model's training recorded them"
        night = None
    known_at = prediction["known_at"].to_pydatetime()
    again, now = archive.again(archive.context(run, symbols), archive.model(run), as_of, known_at)
    found = again[again["symbol"] == receipt.symbol]
    figures = None if found.empty else records(found[list(FIGURES)])[0]
    device, seen = choose_device(archive.device).type, f"{len(symbols)} stocks, {universe}"
    then = None if night is None else night["inputs_hash"]
    changed = changed_since(archive.market, run)
    return Reproduction(receipt, run, device, prediction, figures, seen, changed, then, now)


def _missing(receipt: Receipt, made: pd.DataFrame) -> str:
    if made.empty:
        return f"run {receipt.run_id} has made no prediction"
    first, last = made["target"].min().date(), made["target"].max().date()
    return (
        f"no prediction {receipt}: {receipt.run_id} has {len(made)}, of sessions {first} .. {last}"
    )


@dataclass(frozen=True)
class Retraining:
    """Hold a model trained again: its checkpoint's SHA-256, and the largest difference of each
    parameter that differs.

    If the run's own weights are lost, no difference is known but that of the SHA-256. Where there
    is none, the checkpoint was `restored`. On a GPU some sums have no fixed order: weights within
    TOLERANCE of the run's are equal.
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
        """Return whether weights differ on a GPU, by no more than the order of
        its sums may change them.
        """
        return (
            not self.lost
            and self.device != "cpu"
            and 0 < max(self.differing.values(), default=0) <= TOLERANCE
        )

    @property
    def reasons(self) -> list[str]:
        """Say in words what differs; return nothing when all weights are the
        same to the last bit.
        """
        if self.restored or not (self.lost or self.differing) or self.is_close:
            return []
        computed = made_by(self.run, self.device)
        if self.lost:
            then, now = (
                f"{each[:12]}..." for each in (self.run["checkpoint_hash"], self.checkpoint_hash)
            )
            lost = (
                f"those of {self.run['id']}, SHA-256 {then}, are lost, and trained again they "
                f"are {now} ({computed})"
            )
            other = (
                "train it again on the machine that did, or go on with new ones: `dtml train "
                f"{self.run['market']}`"
            )
            said = [f"weights: {lost}: restore its checkpoint from a backup, {other}"]
        else:
            worst = max(self.differing, key=lambda name: self.differing[name])
            by = f"most {worst} by {self.differing[worst]:.2g}"
            said = [
                f"weights: {len(self.differing)} of {self.parameters} parameters differ, {by} "
                f"({computed})"
            ]
        if self.first != self.run["train_first"]:
            said.append(f"trained from {self.first} on, the run from {self.run['train_first']}")
        return said


def retrain(
    archive: Archive, run: Mapping[str, Any], on_epoch: EpochReport = no_report
) -> Retraining:
    """Train the model of a run again, in a temporary folder, on the bars and the universe that it
    knew, and compare.

    A checkpoint that is missing or damaged is restored if training gives the same weights; if not,
    the archive predicts with the new ones. Raises UsageError for a run that began with another's
    weights, and DtmlError for one whose weights would lie outside the folder of models.
    """
    experiment = experiment_of(run)
    if experiment.warm_start:
        raise UsageError(
            f"{run['id']} went on from the weights of the model before, which its row does not name"
        )
    file = weights_file(run["checkpoint_path"])
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
        save_ensemble(fitted.ensemble, file, write_whole)
    elif kept is None:
        archive.models[run["id"]] = Model(run["id"], fitted.ensemble, fitted.calibration)
    then, now = (kept or fitted.ensemble).weights, fitted.ensemble.weights
    both = ((name, then[name], now[name]) for name in then)
    differing = {
        name: float((one - two).abs().max()) for name, one, two in both if not torch.equal(one, two)
    }
    device = choose_device(archive.device).type
    return Retraining(run, device, sha, len(then), differing, fitted.first, lost=kept is None)


def _kept(archive: Archive, run: Mapping[str, Any]) -> Ensemble | None:
    """Return the weights of a run; None when they are lost."""
    try:
        return archive.model(run).ensemble
    except DtmlError as error:
        log.warning("%s; training it again", error)
        return None
