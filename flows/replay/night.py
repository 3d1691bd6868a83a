"""The time machine: a past night predicted again from what was known to it, and what differs, to the last bit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Engine

from db.engine import open_reader, reading
from db.rows import nights as stored_nights
from db.rows import predictions as stored_predictions
from db.rows import runs
from db.rows.nights import COMPLETE
from dtml.errors import DtmlError, UsageError
from dtml.inference import choose_device
from dtml.markets import Market
from flows.nightly.context import Desk, Order, StoredSource, experiment_for, read_bars, read_market
from flows.nightly.predict import first_needed, night_windows, predict_windows
from flows.nightly.train import Model, load_run

FIGURES = ("probability", "spread", "calibrated", "lowest", "highest", "rising_share")


class NotReplayedError(DtmlError):
    """A past prediction was made again and is another, or cannot be made."""


@dataclass(frozen=True)
class Again:
    """What a model predicts when it is asked again: a digest of its inputs, and `symbol` with `FIGURES`."""

    inputs_hash: str
    predictions: pd.DataFrame


@dataclass(frozen=True)
class Replay:
    """A night beside what it gives when it is run again from bars as known at `known_at`.

    `predictions` has a row a stock: `symbol` and `FIGURES` as stored, `replayed_probability` and so on as predicted
    again on `device`, missing where there is none. `failure` says why nothing could be predicted.
    """

    night: Mapping[str, Any]
    run: Mapping[str, Any]
    known_at: datetime
    device: str
    predictions: pd.DataFrame
    inputs_hash: str | None = None
    failure: str | None = None

    @property
    def inputs_equal(self) -> bool | None:
        """Whether the model read what it had read; None when nothing was read."""
        return None if self.inputs_hash is None else bool(self.night["inputs_hash"] == self.inputs_hash)

    @property
    def differing(self) -> pd.DataFrame:
        """The rows of `predictions` that are not the same to the last bit."""
        same = np.ones(len(self.predictions), dtype=bool)
        for name in FIGURES:
            kept, again = self.predictions[[name, f"replayed_{name}"]].to_numpy(dtype=float).T
            same &= (kept == again) | np.isnan(kept) & np.isnan(again)
        rows: pd.DataFrame = self.predictions.loc[~same]
        return rows

    @property
    def largest(self) -> tuple[str, float]:
        """The stock whose probability differs most, and by how much; NaN where it has none on one side."""
        rows = self.differing
        by = (rows["replayed_probability"] - rows["probability"]).abs()
        first = by.isna().to_numpy().argmax() if by.isna().any() else by.to_numpy().argmax()
        return str(rows["symbol"].iloc[first]), float(by.iloc[first])

    @property
    def left_out(self) -> list[str]:
        """The stocks that the night left out, sorted."""
        return sorted(gap["symbol"] for gap in self.night["gaps"])

    @property
    def left_out_again(self) -> list[str]:
        """The stocks of the night that cannot be predicted again, sorted."""
        predicted = self.predictions.loc[self.predictions["replayed_probability"].notna(), "symbol"]
        return sorted({*self.predictions["symbol"], *self.left_out} - set(predicted))

    @property
    def reasons(self) -> list[str]:
        """What is not as it was, in words; nothing when all is equal to the last bit."""
        if self.failure is not None:
            return [self.failure]
        said, rows = [], self.differing
        if not self.inputs_equal:
            said.append(
                f"inputs: the windows have SHA-256 {str(self.inputs_hash)[:12]}..., the night recorded "
                f"{str(self.night['inputs_hash'])[:12]}...: stored prices or the calendar were changed since"
            )
        if (count := self.night["predictions"]) != (held := int(self.predictions["probability"].notna().sum())):
            said.append(f"stored predictions: the night made {count}, {held} are there")
        if self.left_out != self.left_out_again:
            said.append(f"stocks left out: {_named(self.left_out)} then, {_named(self.left_out_again)} now")
        if len(rows):
            symbol, by = self.largest
            said.append(f"predictions: {len(rows)} of {len(self.predictions)}, most that of {symbol} by {by:.2g}")
        if len(rows) and self.inputs_equal:
            said.append(f"what may have changed: stored rows, code or machine ({made_by(self.run, self.device)})")
        return said


def made_by(run: Mapping[str, Any], device: str) -> str:
    """What decides last bits: what computes now, and the code that trained a run; a store keeps no more of it."""
    now = f"code {version('dtml-nightshift')}, torch {version('torch')}, on {device}"
    return f"{now}; trained by code {run['code_version']}"


def _named(symbols: list[str]) -> str:
    return ", ".join(symbols) or "none"


def stocks_of(night: Mapping[str, Any], predicted: Iterable[str]) -> set[str]:
    """The stocks that a night looked at: those it predicted, and those it left out."""
    return {*predicted, *(gap["symbol"] for gap in night["gaps"])}


@dataclass
class Archive:
    """The past of a market: its nights, its bars as known at any moment, its models, each read once.

    Nothing is written to the store.
    """

    engine: Engine
    market: Market
    device: str = "auto"
    models: dict[str, Model] = field(default_factory=dict)

    def night(self, as_of: date | None) -> dict[str, Any]:
        """The row of a complete night, by default the last; for any other, UsageError says which there are."""
        with reading(self.engine) as conn:
            if as_of is None:
                return self.nights()[-1]
            row = stored_nights.night(conn, self.market.name, as_of)
        if row is not None and row["status"] in COMPLETE:
            return row
        days = [each["as_of"] for each in self.nights()]
        how = "was never run" if row is None else f"is {row['status']}" + (f" ({row['reason']})" * bool(row["reason"]))
        raise UsageError(
            f"the night of {as_of} of {self.market.name} {how}: {len(days)} are complete, {days[0]} .. {days[-1]}"
        )

    def nights(self) -> list[dict[str, Any]]:
        """The rows of all complete nights, oldest first; raises UsageError when there is none."""
        name = self.market.name
        with reading(self.engine) as conn:
            stored = stored_nights.nights(conn, name)
            days = stored.loc[stored["status"].isin(COMPLETE), "as_of"].dt.date
            rows = [stored_nights.night(conn, name, day) for day in days]
        if not rows:
            raise UsageError(f"no night of {name} is complete: run `dtml nightly {name}` first")
        return [row for row in rows if row is not None]

    def desk(self, symbols: Iterable[str]) -> Desk:
        """A desk over these stocks, whatever the market's list says of them today."""
        plain = replace(self.market, constituents=()).with_symbols(sorted(symbols))
        return Desk(plain, StoredSource(self.engine, plain), self.engine, experiment_for(plain), self.device, None)

    def model(self, run: Mapping[str, Any]) -> Model:
        """The model of a run, its weights checked against the run's row the first time."""
        if run["id"] not in self.models:
            self.models[run["id"]] = load_run(self.desk([]), run)
        return self.models[run["id"]]

    def bars(self, desk: Desk, model: Model, as_of: date, known_at: datetime) -> pd.DataFrame:
        """The bars that a window ending at `as_of` can reach, as known at a moment, with their own `known_at`."""
        return read_bars(desk, first_needed(desk, model.ensemble.windows, as_of), as_of, known_at)

    def again(self, desk: Desk, model: Model, as_of: date, known_at: datetime) -> Again:
        """Predict the session after `as_of` from bars as known at a moment."""
        tonight = night_windows(desk, model, as_of, self.bars(desk, model, as_of, known_at))
        made = predict_windows(desk, model, tonight)
        return Again(tonight.digest, made[["symbol", *FIGURES]])

    def replay(self, night: Mapping[str, Any], known_at: datetime | None = None) -> Replay:
        """Run a complete night again from the bars that it knew, or, to see what it would say, as known at a moment.

        What keeps it from being run is in the replay's `failure`.
        """
        with reading(self.engine) as conn:
            run = runs.run(conn, night["run_id"])
            stored = stored_predictions.night_calls(conn, self.market.name, night["as_of"])
        desk = self.desk(stocks_of(night, stored["symbol"]))
        moment, failure = known_at or night["known_at"], None
        again = Again("", pd.DataFrame({"symbol": [], **{name: [] for name in FIGURES}}))
        try:
            again = self.again(desk, self.model(run), night["as_of"], moment)
        except DtmlError as error:
            failure = str(error)
        replayed = again.predictions.rename(columns={name: f"replayed_{name}" for name in FIGURES})
        both = stored[["symbol", *FIGURES]].merge(replayed.astype({"symbol": str}), on="symbol", how="outer")
        both = both.sort_values("symbol", ignore_index=True)
        return Replay(night, run, moment, choose_device(self.device).type, both, again.inputs_hash or None, failure)

    def restated(self, replay: Replay) -> dict[str, int]:
        """How many bars of a replay's windows are `restated`, `new` or `gone` between its night and its moment."""
        desk = self.desk({*replay.predictions["symbol"], *replay.left_out})
        names = {*desk.market.symbols, desk.market.index.symbol}
        moments = (replay.night["known_at"], replay.known_at)
        model = self.model(replay.run)
        then, now = (
            bars[bars["symbol"].isin(names)].set_index(["symbol", "session"])["known_at"]
            for bars in (self.bars(desk, model, replay.night["as_of"], moment) for moment in moments)
        )
        both = pd.concat([then, now], axis=1, keys=["then", "now"])
        held = both.dropna()
        return {
            "restated": int((held["then"] != held["now"]).sum()),
            "new": int(both["then"].isna().sum()),
            "gone": int(both["now"].isna().sum()),
        }


def open_archive(order: Order) -> Archive:
    """The past of the market that an order names, in the store that is there."""
    return Archive(open_reader(), read_market(order.market, order.market_file), order.device)
