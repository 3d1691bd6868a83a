"""Walk forward: when a backtest trains, what it trains on, and which sessions it then predicts.

A fold is a night of training followed by the nights until the next one: the same spans, the same code.
"""

from dataclasses import dataclass
from datetime import date

import pandas as pd

from dtml.errors import DtmlError, UsageError
from dtml.experiments import Experiment
from dtml.windows import Windows

MINIMUM_TRAIN_DAYS = 64  # of training; below that there is nothing to learn from


@dataclass(frozen=True)
class Fold:
    """Trained on what was known at the close of `as_of`; predicts the sessions first .. last, both included."""

    number: int  # from 1
    as_of: date
    first: date
    last: date


def folds(sessions: pd.DatetimeIndex, first: date, last: date, retrain_every: int) -> list[Fold]:
    """The folds that predict every session of first .. last, each the next `retrain_every` of them.

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
    return [
        Fold(
            number,
            sessions[begin - 1].date(),
            sessions[begin].date(),
            sessions[min(begin + retrain_every, stop) - 1].date(),
        )
        for number, begin in enumerate(begins, start=1)
    ]


def spans(windows: Windows, as_of: date, experiment: Experiment) -> tuple[Windows, Windows]:
    """Training days, then the validation days that choose the epoch; no target lies after `as_of`.

    A gap of `gap_sessions` days parts them from each other and from the first session predicted. Raises DtmlError
    when the history is too short.
    """
    known = windows.between(last=pd.Timestamp(as_of))
    stop = len(known) - experiment.gap_sessions
    cut = stop - experiment.validation_sessions
    end = cut - experiment.gap_sessions
    begin = 0 if experiment.train_sessions is None else max(0, end - experiment.train_sessions)
    if end - begin < MINIMUM_TRAIN_DAYS:
        raise DtmlError(
            f"{len(known)} days up to {as_of} have a whole window; training needs at least {MINIMUM_TRAIN_DAYS} before "
            f"the {experiment.validation_sessions} of validation: fetch a longer history"
        )
    return known.days(slice(begin, end)), known.days(slice(cut, stop))
