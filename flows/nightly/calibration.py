"""Read the calibrations of models that the store holds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dtml.evaluation.calibration import Calibration


def calibration_of(run: Mapping[str, Any], bands: pd.DataFrame) -> Calibration | None:
    """Return the calibration that a row of `run` and its bands hold; None for a model that was not calibrated."""
    if run["slope"] is None or bands.empty:
        return None
    thresholds = dict(zip(bands["level"], bands["threshold"], strict=True))
    first = bands.iloc[0]
    return Calibration(run["slope"], run["intercept"], thresholds, int(first["days"]), int(first["n"]))


def threshold_at(bands: pd.DataFrame, level: float) -> float | None:
    """Return the threshold of a run at a level; None where the run was not calibrated."""
    found = bands.loc[np.isclose(bands["level"].astype(float), level), "threshold"]
    return None if found.empty else float(found.iloc[0])


def calibrations(runs: pd.DataFrame) -> dict[str, Calibration]:
    """Return the calibration of each run that has one, by its id, without thresholds."""
    fitted = runs.dropna(subset=["slope", "intercept"])
    rows = zip(fitted["id"], fitted["slope"], fitted["intercept"], strict=True)
    return {run_id: Calibration(float(slope), float(intercept), {}, 0, 0) for run_id, slope, intercept in rows}
