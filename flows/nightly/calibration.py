"""What predictions can later be judged by: calibration on validation days, rules' calls, counts of what came true."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy import ndarray
from sqlalchemy import Connection

from db.rows import calibration, prices
from dtml.baselines.naive_rules import calls_on, rules_read_from
from dtml.checkpoints import Ensemble
from dtml.evaluation.calibration import Calibration, calibrate, count_band, count_bins
from dtml.inference import member_probabilities
from dtml.prices.sessions import next_session
from dtml.windows import Windows, paper_labels
from flows.nightly.context import Desk


def calibrate_on(ensemble: Ensemble, validation: Windows, device: torch.device) -> Calibration:
    """The calibration of an ensemble's mean probability on its validation days."""
    said = member_probabilities(ensemble, validation, device).mean(dim=0)
    return calibrate(said.double().numpy(), validation.movement.double().numpy())


def calibration_of(run: Mapping[str, Any], bands: pd.DataFrame) -> Calibration | None:
    """The calibration that a row of `run` and its bands hold; None for a model that was not calibrated."""
    if run["slope"] is None or bands.empty:
        return None
    thresholds = dict(zip(bands["level"], bands["threshold"], strict=True))
    first = bands.iloc[0]
    return Calibration(run["slope"], run["intercept"], thresholds, int(first["days"]), int(first["n"]))


def threshold_at(bands: pd.DataFrame, level: float) -> float | None:
    """The threshold of a run at a level; None where the run was not calibrated."""
    found = bands.loc[np.isclose(bands["level"].astype(float), level), "threshold"]
    return None if found.empty else float(found.iloc[0])


def rules_on(conn: Connection, desk: Desk, days: pd.DatetimeIndex, known_at: datetime | None = None) -> pd.DataFrame:
    """What each naive rule calls for the session after each of `days`, from the index as known at a moment (None: now).

    A row a day, in their order; a column a rule.
    """
    first, index = rules_read_from(desk.market.calendar, days.min().date()), desk.market.index.symbol
    bars = prices.prices(conn, desk.name, first, days.max().date(), known_at=known_at, symbols=[index])
    return calls_on(days, bars, index)


def rule_calls(conn: Connection, desk: Desk, as_of: date, known_at: datetime | None = None) -> pd.DataFrame:
    """What each naive rule calls for the session after `as_of`, as rows of `rule_call`; see `rules_on`."""
    calls = rules_on(conn, desk, pd.DatetimeIndex([as_of]), known_at)
    return dated_calls(calls, pd.DatetimeIndex([next_session(desk.market.calendar, as_of)]))


def dated_calls(calls: pd.DataFrame, target: pd.DatetimeIndex) -> pd.DataFrame:
    """Rules' calls by session seen as rows of `rule_call`: as_of, target, a column a rule (True, False or missing)."""
    said = {rule: [None if np.isnan(each) else bool(each) for each in calls[rule]] for rule in calls}
    return pd.DataFrame({"as_of": calls.index, "target": target} | said).astype(dict.fromkeys(said, object))


def outcome_rows(
    symbol: "pd.Index[str] | pd.Series[str]",
    session: "pd.DatetimeIndex | pd.Series[Any]",
    move: Float[ndarray, " rows"],
) -> pd.DataFrame:
    """What became of stock-days as rows of `outcome`, from their moves: ratios minus 1."""
    labels = paper_labels(move)
    return pd.DataFrame({"symbol": symbol, "session": session, "move": move, "rise": move > 0, "label": labels})


def save_counts(conn: Connection, settled: pd.DataFrame, bands: pd.DataFrame) -> None:
    """Store, night by night, what came of predictions: `run_id, target, probability, calibrated, rise`.

    `bands` has `run_id, level, threshold`; what has no calibrated probability is in no band.
    """
    for run_id, mine in settled.groupby("run_id"):
        calibration.save_bins(conn, count_bins(mine).assign(run_id=run_id))
        calibration.save_band_counts(conn, count_band(mine, bands).assign(run_id=run_id))
