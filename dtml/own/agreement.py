"""Do a user's features, asked with what followed a day, say of it what a night said that knew less?

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

    def difference(self, column: int, others: Features, ending: str = "in the check") -> str:
        """Say where a feature differs most from other values; nothing where it is the same."""
        return difference(
            self.values[..., column],
            others[..., column],
            sessions=self.panel.sessions[list(self.days)],
            symbols=self.panel.symbols,
            ending=ending,
        )


def answers_of(asked: Asked, panel: Panel, days: Sequence[int] | None = None) -> Answers:
    """Ask a user's features about these days of a panel (None: about all)."""
    _, values = asked.values(panel, days)
    asked_days = range(len(panel.sessions)) if days is None else days
    return Answers(panel=panel, days=asked_days, values=values)


def windows_of(asked: Asked, told: Told, answers: Answers) -> dict[str, int]:
    """Return how many sessions each feature is to be asked with: the fewest that seem to suffice.

    An answer from fewer sessions that is the same is as good a proof, and costs less.
    """
    history = int(told["history"])
    windows = dict.fromkeys(told["features"], history)
    tried = answers.on(answers.days[-TRIED:])
    for short in sorted(SHORT, reverse=True):
        if short >= history:
            continue
        nights = asked.nights(tried.panel, tried.days, dict.fromkeys(windows, short))
        for column, name in enumerate(told["features"]):
            if not tried.difference(column, nights):
                windows[name] = short
    return windows


def disagreements(
    asked: Asked, told: Told, answers: Answers, windows: Mapping[str, int]
) -> dict[str, Disagreement]:
    """Compare answers with what nights would have said of the same days, by the feature's name."""
    history = int(told["history"])
    differing = _differing(asked, told, answers, windows)
    short = [name for name in differing if windows[name] < history]
    if short:  # they may read more on some days than on those that were tried
        with_history = _differing(asked, told, answers, dict.fromkeys(short, history))
        differing = {name: nights for name, nights in differing.items() if name not in short}
        differing.update(with_history)
    return {
        name: _explained(asked, told, answers, name, nights) for name, nights in differing.items()
    }


def _differing(
    asked: Asked, told: Told, answers: Answers, windows: Mapping[str, int]
) -> dict[str, Features]:
    """Return what nights say, by the name of each feature in which it is something else."""
    nights = asked.nights(answers.panel, answers.days, windows)
    return {
        name: nights
        for column, name in enumerate(told["features"])
        if name in windows and answers.difference(column, nights)
    }


def _explained(
    asked: Asked, told: Told, answers: Answers, name: str, nights: Features
) -> Disagreement:
    """Tell look-ahead from a feature that only reads further back.

    The feature is asked once more about the first day that differs, with that day's whole past.
    """
    column = told["features"].index(name)
    differs = _far(answers.values[..., column], nights[..., column])
    row = int(differs.any(axis=1).argmax())
    day = answers.days[row]
    that_day = answers.on([day])
    past = cut(answers.panel, slice(day + 1))
    _, known_then = asked.values(past, [day])
    if that_day.difference(column, known_then):
        detail = answers.difference(column, nights, ending="from what was known then")
        return Disagreement(detail, reads_too_far=False)
    detail = that_day.difference(
        column, nights[[row]], ending=f"from the last {told['history']} sessions"
    )
    return Disagreement(detail, reads_too_far=True)


def difference(
    values: Grid,
    others: Grid,
    sessions: pd.DatetimeIndex,
    symbols: Sequence[str],
    ending: str = "in the check",
) -> str:
    """Say where two grids, [sessions stocks], differ most; nothing where they are the same."""
    if np.array_equal(values, others, equal_nan=True):
        return ""
    differs = _far(values, others)
    if not differs.any():
        return ""
    distance = _distance(values, others)
    is_missing = np.isfinite(values) != np.isfinite(others)
    # Where both are known somewhere, that says how much.
    known_differ = (distance[~is_missing] > SAME).any()
    size = np.where(is_missing, 0 if known_differ else np.inf, distance)
    day, stock = divmod(int(size.argmax()), size.shape[1])
    value = _in_words(values[day, stock])
    other = _in_words(others[day, stock])
    return (
        f"{symbols[stock]} on {sessions[day].date()} is {value}, but {other} {ending} "
        f"({int(differs.sum())} of {differs.size} values differ)"
    )


def _in_words(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else "missing"


def _distance(values: Grid, others: Grid) -> Grid:
    """Return how far values lie apart, in standard deviations of their day."""
    deviation = np.nan_to_num(pd.DataFrame(values).std(axis=1).to_numpy())[:, None]
    known = np.nan_to_num(values)
    others_known = np.nan_to_num(others)
    unit = deviation + 1e-12 + 1e-9 * np.abs(known)
    return np.asarray(np.abs(known - others_known) / unit)


def _far(values: Grid, others: Grid) -> Bool[np.ndarray, "days stocks"]:
    """Return which values differ by more than rounding, or are missing in one alone."""
    is_missing = np.isfinite(values) != np.isfinite(others)
    return np.asarray(is_missing | (_distance(values, others) > SAME))


def turns(sessions: pd.DatetimeIndex) -> list[int]:
    """Return the last and the first session of the latest month, quarter and year that ended."""
    days: set[int] = set()
    for period in ("M", "Q", "Y"):
        periods = sessions.to_period(period)
        beginnings = np.flatnonzero(periods[1:] != periods[:-1]) + 1
        if len(beginnings):
            latest = int(beginnings[-1])
            days.update((latest - 1, latest))
    return sorted(days)


def other_sizes(panel: Panel) -> tuple[Panel, Panel]:
    """Return a panel with a session less and a stock more, and the other way round."""
    fewer_sessions = cut(panel, slice(0, -1))
    fewer_stocks = _without_a_stock(panel)
    return _with_a_stock(fewer_sessions), _with_a_session(fewer_stocks)


def _with_a_stock(panel: Panel) -> Panel:
    """Return a panel with one more stock, which had the prices of the last one in reverse."""
    symbols = (*panel.symbols, f"{panel.symbols[-1]}2")
    return _changed(
        panel,
        sessions=panel.sessions,
        symbols=symbols,
        change=lambda grid: np.hstack([grid, grid[::-1, -1:]]),
    )


def _without_a_stock(panel: Panel) -> Panel:
    return _changed(
        panel,
        sessions=panel.sessions,
        symbols=panel.symbols[:-1],
        change=lambda grid: grid[:, :-1],
    )


def _with_a_session(panel: Panel) -> Panel:
    """Return a panel with one more session, which repeats the one before the last."""
    next_day = panel.sessions[-1] + pd.offsets.BusinessDay(1)
    return _changed(
        panel,
        sessions=pd.DatetimeIndex([*panel.sessions, next_day]),
        symbols=panel.symbols,
        change=lambda grid: np.vstack([grid, grid[-2:-1]]),
    )


def _changed(
    panel: Panel,
    *,
    sessions: pd.DatetimeIndex,
    symbols: tuple[str, ...],
    change: Callable[[Grid], Grid],
) -> Panel:
    """Return a panel of these sessions and stocks, whose grids are those of another, changed."""
    prices = {name: change(getattr(panel, name)) for name in PRICES}
    return Panel(sessions=sessions, symbols=symbols, **prices)
