"""Replay a past night from what was known to it, and say what differs, to the last bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from db.engine import reading
from db.rows import predictions as stored_predictions
from db.rows import rankings, runs
from dtml.errors import DtmlError
from dtml.inference import choose_device
from flows.nightly.context import MarketContext
from flows.nightly.order import load_trained, order_night
from flows.replay.archive import FIGURES, Again, Archive, made_by, same, stocks_of


@dataclass(frozen=True)
class Replay:
    """Hold a night beside what it gives when it is run again from bars as known at `known_at`.

    `predictions` has a row a stock: `symbol` and `FIGURES` as stored, `replayed_probability` and so on as predicted
    again on `device`, missing where there is none. `failure` says why nothing could be predicted, `reordered` what
    differs in the order of the stocks.
    """

    night: Mapping[str, Any]
    run: Mapping[str, Any]
    known_at: datetime
    device: str
    predictions: pd.DataFrame
    inputs_hash: str | None = None
    failure: str | None = None
    reordered: str | None = None

    @property
    def inputs_equal(self) -> bool | None:
        """Return whether the model read what it had read; None when nothing was read."""
        return None if self.inputs_hash is None else bool(self.night["inputs_hash"] == self.inputs_hash)

    @property
    def differing(self) -> pd.DataFrame:
        """Return the rows of `predictions` that are not the same to the last bit."""
        replayed = self.predictions[[f"replayed_{name}" for name in FIGURES]]
        equal = same(self.predictions[[*FIGURES]], replayed).all(axis=1)
        rows: pd.DataFrame = self.predictions[~np.asarray(equal)]
        return rows

    @property
    def largest(self) -> tuple[str, float]:
        """Return the stock whose probability differs most, and by how much; NaN where one side has none."""
        rows = self.differing
        by = (rows["replayed_probability"] - rows["probability"]).abs()
        first = by.isna().to_numpy().argmax() if by.isna().any() else by.to_numpy().argmax()
        return str(rows["symbol"].iloc[first]), float(by.iloc[first])

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
        """Say in words what differs; return nothing when all is equal to the last bit."""
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
            then, now = (", ".join(each) or "none" for each in (self.left_out, self.left_out_again))
            said.append(f"stocks left out: {then} then, {now} now")
        if len(rows):
            symbol, by = self.largest
            said.append(f"predictions: {len(rows)} of {len(self.predictions)}, most that of {symbol} by {by:.2g}")
        if len(rows) and self.inputs_equal:
            said.append(f"what may have changed: stored rows, code or machine ({made_by(self.run, self.device)})")
        return said + ([self.reordered] if self.reordered else [])


def replay_of(archive: Archive, night: Mapping[str, Any], known_at: datetime | None = None) -> Replay:
    """Run a complete night again from bars as it knew them, or as known at a moment; why not is in `failure`."""
    with reading(archive.engine) as conn:
        run = runs.run(conn, night["run_id"])
        stored = stored_predictions.night_directions(conn, archive.market.name, night["as_of"])
    context = archive.context(run, stocks_of(night, stored["symbol"]))
    moment, failure, reordered = known_at or night["known_at"], None, None
    again = Again("", pd.DataFrame({"symbol": [], **{name: [] for name in FIGURES}}))
    try:
        again = archive.again(context, archive.model(run), night["as_of"], moment)
        reordered = _reordered(context, night, moment, again)
    except DtmlError as error:
        failure = str(error)
    replayed = again.predictions.rename(columns={name: f"replayed_{name}" for name in FIGURES})
    both = stored[["symbol", *FIGURES]].merge(replayed.astype({"symbol": str}), on="symbol", how="outer")
    both = both.sort_values("symbol", ignore_index=True)
    device = choose_device(archive.device).type
    return Replay(night, run, moment, device, both, again.inputs_hash or None, failure, reordered)


def _reordered(context: MarketContext, night: Mapping[str, Any], moment: datetime, again: Again) -> str | None:
    """Say what differs when a night's stocks are ordered again; None where nothing does, or none were."""
    with reading(context.engine) as conn:
        kept = rankings.orders(conn, context.name, first=night["target"], last=night["target"])
        if kept.empty:
            return None
        trained = load_trained(context, rankings.ranker(conn, kept["ranker_id"].iloc[-1]) or {})
    kept = kept[kept["ranker_id"] == trained.row["id"]]
    said = again.predictions.set_index("symbol")["probability"]
    made = order_night(context, trained, night["as_of"], said, moment)
    both = kept.merge(made, on=["predictor", "symbol"], how="outer", suffixes=("", "_again"))
    differing = ~same(both[["score", "place"]], both[["score_again", "place_again"]]).all(axis=1)
    return f"order: {int(differing.sum())} of {len(both)} places and scores" if differing.any() else None


def restated_since(archive: Archive, replay: Replay) -> dict[str, int]:
    """Count the bars of a replay's windows that are `restated`, `new` or `gone` between its night and its moment."""
    context = archive.context(replay.run, {*replay.predictions["symbol"], *replay.left_out})
    names = {*context.market.symbols, context.market.index.symbol}
    moments = (replay.night["known_at"], replay.known_at)
    model = archive.model(replay.run)
    read = (archive.bars(context, model, replay.night["as_of"], moment) for moment in moments)
    mine = (bars[bars["symbol"].isin(names)] for bars in read)
    then, now = (bars.set_index(["symbol", "session"])["known_at"] for bars in mine)
    both = pd.concat([then, now], axis=1, keys=["then", "now"])
    held = both.dropna()
    restated, new, gone = (held["then"] != held["now"]), both["then"].isna(), both["now"].isna()
    return {"restated": int(restated.sum()), "new": int(new.sum()), "gone": int(gone.sum())}
