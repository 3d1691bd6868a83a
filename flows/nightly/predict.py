"""Predict the next session of a market from what is stored, and say which stocks are left out."""

from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import pandas as pd

from db.engine import reading
from db.rows import prices
from dtml.attention import Attention
from dtml.inference import attention
from dtml.inference import predict as probabilities
from dtml.prices.sessions import next_session, sessions_up_to
from dtml.windows import WindowConfig, Windows
from flows.nightly.context import SESSIONS_FOR_GAPS, MarketContext, Tonight
from flows.nightly.train import Model, windows_of

NOT_TRAINED_ON = "the model was trained without it"  # why a stock was left out


@dataclass(frozen=True)
class Forecast:
    """The predictions of one night for the session `target`.

    `predictions`: `dtml.inference.predict` with `calibrated` (NaN for an uncalibrated model).
    `gaps`: the reason for each constituent left out. `known_at`: the watermark of the bars.
    """

    target: date
    predictions: pd.DataFrame
    gaps: dict[str, str]
    known_at: datetime
    windows: Windows


def predict(tonight: Tonight) -> None:
    """Predict the next session."""
    tonight.forecast = forecast(tonight, tonight.model)


def forecast(tonight: Tonight, model: Model) -> Forecast:
    """Return what a model predicts for the next session from the bars that it knew.

    Raises DtmlError where no session of the window has a bar.
    """
    context = tonight.context
    as_of = tonight.as_of
    bars, watermark = tonight.known(first_needed(context, model.ensemble.windows, as_of))
    windows = night_windows(context, model, as_of, bars)
    predictions = predict_windows(context, model, windows)
    return Forecast(
        target=next_session(context.market.calendar, as_of),
        predictions=predictions,
        gaps=_gaps(context, model, predictions, bars, as_of),
        known_at=watermark,
        windows=windows,
    )


def predict_night(
    context: MarketContext, model: Model, as_of: date, bars: pd.DataFrame
) -> pd.DataFrame:
    """Predict the session after `as_of` for its constituents, from bars of `first_needed`..`as_of`.

    Other bars would change the last bits.
    """
    return predict_windows(context, model, night_windows(context, model, as_of, bars))


def predict_windows(context: MarketContext, model: Model, windows: Windows) -> pd.DataFrame:
    """Return `dtml.inference.predict` of these windows, and `calibrated`, or NaN."""
    predictions = probabilities(model.ensemble, windows, context.place)
    if model.calibration is None:
        return predictions.assign(calibrated=np.nan)
    probability = predictions["probability"].to_numpy()
    return predictions.assign(calibrated=model.calibration.apply(probability))


def night_windows(context: MarketContext, model: Model, as_of: date, bars: pd.DataFrame) -> Windows:
    """Return the windows of the session after `as_of`, of its constituents; none unless bars end
    there.

    A model with a gain for each stock sees the stocks that it was trained on.
    """
    symbols = (
        model.ensemble.symbols if model.ensemble.model.is_tied else context.constituents(as_of)
    )
    windows = windows_of(context, bars, model.ensemble.windows, symbols)
    return windows.between(first=pd.Timestamp(next_session(context.market.calendar, as_of)))


def look(context: MarketContext, model: Model, as_of: date, bars: pd.DataFrame) -> Attention:
    """Return who looked at whom when the session after `as_of` was predicted."""
    return attention_of(context, model, night_windows(context, model, as_of, bars))


def attention_of(context: MarketContext, model: Model, tonight: Windows) -> Attention:
    """Return who looks at whom in the windows of one night, among the stocks observed."""
    if not tonight.observed.any():
        return Attention((), np.empty((0, 0)))
    # A night has one day: [1 stocks stocks] becomes [stocks stocks].
    weights = attention(model.ensemble, tonight, context.place)[0].numpy()
    observed = np.flatnonzero(tonight.observed[0].numpy())
    # The result is in the order of the symbols, whatever the order of the model's stocks.
    places = sorted(observed, key=lambda place: tonight.symbols[place])
    symbols = tuple(tonight.symbols[place] for place in places)
    return Attention(symbols, weights[np.ix_(places, places)])


@dataclass(frozen=True)
class Shortage:
    """Say why the bars of a session allow no night, and which symbols lack theirs."""

    what: str
    missing: set[str]


def shortage(context: MarketContext, as_of: date, present: set[str]) -> Shortage | None:
    """Return what a night lacks if only `present` symbols have its bar; None where it can run.

    The index, or more constituents than the market's checks allow.
    """
    index = context.market.index.symbol
    if index not in present:
        return Shortage(f"no good bar of the index {index} on {as_of}", {index})
    constituents = set(context.constituents(as_of))
    missing = constituents - present
    allowed = context.market.checks.max_missing
    if len(missing) <= allowed * len(constituents):
        return None
    return Shortage(
        f"{len(missing)} of {len(constituents)} constituents have no good bar on {as_of}, "
        f"more than the {100 * allowed:g}% allowed",
        missing,
    )


def too_few(context: MarketContext, as_of: date, predictions: pd.DataFrame) -> bool:
    """Return whether so many constituents of a night lack a prediction that it is refused."""
    constituents = len(context.constituents(as_of))
    missing = constituents - len(predictions)
    return missing > context.market.checks.max_missing * constituents


def first_needed(context: MarketContext, config: WindowConfig, as_of: date) -> date:
    """Return the first session that a window ending at `as_of` can read, with bars missing."""
    sessions_read = config.history + SESSIONS_FOR_GAPS
    sessions = sessions_up_to(context.market.calendar, as_of, sessions_read)
    return sessions[0].date()


def _gaps(
    context: MarketContext, model: Model, predictions: pd.DataFrame, bars: pd.DataFrame, as_of: date
) -> dict[str, str]:
    with reading(context.engine) as conn:
        rejected = prices.rejected_bars(conn, context.name, as_of, as_of)
    reasons = dict(zip(rejected["symbol"], rejected["reason"], strict=True))
    present = set(bars.loc[bars["session"] == pd.Timestamp(as_of), "symbol"])
    config = model.ensemble.windows
    window = sessions_up_to(context.market.calendar, as_of, config.window)
    predicted = set(predictions["symbol"])

    def why(symbol: str) -> str:
        # A rejection stays stored after a later fetch has brought a good bar of the session.
        if symbol in reasons and symbol not in present:
            return f"bar rejected: {reasons[symbol]}"
        if symbol not in present:
            return f"no bar on {as_of}"
        if model.ensemble.model.is_tied and symbol not in model.ensemble.symbols:
            return NOT_TRAINED_ON
        sessions = bars.loc[bars["symbol"] == symbol, "session"]
        lacking = window[(window > sessions.min()) & ~window.isin(sessions)]
        if len(lacking):
            return f"no bar on {lacking[-1].date()}, one of the {config.window} sessions to read"
        if len(sessions) < config.history:
            return "too few sessions of history"
        return "a jump of its price, or a long time without a bar, in the sessions to read"

    missing = [symbol for symbol in context.constituents(as_of) if symbol not in predicted]
    return {symbol: why(symbol) for symbol in missing}
