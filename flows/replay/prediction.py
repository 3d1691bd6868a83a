"""One prediction made again from its receipt, and the model behind it trained again, compared to the last bit."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
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
from dtml.markets import Market, market_names
from dtml.training.fit import EpochReport, no_report
from flows.nightly.context import Desk, StoredSource, experiment_of, read_market, stored_bars
from flows.nightly.fetch import history_start
from flows.nightly.train import fit_bars
from flows.replay.night import FIGURES, Archive, made_by, stocks_of
from flows.settings import data_folder
from translation.atomic_files import write_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Receipt:
    """What names a prediction: `RUN/SYMBOL/TARGET`."""

    run_id: str
    symbol: str
    target: date

    @classmethod
    def read(cls, text: str) -> "Receipt":
        """Read it as the views show it; raises UsageError for anything else."""
        try:
            run_id, symbol, day = text.split("/")
            return cls(run_id, symbol, date.fromisoformat(day))
        except ValueError as error:
            raise UsageError(
                f"{text!r} is no receipt: they are RUN/SYMBOL/TARGET, as in the column receipt of latest_prediction"
            ) from error

    def __str__(self) -> str:
        return f"{self.run_id}/{self.symbol}/{self.target}"


@dataclass(frozen=True)
class Reproduction:
    """A stored prediction beside the one made again.

    `prediction` is its stored row; `again` maps `FIGURES`, or is None when the stock cannot be predicted any more.
    `universe` says in words which stocks the model saw and how that is known, `night_hash` and `inputs_hash` what
    digest the night recorded (None: not a night, or none) and what digest the windows have now.
    """

    receipt: Receipt
    run: Mapping[str, Any]
    device: str
    prediction: Mapping[str, Any]
    again: Mapping[str, float] | None
    universe: str
    night_hash: str | None
    inputs_hash: str

    @property
    def config_digest(self) -> str:
        """SHA-256 of the settings of the run."""
        return hashlib.sha256(json.dumps(self.run["config"], sort_keys=True).encode()).hexdigest()

    @property
    def reasons(self) -> list[str]:
        """What is not as it was, in words; nothing when all is equal to the last bit."""
        said = []
        if self.night_hash is not None and self.night_hash != self.inputs_hash:
            said.append(f"inputs: SHA-256 {self.inputs_hash[:12]}..., the night recorded {self.night_hash[:12]}...")
        if self.again is None:
            said.append(f"{self.receipt.symbol} cannot be predicted again from the stored bars")
        elif apart := [name for name in FIGURES if not _same(self.prediction[name], self.again[name])]:
            by = abs(self.prediction[apart[0]] - self.again[apart[0]])
            said.append(f"{', '.join(apart)}: {apart[0]} {by:.2g} apart; {made_by(self.run, self.device)}")
        return said


@dataclass(frozen=True)
class Retraining:
    """A model trained again: its checkpoint's SHA-256, and each parameter that differs, with the largest difference.

    Where the run's own weights were lost, nothing differs, and the checkpoint lies there again: it was `restored`.
    """

    run: Mapping[str, Any]
    device: str
    checkpoint_hash: str
    parameters: int
    differing: Mapping[str, float]
    first: date
    restored: bool = False

    @property
    def reasons(self) -> list[str]:
        """What is not as it was, in words; nothing when all weights are the same to the last bit."""
        if not self.differing:
            return []
        worst = max(self.differing, key=lambda name: self.differing[name])
        by = f"most {worst} by {self.differing[worst]:.2g}"
        computed = made_by(self.run, self.device)
        said = [f"weights: {len(self.differing)} of {self.parameters} parameters differ, {by} ({computed})"]
        if self.first != self.run["train_first"]:
            said.append(f"trained from {self.first} on, the run from {self.run['train_first']}")
        return said


def run_of(engine: Engine, receipt: Receipt) -> dict[str, Any]:
    """The row of a receipt's run; raises UsageError for one whose predictions are not made from single nights."""
    with reading(engine) as conn:
        run = runs.run(conn, receipt.run_id)
    if run["kind"] == "paper":
        raise UsageError(
            f"{run['id']} is a run of the published experiment: its predictions come from the windows of a whole set, "
            f"which `dtml benchmark {run['market']}` makes again"
        )
    return run


def market_of(run: Mapping[str, Any], market_file: Path | None) -> Market:
    """The market of a run, which must be one of the package or the one that `market_file` describes."""
    name = run["market"]
    if market_file is None and name not in market_names():
        raise UsageError(f"{run['id']} is of {name}, a market of your own: name its file with --market-file")
    if market_file is not None and market_file.stem != name:
        raise UsageError(f"{run['id']} is of {name}: {market_file} describes another market")
    return read_market(name, market_file)


def reproduce(archive: Archive, receipt: Receipt, run: Mapping[str, Any]) -> Reproduction:
    """Predict what a receipt stands for again, from the bars that its row says it saw."""
    name = archive.market.name
    with reading(archive.engine) as conn:
        made = predictions.predictions(conn, name, run_id=run["id"])
        mine = made[(made["symbol"] == receipt.symbol) & (made["target"] == pd.Timestamp(receipt.target))]
        if mine.empty:
            raise StoreUsageError(_missing(receipt, made))
        prediction = _plain(mine.iloc[0])
        as_of = prediction["as_of"].date()
        night = nights.night(conn, name, as_of)
    predicted = set(made.loc[made["target"] == mine["target"].iloc[0], "symbol"])
    is_night = run["kind"] == "nightly" and night is not None and night["status"] in COMPLETE
    if is_night and night is not None and night["run_id"] == run["id"]:
        symbols, universe = stocks_of(night, predicted), "as the night recorded them"
    else:
        symbols = predicted | _listed(archive, set(made["symbol"]), as_of)
        universe = f"{len(predicted)} predicted, the others from the market's list of today"
        night = None
    again = archive.again(archive.desk(symbols), archive.model(run), as_of, prediction["known_at"].to_pydatetime())
    found = again.predictions[again.predictions["symbol"] == receipt.symbol]
    return Reproduction(
        receipt,
        run,
        choose_device(archive.device).type,
        prediction,
        None if found.empty else _plain(found[list(FIGURES)].iloc[0]),
        f"{len(symbols)} stocks, {universe}",
        None if night is None else night["inputs_hash"],
        again.inputs_hash,
    )


def retrain(archive: Archive, run: Mapping[str, Any], on_epoch: EpochReport = no_report) -> Retraining:
    """Train the model of a run again, in a temporary folder, from the bars that it knew, and compare the weights.

    A checkpoint that is lost, missing or damaged, is put back when it comes out as it was; else DtmlError says what is
    left to do. When the stocks were members is what the market's list says today, and so are the stocks of a model that
    is lost and not tied to its own. Raises UsageError for a run that went on from another's weights.
    """
    experiment = experiment_of(run)
    if experiment.warm_start:
        raise UsageError(f"{run['id']} went on from the weights of the model before, which its row does not name")
    kept = _kept(archive, run)
    listed = run["config"].get("stocks", archive.market.symbols)
    market = archive.market.with_symbols(listed if kept is None else kept.symbols)
    source = StoredSource(archive.engine, market)
    desk = Desk(market, source, archive.engine, experiment, archive.device, None)
    as_of = run["train_last"]
    bars, _ = stored_bars(desk, history_start(desk, as_of), as_of, run["data_watermark"])
    with TemporaryDirectory() as folder:
        fitted = fit_bars(desk, as_of, bars, Path(folder) / "training", on_epoch)
    sha = checkpoint_hash(fitted.ensemble)
    if kept is None:
        _put_back(archive, run, fitted.ensemble, sha)
    then, now = (kept or fitted.ensemble).weights, fitted.ensemble.weights
    differing = {
        name: float((then[name] - now[name]).abs().max()) for name in then if not torch.equal(then[name], now[name])
    }
    device = choose_device(archive.device).type
    return Retraining(run, device, sha, len(then), differing, fitted.first, restored=kept is None)


def _kept(archive: Archive, run: Mapping[str, Any]) -> Ensemble | None:
    """The weights of a run; None when they are lost."""
    try:
        return archive.model(run).ensemble
    except DtmlError as error:
        log.warning("%s; training it again", error)
        return None


def _put_back(archive: Archive, run: Mapping[str, Any], ensemble: Ensemble, sha: str) -> None:
    if sha != run["checkpoint_hash"]:
        then, computed = run["checkpoint_hash"], made_by(run, choose_device(archive.device).type)
        raise DtmlError(
            f"the weights of {run['id']}, SHA-256 {then[:12]}..., are lost, and trained again they are {sha[:12]}... "
            f"({computed}): restore its checkpoint from a backup, train it again on the machine that did, or go on "
            f"with new ones: `dtml train {run['market']}`"
        )
    save_ensemble(ensemble, data_folder() / run["checkpoint_path"], write_whole)


def _listed(archive: Archive, known: set[str], as_of: date) -> set[str]:
    """The members of a day by the market's list of today, or, where that gives none, by the stocks that are stored."""
    stored = StoredSource(archive.engine, archive.market).symbols()
    listed = archive.market.with_symbols(sorted(known | set(stored)))
    return {member.symbol for member in listed.constituents_on(as_of)}


def _missing(receipt: Receipt, made: pd.DataFrame) -> str:
    if made.empty:
        return f"run {receipt.run_id} has made no prediction"
    first, last = made["target"].min().date(), made["target"].max().date()
    return f"no prediction {receipt}: {receipt.run_id} has {len(made)}, of sessions {first} .. {last}"


def _plain(row: "pd.Series[Any]") -> dict[str, Any]:
    return {str(name): value for name, value in row.items()}


def _same(stored: float, again: float) -> bool:
    return bool(stored == again or (np.isnan(stored) and np.isnan(again)))
