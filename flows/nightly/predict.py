"""Predict the next session of a market from what is stored, and say which
stocks had to be left out.
"""

from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import pandas as pd

from db.engine import reading
from db.rows import prices
from dtml.attention.weights import Attention
from dtml.features import MAX_GAP
from dtml.inference import attention, choose_device, predict
from dtml.prices.sessions import next_session, sessions_up_to
from dtml.windows import WindowConfig, Windows
from flows.nightly.context import MarketContext, stored_bars
from flows.nightly.train import Model, windows_of

LOOKS = 3  # stocks kept for each stock: all pairs of 500 would be 250,000 rows a night


@dataclass(frozen=True)
class Forecast:
    """Hold the predictions of one night, and its inputs' watermark.

    `predictions` has the rows of `dtml.inference.predict` and their `calibrated` probability (NaN
    for a model that was not calibrated); `gaps` maps each constituent left out to the reason;
    `inputs_hash` digests the windows that the model read; `looks` has the `LOOKS` stocks that each
    stock looked at most: `target, symbol, source, weight`.
    """

    target: date
    predictions: pd.DataFrame
    gaps: dict[str, str]
    known_at: datetime
    inputs_hash: str
    looks: pd.DataFrame


def forecast(
    context: MarketContext, model: Model, as_of: date, known_at: datetime | None = None
) -> Forecast:
    """Predict the session after `as_of` from bars as known at a moment (None: now).

    It reads only the sessions that a window needs.
    """
    bars, watermark = stored_bars(
        context, first_needed(context, model.ensemble.windows, as_of), as_of, known_at
    )
    tonight = night_windows(context, model, as_of, bars)
    made = predict_windows(context, model, tonight)
    target = next_session(context.market.calendar, as_of)
    return Forecast(
        target=target,
        predictions=made,
        gaps=_gaps(context, model, made, bars, as_of),
        known_at=watermark,
        inputs_hash=tonight.digest,
        looks=_most_looked_at(attention_of(context, model, tonight)).assign(
            target=pd.Timestamp(target)
        ),
    )


def predict_night(
    context: MarketContext, model: Model, as_of: date, bars: pd.DataFrame
) -> pd.DataFrame:
    """Predict the session after `as_of` for that day's constituents, from bars that end there.

    The bars must begin at `first_needed`, so that every caller gets the same prediction to the last
    bit.
    """
    return predict_windows(context, model, night_windows(context, model, as_of, bars))


def predict_windows(context: MarketContext, model: Model, windows: Windows) -> pd.DataFrame:
    """Predict these windows, with calibrated probabilities (NaN for a model
    that was not calibrated).
    """
    made = predict(model.ensemble, windows, choose_device(context.device))
    said = made["probability"].to_numpy()
    return made.assign(
        calibrated=np.nan if model.calibration is None else model.calibration.apply(said)
    )


def night_windows(context: MarketContext, model: Model, as_of: date, bars: pd.DataFrame) -> Windows:
    """Return the windows of the session after `as_of`; none when the bars do not end there."""
    symbols = model.ensemble.symbols if model.ensemble.is_tied else context.constituents(as_of)
    windows = windows_of(context, bars, model.ensemble.windows, symbols)
    return windows.between(first=pd.Timestamp(next_session(context.market.calendar, as_of)))


def look(context: MarketContext, model: Model, as_of: date, bars: pd.DataFrame) -> Attention:
    """Return who looked at whom when the session after `as_of` was predicted."""
    return attention_of(context, model, night_windows(context, model, as_of, bars))


def attention_of(context: MarketContext, model: Model, tonight: Windows) -> Attention:
    """Return who looks at whom in the windows of one night, among the stocks
    observed; maybe none.
    """
    if not tonight.observed.any():
        return Attention((), np.empty((0, 0)))
    weights = attention(model.ensemble, tonight, choose_device(context.device))[0].numpy()
    there = sorted(
        np.flatnonzero(tonight.observed[0].numpy()), key=lambda place: tonight.symbols[place]
    )
    return Attention(
        tuple(tonight.symbols[place] for place in there), weights[np.ix_(there, there)]
    )


def _most_looked_at(seen: Attention) -> pd.DataFrame:
    """Return the `LOOKS` other stocks that each stock looked at most, by symbol
    and falling weight.
    """
    rows = [
        (symbol, *driver) for symbol, drivers in seen.drivers(LOOKS).items() for driver in drivers
    ]
    return pd.DataFrame(rows, columns=["symbol", "source", "weight"])


@dataclass(frozen=True)
class Shortage:
    """Say why the bars of a session allow no night, and which symbols lack theirs."""

    what: str
    missing: set[str]


def shortage(context: MarketContext, as_of: date, present: set[str]) -> Shortage | None:
    """Say what keeps a session with bars of these symbols from a night: its
    index, or too many stocks missing.
    """
    index, constituents = context.market.index.symbol, set(context.constituents(as_of))
    if index not in present:
        return Shortage(f"no good bar of the index {index} on {as_of}", {index})
    missing, allowed = constituents - present, context.market.checks.max_missing
    if len(missing) <= allowed * len(constituents):
        return None
    what = f"{len(missing)} of {len(constituents)} constituents have no good bar on {as_of}"
    return Shortage(f"{what}, more than the {allowed:.0%} allowed", missing)


def too_few(context: MarketContext, as_of: date, predictions: pd.DataFrame) -> bool:
    """Return whether a night is refused because too many of its constituents cannot be
    predicted.
    """
    constituents = len(context.constituents(as_of))
    return constituents - len(predictions) > context.market.checks.max_missing * constituents


def first_needed(context: MarketContext, config: WindowConfig, as_of: date) -> date:
    """Return the first session that a window ending at `as_of` can read,
    allowing for missing bars.
    """
    return sessions_up_to(context.market.calendar, as_of, config.history + 2 * MAX_GAP)[0].date()


def _gaps(
    context: MarketContext, model: Model, made: pd.DataFrame, bars: pd.DataFrame, as_of: date
) -> dict[str, str]:
    with reading(context.engine) as conn:
        rejected = prices.rejected_bars(conn, context.name, as_of, as_of)
    reasons = dict(zip(rejected["symbol"], rejected["reason"], strict=True))
    present = set(bars.loc[bars["session"] == pd.Timestamp(as_of), "symbol"])
    predicted = set(made["symbol"])

    def why(symbol: str) -> str:
        if symbol in reasons and symbol not in present:
            return f"bar rejected: {reasons[symbol]}"
        if symbol not in present:
            return f"no bar on {as_of}"
        if model.ensemble.is_tied and symbol not in model.ensemble.symbols:
            return "the model was trained without it"
        return "too few sessions of history"

    return {
        symbol: why(symbol) for symbol in context.constituents(as_of) if symbol not in predicted
    }
