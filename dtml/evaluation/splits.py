"""Split history for training and scoring, so that no outcome trained on reaches the scored days.

Days are positions. The outcome of position p is known at the close of p + `horizon`; a day is
trained on only if that lies `gap` sessions before the first scored day (López de Prado, Advances in
Financial Machine Learning, 2018, chapter 7). That features are known at their day's close, the
look-ahead audit checks (`dtml.lookahead`).
"""

from dataclasses import dataclass

GAP = 1  # sessions between the last outcome trained on and the first session scored


@dataclass(frozen=True)
class Split:
    """Positions that one model is trained on, and those scored; `trained` may end below 0."""

    trained: slice
    scored: slice


def known_before(position: int, *, horizon: int, gap: int = GAP) -> int:
    """Return how many days, from 0 up, have an outcome known `gap` sessions before a position.

    Below 0 where history is too short.
    """
    return position - gap - horizon + 1


def hold_out(stop: int, days: int, *, horizon: int, gap: int = GAP) -> Split:
    """Hold out the last `days` before position `stop`, and train on what was known before them."""
    begin = stop - days
    return Split(
        trained=slice(0, known_before(begin, horizon=horizon, gap=gap)),
        scored=slice(begin, stop),
    )


def walk_forward(first: int, stop: int, *, retrain_every: int, horizon: int) -> list[Split]:
    """Return the splits of a walk over the days from `first` up to `stop`, exclusive, one a model.

    Each scores `retrain_every` days, the last one the rest, and is trained on all days known `GAP`
    sessions before; that end is 0 or less where history is too short.
    """
    return [
        Split(
            trained=slice(0, known_before(begin, horizon=horizon)),
            scored=slice(begin, min(begin + retrain_every, stop)),
        )
        for begin in range(first, stop, retrain_every)
    ]
