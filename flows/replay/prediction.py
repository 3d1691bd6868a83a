"""Make one prediction again from its receipt, and say what differs, to the last bit."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Engine

from db.engine import reading
from db.errors import StoreUsageError
from db.rows import nights, predictions, runs
from db.rows.nights import COMPLETE
from dtml.errors import UsageError
from dtml.inference import choose_device
from dtml.markets import Market
from flows.market_files import read_market
from flows.replay.archive import FIGURES, Archive, changed_since, made_by, market_then, same, stocks_of


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
                f"{text!r} is no receipt: they are RUN/SYMBOL/TARGET, as in the column receipt of latest_prediction"
            ) from error

    def __str__(self) -> str:
        return f"{self.run_id}/{self.symbol}/{self.target}"


@dataclass(frozen=True)
class Reproduction:
    """Hold a stored prediction beside the one made again.

    `prediction` is its stored row; `again` maps `FIGURES`, or is None when the stock cannot be predicted any more.
    `universe` says which stocks the model saw and how that is known, `changed_since` how the market's index and list
    differ today, which changes nothing here; `night_hash` is the digest of the windows that the
    night recorded (None: not a night, or none recorded), `inputs_hash` that of the windows now.
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
            said.append(f"inputs: SHA-256 {self.inputs_hash[:12]}..., the night recorded {self.night_hash[:12]}...")
        if self.again is None:
            said.append(f"{self.receipt.symbol} cannot be predicted again from the stored bars")
        elif apart := [name for name in FIGURES if not same(self.prediction[name], self.again[name])]:
            by = abs(self.prediction[apart[0]] - self.again[apart[0]])
            said.append(f"{', '.join(apart)}: {apart[0]} {by:.2g} apart; {made_by(self.run, self.device)}")
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
        symbols = predicted | {each.symbol for each in market_then(archive.market, run).constituents_on(as_of)}
        universe = "as its model's training recorded them"
        night = None
    known_at = prediction["known_at"].to_pydatetime()
    again = archive.again(archive.context(run, symbols), archive.model(run), as_of, known_at)
    found = again.predictions[again.predictions["symbol"] == receipt.symbol]
    figures = None if found.empty else _plain(found[list(FIGURES)].iloc[0])
    device, seen = choose_device(archive.device).type, f"{len(symbols)} stocks, {universe}"
    then, now = None if night is None else night["inputs_hash"], again.inputs_hash
    changed = changed_since(archive.market, run)
    return Reproduction(receipt, run, device, prediction, figures, seen, changed, then, now)


def _missing(receipt: Receipt, made: pd.DataFrame) -> str:
    if made.empty:
        return f"run {receipt.run_id} has made no prediction"
    first, last = made["target"].min().date(), made["target"].max().date()
    return f"no prediction {receipt}: {receipt.run_id} has {len(made)}, of sessions {first} .. {last}"


def _plain(row: "pd.Series[Any]") -> dict[str, Any]:
    return {str(name): value for name, value in row.items()}
