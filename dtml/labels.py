"""Labels of stock-days: which returns are a rise or a fall, and which count under a label protocol."""

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.markets.definition import LabelProtocol

RISE, FALL = 0.0055, -0.005  # the paper's labels: a return from +0.55 % is a rise, one to -0.5 % a fall


def paper_labels(change: Float[ndarray, "*shape"]) -> Int[ndarray, "*shape"]:
    """Return 1 for a rise, -1 for a fall, 0 for a return between the thresholds or an unknown one (section 4.1)."""
    return np.select([change >= RISE, change <= FALL], [1, -1], default=0)


def labelled(change: Float[ndarray, "*shape"], protocol: LabelProtocol) -> Bool[ndarray, "*shape"]:
    """Return which returns count: those that are known and, under the paper's protocol, large enough for a label."""
    known = np.isfinite(change)
    return np.asarray(known if protocol == "all" else known & (paper_labels(change) != 0))
