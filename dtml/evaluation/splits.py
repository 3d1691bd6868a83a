"""Split history for training and scoring, so that no outcome trained on reaches the scored days.

The folds of a ranking's walk come from here, and the validation days that choose an epoch, a slope
or a setting. Days are positions, in time. The outcome of a day takes `horizon` sessions: that of
position p is known at the close of p + horizon. A day is left out of the training unless its
outcome was known `gap` sessions before the first scored day, as in López de Prado, Advances in
Financial Machine Learning (2018), chapter 7.

A split is honest only if its features are known at the close of their day; that, the look-ahead
audit checks (`dtml.lookahead`).
"""

from dataclasses import dataclass

GAP = 1  # sessions between the last outcome trained on and the first session scored


@dataclass(frozen=True)
class Split:
    """Positions that one model is trained on, and those that it is scored on.

    Where history is too short, the end of `trained` may be below 0; callers must check it.
    """

    trained: slice
    scored: slice


def known_before(position: int, *, horizon: int, gap: int = GAP) -> int:
    """Return how many days have an outcome known `gap` sessions before a position.

    These days are the positions from 0 up to the returned number, exclusive. The number is below 0
    where history is too short.
    """
    return position - gap - horizon + 1


def hold_out(stop: int, days: int, *, horizon: int, gap: int = GAP) -> Split:
    """Hold out the last `days` before position `stop`, and train on what was known before them."""
    begin = stop - days
    return Split(
        trained=slice(0, known_before(begin, horizon=horizon, gap=gap)),
        scored=slice(begin, stop),
    )


def walk_forward(
    first: int, stop: int, *, retrain_every: int, horizon: int, gap: int = GAP
) -> list[Split]:
    """Return the splits of a walk over the days from `first` up to `stop`, exclusive, one a model.

    Each model scores `retrain_every` days, the last one those that are left. It is trained on all
    days whose outcomes were known `gap` sessions before the first of these. Where history is too
    short, there are no such days, and the end of `trained` is 0 or less.
    """
    return [
        Split(
            trained=slice(0, known_before(begin, horizon=horizon, gap=gap)),
            scored=slice(begin, min(begin + retrain_every, stop)),
        )
        for begin in range(first, stop, retrain_every)
    ]
