"""The stocks that a stock moves with: those whose returns, less the mean of each day, were closest to its own."""

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray

from dtml.ranking.panel import Grid, mean_of_known

PEERS = 10
SESSIONS = 250  # before a month, in which peers moved together
LEAST_SESSIONS = 60  # with fewer returns, a stock has no peers and is none
MONTH = 23  # sessions, at most


def peer_returns(returns: Grid, sessions: pd.DatetimeIndex) -> Grid:
    """Return the mean return of the peers of each stock in each session, a ratio minus 1; NaN where it has none.

    Its peers of a month are the `PEERS` stocks with the highest correlation, above 0, over the `SESSIONS` before that
    month. The month is the calendar's, so that neither later bars nor an earlier beginning change them.
    """
    found, months = np.full_like(returns, np.nan), sessions.year * 12 + sessions.month
    for month in months.unique():
        days = np.flatnonzero(months == month)
        seen = returns[max(0, days[0] - SESSIONS) : days[0]]
        if len(seen) >= LEAST_SESSIONS:
            chosen = _peers(seen)
            theirs = np.where(chosen < 0, np.nan, returns[days][:, chosen])  # [days, stocks, peers]
            found[days] = np.where(np.isfinite(theirs).any(axis=-1), mean_of_known(theirs, -1), np.nan)
    return found


def _peers(returns: Float[ndarray, "sessions stocks"]) -> Int[ndarray, "stocks peers"]:
    """Return the positions of each stock's peers, -1 for one that is missing; a missing return is the day's mean."""
    known = np.isfinite(returns)
    excess = np.where(known, returns - mean_of_known(returns, 1)[:, None], np.nan)
    excess = np.where(known, excess - mean_of_known(excess, 0), 0.0)
    size = np.sqrt((excess**2).sum(axis=0))
    together = excess.T @ excess / np.maximum(np.outer(size, size), np.finfo(float).tiny)
    np.fill_diagonal(together, 0.0)
    few = known.sum(axis=0) < LEAST_SESSIONS
    together[:, few] = together[few] = 0.0
    chosen = np.argsort(-together, axis=1, kind="stable")[:, :PEERS]
    return np.where(np.take_along_axis(together, chosen, axis=1) > 0, chosen, -1)
