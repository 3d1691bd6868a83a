"""Do a user's features say of a day, asked with what followed it, what a night said that knew less?

Of each day they are asked twice: with the whole panel, as a training asks, and with the sessions up
to that day alone, as its night asks. Whatever looks ahead differs, however rarely, and whatever it
is that it looks at.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool

from dtml.own.code import PRICES, cut
from dtml.own.process import Asked, Told
from dtml.ranking.panel import Features, Grid, Panel

SAME = 1e-6  # of the day's standard deviation: below it a difference is of rounding
SHORT = (32, 128)  # sessions that are tried before a feature's whole history: most read no more
TRIED = 3  # days on which they are


@dataclass(frozen=True)
class Disagreement:
    """What a feature said of a day that a night did not.

    One that `reads_too_far` says the same from a longer past: it needs no future.
    """

    detail: str
    reads_too_far: bool


@dataclass(frozen=True)
class Answers:
    """What the features of a user's code say of some days of a panel, which they see whole.

    `days` are positions in the panel, in order; `values` are [days stocks features].
    """

    panel: Panel
    days: Sequence[int]
    values: Features

    def on(self, days: Sequence[int]) -> "Answers":
        """Return the answers of some of the days."""
        rows = np.searchsorted(self.days, days)
        return replace(self, days=days, values=self.values[rows])

    def difference(self, column: int, others: Features, ending: str = "when that changes") -> str:
        """Say where a feature differs most from other values of it; nothing
        where it is the same.
        """
        sessions = self.panel.sessions[list(self.days)]
        values = self.values[..., column], others[..., column]
        return difference(*values, sessions, self.panel.symbols, ending)


def answers_of(asked: Asked, panel: Panel, days: Sequence[int] | None = None) -> Answers:
    """Ask a user's features about these days of a panel (None: about all)."""
    _, values = asked.values(panel, days)
    return Answers(panel, range(len(panel.sessions)) if days is None else days, values)


def windows_of(asked: Asked, told: Told, answers: Answers) -> dict[str, int]:
    """Return how many sessions each feature is to be asked with: the fewest that seem to suffice.

    An answer from fewer sessions that is the same is as good a proof, and costs less.
    """
    windows = dict.fromkeys(told["features"], int(told["history"]))
    tried = answers.on(answers.days[-TRIED:])
    for short in sorted(SHORT, reverse=True):
        if short < told["history"]:
            nights = asked.nights(tried.panel, tried.days, dict.fromkeys(windows, short))
            for column, name in enumerate(told["features"]):
                if not tried.difference(column, nights):
                    windows[name] = short
    return windows


def disagreements(
    asked: Asked, told: Told, answers: Answers, windows: Mapping[str, int]
) -> dict[str, Disagreement]:
    """Compare answers with what nights would have said of the same days, by the feature's name."""
    differing = _differing(asked, told, answers, windows)
    short = [name for name in differing if windows[name] < told["history"]]
    if short:  # they may read more on some days than on those that were tried
        whole = dict.fromkeys(short, int(told["history"]))
        differing = {name: each for name, each in differing.items() if name not in short}
        differing |= _differing(asked, told, answers, whole)
    return {
        name: _explained(asked, told, answers, name, nights) for name, nights in differing.items()
    }


def _differing(
    asked: Asked, told: Told, answers: Answers, windows: Mapping[str, int]
) -> dict[str, Features]:
    """Return what nights say, by the name of each feature in which it is something else."""
    nights = asked.nights(answers.panel, answers.days, windows)
    columns = enumerate(told["features"])
    named = ((column, name) for column, name in columns if name in windows)
    return {name: nights for column, name in named if answers.difference(column, nights)}


def _explained(
    asked: Asked, told: Told, answers: Answers, name: str, nights: Features
) -> Disagreement:
    """Tell look-ahead from a feature that only reads further back, by asking
    with the whole past.
    """
    column = told["features"].index(name)
    far = _far(answers.values[..., column], nights[..., column])
    row = int(far.any(axis=1).argmax())
    day = answers.days[row]
    that_day = answers.on([day])
    _, known = asked.values(cut(answers.panel, slice(day + 1)), [day])
    if that_day.difference(column, known):
        ending = "from what was known then"
        return Disagreement(answers.difference(column, nights, ending), reads_too_far=False)
    ending = f"from the last {told['history']} sessions"
    return Disagreement(that_day.difference(column, nights[[row]], ending), reads_too_far=True)


def difference(
    values: Grid,
    others: Grid,
    sessions: pd.DatetimeIndex,
    symbols: Sequence[str],
    ending: str = "when that changes",
) -> str:
    """Say where two grids, [sessions stocks], differ most; nothing where they are the same."""
    far = _distance(values, others)
    gone = np.isfinite(values) != np.isfinite(others)
    differs = _far(values, others)
    if not differs.any():
        return ""
    # Where both are known somewhere, that says how much.
    worst = np.where(gone, 0 if (far[~gone] > SAME).any() else np.inf, far)
    day, stock = divmod(int(worst.argmax()), worst.shape[1])
    pair = (values[day, stock], others[day, stock])
    one, two = (f"{each:.6g}" if np.isfinite(each) else "missing" for each in pair)
    where = f"{symbols[stock]} on {sessions[day].date()} is {one}, and {two} {ending}"
    return f"{where} ({int(differs.sum())} of {differs.size} values differ)"


def _distance(values: Grid, others: Grid) -> Grid:
    """Return how far values lie apart, in standard deviations of their day."""
    deviation = np.nan_to_num(pd.DataFrame(values).std(axis=1).to_numpy())[:, None]
    one, two = np.nan_to_num(values), np.nan_to_num(others)
    return np.asarray(np.abs(one - two) / (deviation + 1e-12 + 1e-9 * np.abs(one)))


def _far(values: Grid, others: Grid) -> Bool[np.ndarray, "days stocks"]:
    gone = np.isfinite(values) != np.isfinite(others)
    return np.asarray(gone | (_distance(values, others) > SAME))


def turns(sessions: pd.DatetimeIndex) -> list[int]:
    """Return the last and the first session of the latest month, quarter and year that ended."""
    found = set()
    for period in ("M", "Q", "Y"):
        named = sessions.to_period(period)
        begins = np.flatnonzero(named[1:] != named[:-1]) + 1
        found |= {int(day) for first in begins[-1:] for day in (first - 1, first)}
    return sorted(found)


def other_sizes(panel: Panel) -> tuple[Panel, Panel]:
    """Return a panel with a session less and a stock more, and the other way round."""
    return _with_a_stock(cut(panel, slice(0, -1))), _with_a_session(_without_a_stock(panel))


def _with_a_stock(panel: Panel) -> Panel:
    """Return a panel with one more stock, which had the prices of the last one in reverse."""
    symbols = (*panel.symbols, f"{panel.symbols[-1]}2")
    return _made(panel.sessions, symbols, panel, lambda grid: np.hstack([grid, grid[::-1, -1:]]))


def _without_a_stock(panel: Panel) -> Panel:
    return _made(panel.sessions, panel.symbols[:-1], panel, lambda grid: grid[:, :-1])


def _with_a_session(panel: Panel) -> Panel:
    """Return a panel with one more session, which repeats the one before the last."""
    next_day = panel.sessions[-1] + pd.offsets.BusinessDay(1)
    sessions = pd.DatetimeIndex([*panel.sessions, next_day])
    return _made(sessions, panel.symbols, panel, lambda grid: np.vstack([grid, grid[-2:-1]]))


def _made(
    sessions: pd.DatetimeIndex,
    symbols: tuple[str, ...],
    panel: Panel,
    change: Callable[[Grid], Grid],
) -> Panel:
    """Return a panel of these sessions and stocks, whose grids are those of another, changed."""
    return Panel(sessions, symbols, *(change(getattr(panel, name)) for name in PRICES))
