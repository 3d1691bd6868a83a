"""Open the past of a market: its nights, its bars as known at any moment, and what its models predict from them."""

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
from db.rows.nights import COMPLETE
from dtml.errors import DtmlError, UsageError
from dtml.markets import Constituent, Market
from flows.market_files import read_market
from flows.nightly.context import MarketContext, RunRequest, StoredSource, experiment_for, read_bars
from flows.nightly.predict import first_needed, night_windows, predict_windows
from flows.nightly.train import Model, load_run

FIGURES = ("probability", "probability_std", "calibrated", "lowest", "highest", "rising_share")


class NotReplayedError(DtmlError):
    """Say that a past prediction was made again and differs, or cannot be made."""


@dataclass(frozen=True)
class Again:
    """Hold what a model predicts when it is asked again: a digest of its inputs, and `symbol` with `FIGURES`."""

    inputs_hash: str
    predictions: pd.DataFrame


@dataclass
class Archive:
    """Read, and never write, a market's past: its nights, its bars as known at any moment, its models, loaded once."""

    engine: Engine
    market: Market
    device: str = "auto"
    models: dict[str, Model] = field(default_factory=dict)

    def night(self, as_of: date | None) -> dict[str, Any]:
        """Return the row of a complete night, by default the last; raise UsageError, which says which there are."""
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
        """Return the rows of all complete nights, oldest first; raise UsageError when there is none."""
        name = self.market.name
        with reading(self.engine) as conn:
            newest_first = [dict(row) for row in conn.execute(stored_nights.night_log(name)).mappings()]
        rows = [row for row in reversed(newest_first) if row["status"] in COMPLETE]
        if not rows:
            raise UsageError(f"no night of {name} is complete: run `dtml nightly {name}` first")
        return rows

    def context(self, run: Mapping[str, Any], symbols: Iterable[str]) -> MarketContext:
        """Return a market context over these stocks and the index of a run, whatever the market says today."""
        plain = replace(market_then(self.market, run), constituents=()).with_symbols(sorted(symbols))
        source, experiment = StoredSource(self.engine, plain), experiment_for(plain)
        return MarketContext(plain, source, self.engine, experiment, self.device, None)

    def model(self, run: Mapping[str, Any]) -> Model:
        """Return the model of a run, its weights checked against the run's row the first time."""
        if run["id"] not in self.models:
            self.models[run["id"]] = load_run(self.context(run, []), run)
        return self.models[run["id"]]

    def bars(self, context: MarketContext, model: Model, as_of: date, known_at: datetime) -> pd.DataFrame:
        """Read the bars that a window ending at `as_of` can reach, as known at a moment, each with its `known_at`."""
        return read_bars(context, first_needed(context, model.ensemble.windows, as_of), as_of, known_at)

    def again(self, context: MarketContext, model: Model, as_of: date, known_at: datetime) -> Again:
        """Predict the session after `as_of` from bars as known at a moment."""
        tonight = night_windows(context, model, as_of, self.bars(context, model, as_of, known_at))
        made = predict_windows(context, model, tonight)
        return Again(tonight.digest, made[["symbol", *FIGURES]])


def open_archive(request: RunRequest) -> Archive:
    """Open the past of the market that a run request names, in an existing store."""
    return Archive(open_reader(), read_market(request.market, request.market_file), request.device)


def market_then(market: Market, run: Mapping[str, Any]) -> Market:
    """Return the market with the index and the constituents that a run was trained on."""
    known = run["universe"]
    days = ((symbol, _day(since), _day(until)) for symbol, since, until in known["constituents"])
    stays = tuple(Constituent(symbol, symbol, since=since, until=until) for symbol, since, until in days)
    return replace(market, index=replace(market.index, symbol=known["index"]), constituents=stays)


def changed_since(market: Market, run: Mapping[str, Any]) -> str | None:
    """Say how a market's index and list of today differ from those a run was trained on; None where they do not.

    A market without a list takes its stocks from the prices, and has none to compare.
    """
    then = market_then(market, run)
    said = []
    if then.index.symbol != market.index.symbol:
        said.append(f"the index is {market.index.symbol}, was {then.index.symbol}")
    if market.constituents:
        before, after = ({(c.symbol, c.since, c.until) for c in each.constituents} for each in (then, market))
        names = [sorted({symbol for symbol, *_ in part}) for part in (after - before, before - after)]
        joined, left = (sorted(set(one) - set(other.symbols)) for one, other in zip(names, (then, market), strict=True))
        dated = sorted(set(names[0]) - set(joined))
        changes = {"joined": joined, "left": left, "has other dates": dated}
        said += [f"{', '.join(each)} {how}" for how, each in changes.items() if each]
    return "; ".join(said) or None


def _day(text: str | None) -> date | None:
    return None if text is None else date.fromisoformat(text)


def same(stored: ArrayLike, again: ArrayLike) -> NDArray[np.bool_]:
    """Return where figures are the same to the last bit, missing ones (NaN) included."""
    then, now = np.asarray(stored, dtype=float), np.asarray(again, dtype=float)
    return np.asarray((then == now) | np.isnan(then) & np.isnan(now))


def stocks_of(night: Mapping[str, Any], predicted: Iterable[str]) -> set[str]:
    """Return the stocks that a night looked at: those it predicted, and those it left out."""
    return {*predicted, *(gap["symbol"] for gap in night["gaps"])}


def made_by(run: Mapping[str, Any], device: str) -> str:
    """Say what decides last bits: what computes now, and the code that trained a run; a store keeps no more."""
    now = f"code {version('dtml-nightshift')}, torch {version('torch')}, on {device}"
    return f"{now}; trained by code {run['code_version']}"
