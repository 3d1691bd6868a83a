"""Predict the next session of a market from what is stored, and say which stocks had to be left out."""

from dataclasses import dataclass
from datetime import date, datetime

import pandas as pd

from db import queries
from db.engine import reading
from dtml.features import MAX_GAP
from dtml.inference import choose_device, predict
from dtml.sessions import next_session, sessions_up_to
from dtml.windows import WindowConfig, Windows
from flows.desk import Desk
from flows.train import Model, stored_bars, windows_of


@dataclass(frozen=True)
class Forecast:
    """Predictions of one night, and its inputs' watermark.

    `predictions` has rows `as_of, target, symbol, probability, spread`; `gaps` maps each constituent left out to why.
    """

    target: date
    predictions: pd.DataFrame
    gaps: dict[str, str]
    known_at: datetime


def forecast(desk: Desk, model: Model, as_of: date, known_at: datetime | None = None) -> Forecast:
    """Predict the session after `as_of` from bars as known at a moment (None: now).

    No more sessions are read than a window needs.
    """
    config = model.ensemble.windows
    bars, watermark = stored_bars(desk, _first_needed(desk, config, as_of), as_of, known_at)
    members = desk.members(as_of)
    symbols = model.ensemble.symbols if model.ensemble.is_tied else members
    windows = windows_of(desk, bars, config, symbols)
    tonight = windows.between(first=pd.Timestamp(next_session(desk.market.calendar, as_of)))
    made = predict(model.ensemble, tonight, choose_device(desk.device))
    made = made[made["symbol"].isin(members)].reset_index(drop=True)
    return Forecast(
        target=next_session(desk.market.calendar, as_of),
        predictions=made,
        gaps=_gaps(desk, made, bars, windows, as_of),
        known_at=watermark,
    )


def _first_needed(desk: Desk, config: WindowConfig, as_of: date) -> date:
    """The first session that a window ending at `as_of` can read, bars missing in between allowed for."""
    return sessions_up_to(desk.market.calendar, as_of, config.history + 2 * MAX_GAP)[0].date()


def _gaps(desk: Desk, made: pd.DataFrame, bars: pd.DataFrame, windows: Windows, as_of: date) -> dict[str, str]:
    with reading(desk.engine) as conn:
        refused = queries.refused_bars(conn, desk.name, as_of, as_of)
    reasons = dict(zip(refused["symbol"], refused["reason"], strict=True))
    present = set(bars.loc[bars["session"] == pd.Timestamp(as_of), "symbol"])
    predicted = set(made["symbol"])

    def why(symbol: str) -> str:
        if symbol in reasons and symbol not in present:
            return f"bar refused: {reasons[symbol]}"
        if symbol not in present:
            return f"no bar on {as_of}"
        if symbol not in windows.symbols:
            return "the model was trained without it"
        return "too few sessions of history"

    return {symbol: why(symbol) for symbol in desk.members(as_of) if symbol not in predicted}
