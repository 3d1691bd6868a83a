"""Walk forward: when a backtest trains, and which sessions each model then predicts.

A fold is a night with a training and the nights until the next one, run by the same code as nights are.
"""

from dataclasses import dataclass
from datetime import date

import pandas as pd

from dtml.errors import UsageError


@dataclass(frozen=True)
class Fold:
    """A model trained on what was known at the close of `as_of`, for the sessions first .. last, both included."""

    number: int  # from 1
    as_of: date
    first: date
    last: date


def folds(sessions: pd.DatetimeIndex, first: date, last: date, retrain_every: int) -> list[Fold]:
    """Return the folds that predict every session of first .. last, `retrain_every` sessions each.

    `sessions` are those of the exchange, one before `first` among them. Raises UsageError for a span without a
    session.
    """
    if retrain_every < 1:
        raise UsageError(f"a backtest trains anew every 1 session or more, got {retrain_every}")
    start = int(sessions.searchsorted(pd.Timestamp(first), side="left"))
    stop = int(sessions.searchsorted(pd.Timestamp(last), side="right"))
    if start >= stop:
        raise UsageError(f"no session lies in {first} .. {last}")
    begins = range(start, stop, retrain_every)
    spans = [sessions[begin - 1 : min(begin + retrain_every, stop)].date for begin in begins]
    return [Fold(number, days[0], days[1], days[-1]) for number, days in enumerate(spans, start=1)]
