"""Open the past of a market: its nights, its bars as known at any moment, and what its models
predict from them.

A past night is replayed from what was known to it, and what differs is said, to the last bit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sqlalchemy import Engine

from db.engine import open_reader, reading
from db.rows import nights as stored_nights
from db.rows import predictions as stored_predictions
from db.rows import rankings, runs
from db.rows.nights import COMPLETE
from dtml.errors import DtmlError, UsageError
from dtml.inference import choose_device
from dtml.markets import Constituent, Market
from flows.market_files import read_market
from flows.nightly.context import MarketContext, RunRequest, StoredSource, experiment_for, read_bars
from flows.nightly.order import load_trained, order_night
from flows.nightly.predict import first_needed, night_windows, predict_windows
from flows.nightly.train import Model, load_run

FIGURES = ("probability", "probability_std", "calibrated", "lowest", "highest", "rising_share")


class NotReplayedError(DtmlError):
    """Say that a past prediction was made again and differs, or cannot be made."""


@dataclass
class Archive:
    """Read, and never write, a market's past: its nights, its bars as known at
    any moment, its models, loaded once.
    """

    engine: Engine
    market: Market
    device: str = "auto"
    models: dict[str, Model] = field(default_factory=dict)

    @classmethod
    def open(cls, request: RunRequest) -> "Archive":
        """Open the past of the market that a run request names, in an existing store."""
        return cls(open_reader(), read_market(request.market, request.market_file), request.device)

    def night(self, as_of: date | None) -> dict[str, Any]:
        """Return the row of a complete night, by default the last; raise
        UsageError, which says which there are.
        """
        with reading(self.engine) as conn:
            if as_of is None:
                return self.nights()[-1]
            row = stored_nights.night(conn, self.market.name, as_of)
        if row is not None and row["status"] in COMPLETE:
            return row
        days = [each["as_of"] for each in self.nights()]
        how = (
            "was never run"
            if row is None
            else f"is {row['status']}" + (f" ({row['reason']})" * bool(row["reason"]))
        )
        raise UsageError(
            f"the night of {as_of} of {self.market.name} {how}: {len(days)} are complete, "
            f"{days[0]} .. {days[-1]}"
        )

    def nights(self) -> list[dict[str, Any]]:
        """Return the rows of all complete nights, oldest first; raise
        UsageError when there is none.
        """
        name = self.market.name
        with reading(self.engine) as conn:
            newest_first = [
                dict(row) for row in conn.execute(stored_nights.night_log(name)).mappings()
            ]
        rows = [row for row in reversed(newest_first) if row["status"] in COMPLETE]
        if not rows:
            raise UsageError(f"no night of {name} is complete: run `dtml nightly {name}` first")
        return rows

    def context(self, run: Mapping[str, Any], symbols: Iterable[str]) -> MarketContext:
        """Return a market context over these stocks and the index of a run,
        whatever the market says today.
        """
        plain = replace(market_then(self.market, run), constituents=()).with_symbols(
            sorted(symbols)
        )
        source, experiment = StoredSource(self.engine, plain), experiment_for(plain)
        return MarketContext(plain, source, self.engine, experiment, self.device, None)

    def of_night(
        self, night: Mapping[str, Any]
    ) -> tuple[MarketContext, dict[str, Any], pd.DataFrame]:
        """Return a market context over the stocks that a night looked at, its
        run's row, and what it predicted.
        """
        with reading(self.engine) as conn:
            run = runs.run(conn, night["run_id"])
            stored = stored_predictions.night_directions(conn, self.market.name, night["as_of"])
        return self.context(run, stocks_of(night, stored["symbol"])), run, stored

    def model(self, run: Mapping[str, Any]) -> Model:
        """Return the model of a run, its weights checked against the run's row the first time."""
        if run["id"] not in self.models:
            self.models[run["id"]] = load_run(self.context(run, []), run)
        return self.models[run["id"]]

    def bars(
        self, context: MarketContext, model: Model, as_of: date, known_at: datetime
    ) -> pd.DataFrame:
        """Read the bars that a window ending at `as_of` can reach, as known at
        a moment, each with its `known_at`.
        """
        return read_bars(
            context, first_needed(context, model.ensemble.windows, as_of), as_of, known_at
        )

    def again(
        self, context: MarketContext, model: Model, as_of: date, known_at: datetime
    ) -> tuple[pd.DataFrame, str]:
        """Predict the session after `as_of` from bars known at a moment:
        `symbol, FIGURES`, and the inputs' digest.
        """
        tonight = night_windows(context, model, as_of, self.bars(context, model, as_of, known_at))
        return predict_windows(context, model, tonight)[["symbol", *FIGURES]], tonight.digest


def market_then(market: Market, run: Mapping[str, Any]) -> Market:
    """Return the market with the index and the constituents that a run was trained on."""
    known = run["universe"]
    dated = (
        (symbol, *(day and date.fromisoformat(day) for day in days))
        for symbol, *days in known["constituents"]
    )
    stays = tuple(
        Constituent(symbol, symbol, since=since, until=until) for symbol, since, until in dated
    )
    return replace(market, index=replace(market.index, symbol=known["index"]), constituents=stays)


def changed_since(market: Market, run: Mapping[str, Any]) -> str | None:
    """Say how a market's index and list of today differ from those a run was trained on; None where
    they do not.

    A market without a list takes its stocks from the prices, and has none to compare.
    """
    then = market_then(market, run)
    said = []
    if then.index.symbol != market.index.symbol:
        said.append(f"the index is {market.index.symbol}, was {then.index.symbol}")
    if market.constituents:
        before, after = (
            {(c.symbol, c.since, c.until) for c in each.constituents} for each in (then, market)
        )
        names = [
            sorted({symbol for symbol, *_ in part}) for part in (after - before, before - after)
        ]
        joined, left = (
            sorted(set(one) - set(other.symbols))
            for one, other in zip(names, (then, market), strict=True)
        )
        dated = sorted(set(names[0]) - set(joined))
        changes = {"joined": joined, "left": left, "has other dates": dated}
        said += [f"{', '.join(each)} {how}" for how, each in changes.items() if each]
    return "; ".join(said) or None


def same(stored: ArrayLike, again: ArrayLike) -> NDArray[np.bool_]:
    """Return where figures are the same to the last bit, missing ones (NaN) included."""
    then, now = np.asarray(stored, dtype=float), np.asarray(again, dtype=float)
    return np.asarray((then == now) | np.isnan(then) & np.isnan(now))


def stocks_of(night: Mapping[str, Any], predicted: Iterable[str]) -> set[str]:
    """Return the stocks that a night looked at: those it predicted, and those it left out."""
    return {*predicted, *(gap["symbol"] for gap in night["gaps"])}


def made_by(run: Mapping[str, Any], device: str) -> str:
    """Say what decides last bits: what computes now, and the code that trained
    a run; a store keeps no more.
    """
    now = f"code {version('dtml-nightshift')}, torch {version('torch')}, on {device}"
    return f"{now}; trained by code {run['code_version']}"


@dataclass(frozen=True)
class Replay:
    """Hold a night beside what it gives when it is run again from bars as known at `known_at`.

    `predictions` has a row a stock: `symbol` and `FIGURES` as stored, `replayed_probability` and so
    on as predicted again on `device`, missing where there is none. `failure` says why nothing could
    be predicted, `reordered` what differs in the order of the stocks.
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
        return (
            None
            if self.inputs_hash is None
            else bool(self.night["inputs_hash"] == self.inputs_hash)
        )

    @property
    def differing(self) -> pd.DataFrame:
        """Return the rows of `predictions` that are not the same to the last bit."""
        replayed = self.predictions[[f"replayed_{name}" for name in FIGURES]]
        equal = same(self.predictions[[*FIGURES]], replayed).all(axis=1)
        rows: pd.DataFrame = self.predictions[~np.asarray(equal)]
        return rows

    @property
    def largest(self) -> tuple[str, float]:
        """Return the stock whose probability differs most, and by how much; NaN
        where one side has none.
        """
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
                f"inputs: the windows have SHA-256 {str(self.inputs_hash)[:12]}..., the night "
                "recorded "
                f"{str(self.night['inputs_hash'])[:12]}...: stored prices or the calendar were "
                "changed since"
            )
        if (count := self.night["predictions"]) != (
            held := int(self.predictions["probability"].notna().sum())
        ):
            said.append(f"stored predictions: the night made {count}, {held} are there")
        if self.left_out != self.left_out_again:
            then, now = (", ".join(each) or "none" for each in (self.left_out, self.left_out_again))
            said.append(f"stocks left out: {then} then, {now} now")
        if len(rows):
            symbol, by = self.largest
            said.append(
                f"predictions: {len(rows)} of {len(self.predictions)}, most that of {symbol} by "
                f"{by:.2g}"
            )
        if len(rows) and self.inputs_equal:
            said.append(
                "what may have changed: stored rows, code or machine "
                f"({made_by(self.run, self.device)})"
            )
        return said + ([self.reordered] if self.reordered else [])


def replay_of(
    archive: Archive, night: Mapping[str, Any], known_at: datetime | None = None
) -> Replay:
    """Run a complete night again from bars as it knew them, or as known at a
    moment; why not is in `failure`.
    """
    context, run, stored = archive.of_night(night)
    moment, failure, reordered = known_at or night["known_at"], None, None
    again, inputs_hash = pd.DataFrame({"symbol": [], **{name: [] for name in FIGURES}}), None
    try:
        again, inputs_hash = archive.again(context, archive.model(run), night["as_of"], moment)
        reordered = _reordered(context, night, moment, again)
    except DtmlError as error:
        failure = str(error)
    replayed = again.rename(columns={name: f"replayed_{name}" for name in FIGURES})
    both = stored[["symbol", *FIGURES]].merge(
        replayed.astype({"symbol": str}), on="symbol", how="outer"
    )
    both = both.sort_values("symbol", ignore_index=True)
    device = choose_device(archive.device).type
    return Replay(night, run, moment, device, both, inputs_hash, failure, reordered)


def _reordered(
    context: MarketContext, night: Mapping[str, Any], moment: datetime, again: pd.DataFrame
) -> str | None:
    """Say what differs when a night's stocks are ordered again; None where
    nothing does, or none were.
    """
    with reading(context.engine) as conn:
        kept = rankings.orders(conn, context.name, first=night["target"], last=night["target"])
        if kept.empty:
            return None
        trained = load_trained(context, rankings.ranker(conn, kept["ranker_id"].iloc[-1]) or {})
    kept = kept[kept["ranker_id"] == trained.row["id"]]
    said = again.set_index("symbol")["probability"]
    made = order_night(context, trained, night["as_of"], said, moment)
    both = kept.merge(made, on=["predictor", "symbol"], how="outer", suffixes=("", "_again"))
    differing = ~same(both[["score", "place"]], both[["score_again", "place_again"]]).all(axis=1)
    return (
        f"order: {int(differing.sum())} of {len(both)} places and scores"
        if differing.any()
        else None
    )


def restated_since(archive: Archive, replay: Replay) -> dict[str, int]:
    """Count the bars of a replay's windows that are `restated`, `new` or `gone`
    between its night and its moment.
    """
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
