"""Compare a user's features of a day as a training reads them with those that its night reads.

For each day they are computed twice: from the whole panel, as in a training, and from the sessions
up to that day alone, as in a night. A feature that looks ahead differs, however rarely it does so
and whatever it looks at.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool

from dtml.own.code import PRICES, cut
from dtml.own.process import Description, IsolatedCode
from dtml.ranking.panel import Features, Grid, Panel

ROUNDING = 1e-6  # of the day's standard deviation: a smaller difference is one of rounding
# Numbers of sessions that are tried before a feature's whole history: most features need no more.
SHORT = (32, 128)
TRIED = 3  # days on which each is tried


@dataclass(frozen=True)
class Disagreement:
    """A difference between a feature's values of a day and those of its night.

    `detail` says in words where they differ. `reads_too_far` is true for a feature that does not
    look ahead: computed from all sessions up to the day, it has the same value as in a training,
    and only from the last HISTORY of them, which a night reads, it has another.
    """

    detail: str
    reads_too_far: bool


@dataclass(frozen=True)
class Answers:
    """The values of a user's features on some days, computed from the whole of a panel.

    `days` are positions in the panel, ascending; `values` are [days stocks features].
    """

    panel: Panel
    days: Sequence[int]
    values: Features

    def on(self, days: Sequence[int]) -> "Answers":
        """Return the answers of `days`, ascending, each of which must be a day of these answers."""
        rows = np.searchsorted(self.days, days)
        return replace(self, days=days, values=self.values[rows])

    def difference(self, column: int, others: Features, ending: str = "in the check") -> str:
        """Say where a feature differs most from other values; empty where it does not differ.

        `column` is the feature's position, `others` are [days stocks features] of the same days.
        """
        return difference(
            self.values[..., column],
            others[..., column],
            sessions=self.panel.sessions[list(self.days)],
            symbols=self.panel.symbols,
            ending=ending,
        )


def answers_of(user_code: IsolatedCode, panel: Panel, days: Sequence[int] | None = None) -> Answers:
    """Return a user's features of these days of a panel (None: of all days)."""
    _description, values = user_code.values(panel, days)
    asked_days = range(len(panel.sessions)) if days is None else days
    return Answers(panel=panel, days=asked_days, values=values)


def windows_of(
    user_code: IsolatedCode, description: Description, answers: Answers
) -> dict[str, int]:
    """Return, by feature, the number of sessions from which to compute it as a night does.

    It is the smallest number of `SHORT` from which the feature gets, on the last `TRIED` days of
    `answers`, the same values as in `answers`. Where no number of `SHORT` is enough, it is the
    whole HISTORY that the code states. With fewer sessions the comparison that follows
    (`disagreements`) is faster, and finds look-ahead just as well.
    """
    history = int(description["history"])
    windows = dict.fromkeys(description["features"], history)
    some_answers = answers.on(answers.days[-TRIED:])
    for short in sorted(SHORT, reverse=True):  # the smallest is tried last, and so overrides
        if short >= history:  # a feature never reads more than its HISTORY
            continue
        nights = user_code.nights(
            some_answers.panel, some_answers.days, dict.fromkeys(windows, short)
        )
        for column, name in enumerate(description["features"]):
            if not some_answers.difference(column, nights):  # empty words: the values are the same
                windows[name] = short
    return windows


def disagreements(
    user_code: IsolatedCode, description: Description, answers: Answers, windows: Mapping[str, int]
) -> dict[str, Disagreement]:
    """Compare answers with what nights would have computed for the same days.

    `windows` is, by feature, the number of sessions from which it is computed here. Returns the
    disagreement of each feature that differs, by its name; a feature that agrees has none.
    """
    history = int(description["history"])
    differing = _differing(user_code, description, answers, windows)
    shortened = [name for name in differing if windows[name] < history]
    # On some days these features may read more sessions than on the days that `windows_of` tried:
    # they are compared again, and only a difference from their whole HISTORY counts.
    if shortened:
        whole_windows = dict.fromkeys(shortened, history)
        with_history = _differing(user_code, description, answers, whole_windows)
        differing = {name: nights for name, nights in differing.items() if name not in shortened}
        differing.update(with_history)
    return {
        name: _explained(user_code, description, answers, name, nights)
        for name, nights in differing.items()
    }


def _differing(
    user_code: IsolatedCode, description: Description, answers: Answers, windows: Mapping[str, int]
) -> dict[str, Features]:
    """Return, by the name of each feature that differs, the values that nights computed.

    These are [days stocks features] of all features. A feature that is not in `windows` is neither
    computed (NaN) nor compared.
    """
    nights = user_code.nights(answers.panel, answers.days, windows)
    differing: dict[str, Features] = {}
    for column, name in enumerate(description["features"]):
        if name in windows and answers.difference(column, nights):
            differing[name] = nights
    return differing


def _explained(
    user_code: IsolatedCode, description: Description, answers: Answers, name: str, nights: Features
) -> Disagreement:
    """Return the disagreement of a feature that differs: it looks ahead, or reads too far back.

    `nights` are the values that nights computed, [days stocks features]. The feature is computed
    once more for the first day that differs, from all sessions up to that day: if it still differs
    from `answers`, it looks ahead.
    """
    column = description["features"].index(name)
    differs = _differs(answers.values[..., column], nights[..., column])
    row = int(differs.any(axis=1).argmax())  # of the first day with a stock that differs
    day = answers.days[row]
    that_day = answers.on([day])
    past = cut(answers.panel, slice(day + 1))
    _description, known_then = user_code.values(past, [day])
    if that_day.difference(column, known_then):
        detail = answers.difference(column, nights, ending="when computed from what was known then")
        return Disagreement(detail, reads_too_far=False)
    nights_of_day = nights[[row]]  # [1 stocks features]
    detail = that_day.difference(
        column,
        nights_of_day,
        ending=f"when computed from the last {description['history']} sessions",
    )
    return Disagreement(detail, reads_too_far=True)


def difference(
    values: Grid,
    others: Grid,
    sessions: pd.DatetimeIndex,
    symbols: Sequence[str],
    ending: str = "in the check",
) -> str:
    """Say where two grids, [sessions stocks], differ most; empty where they are the same.

    A difference of at most `ROUNDING` standard deviations of the day (`_distance`) does not count;
    a value that only one grid lacks does. `ending` says where the value of `others` is from.
    """
    if np.array_equal(values, others, equal_nan=True):  # the usual case, and quickly found
        return ""
    differs = _differs(values, others)
    if not differs.any():
        return ""
    distance = _distance(values, others)
    is_missing = np.isfinite(values) != np.isfinite(others)
    # A difference between two known values says more than a value that is missing in one grid,
    # which is named only where no known values differ. Where both lack one, the distance is 0.
    known_differ = (distance[~is_missing] > ROUNDING).any()
    size_of_missing = 0 if known_differ else np.inf
    size = np.where(is_missing, size_of_missing, distance)
    largest = int(size.argmax())  # a position in the flattened grid
    day, stock = divmod(largest, size.shape[1])
    value = _in_words(values[day, stock])
    other_value = _in_words(others[day, stock])
    return (
        f"{symbols[stock]} on {sessions[day].date()} is {value}, but {other_value} {ending} "
        f"({int(differs.sum())} of {differs.size} values differ)"
    )


def _in_words(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else "missing"


def _distance(values: Grid, others: Grid) -> Grid:
    """Return the distance of each pair of values, in standard deviations of their day.

    A standard deviation is that of a day's `values` over the stocks. A missing value counts as 0.
    """
    daily_deviation = pd.DataFrame(values).std(axis=1).to_numpy()
    deviation = np.nan_to_num(daily_deviation)[:, None]  # [days 1], 0 with fewer than two values
    filled = np.nan_to_num(values)
    filled_others = np.nan_to_num(others)
    # The added terms count where the stocks of a day have about the same value: a difference is
    # then measured by the value, and the unit is never 0.
    unit = deviation + 1e-12 + 1e-9 * np.abs(filled)
    return np.asarray(np.abs(filled - filled_others) / unit)


def _differs(values: Grid, others: Grid) -> Bool[np.ndarray, "days stocks"]:
    """Return which values differ by more than rounding, or are missing in only one grid."""
    is_missing = np.isfinite(values) != np.isfinite(others)
    return np.asarray(is_missing | (_distance(values, others) > ROUNDING))


def turns(sessions: pd.DatetimeIndex) -> list[int]:
    """Return the positions around the latest turn of a month, of a quarter and of a year.

    These are the last session before each turn and the first one after it, ascending and each once.
    """
    days: set[int] = set()
    for period in ("M", "Q", "Y"):
        periods = sessions.to_period(period)
        beginnings = np.flatnonzero(periods[1:] != periods[:-1]) + 1  # of all periods but the first
        if len(beginnings):
            latest = int(beginnings[-1])
            days.update((latest - 1, latest))
    return sorted(days)


def other_sizes(panel: Panel) -> tuple[Panel, Panel]:
    """Return two panels of other sizes than a panel.

    The first has one session less and one stock more, the second one session more and one stock
    less, so that both numbers differ from those of the panel in either direction.
    """
    fewer_sessions = cut(panel, slice(0, -1))
    fewer_stocks = _without_a_stock(panel)
    return _with_a_stock(fewer_sessions), _with_a_session(fewer_stocks)


def _with_a_stock(panel: Panel) -> Panel:
    """Return a panel with one more stock, which had the prices of the last one in reverse."""
    symbols = (*panel.symbols, f"{panel.symbols[-1]}2")
    return _with_grids(
        panel,
        sessions=panel.sessions,
        symbols=symbols,
        change=lambda grid: np.hstack([grid, grid[::-1, -1:]]),  # [sessions stocks]
    )


def _without_a_stock(panel: Panel) -> Panel:
    return _with_grids(
        panel,
        sessions=panel.sessions,
        symbols=panel.symbols[:-1],
        change=lambda grid: grid[:, :-1],
    )


def _with_a_session(panel: Panel) -> Panel:
    """Return a panel with one more session, whose bars repeat those of the last session but one."""
    next_day = panel.sessions[-1] + pd.offsets.BusinessDay(1)
    return _with_grids(
        panel,
        sessions=pd.DatetimeIndex([*panel.sessions, next_day]),
        symbols=panel.symbols,
        change=lambda grid: np.vstack([grid, grid[-2:-1]]),  # [sessions stocks]
    )


def _with_grids(
    panel: Panel,
    *,
    sessions: pd.DatetimeIndex,
    symbols: tuple[str, ...],
    change: Callable[[Grid], Grid],
) -> Panel:
    """Return a panel of these sessions and stocks, with all grids of another panel changed."""
    prices = {name: change(getattr(panel, name)) for name in PRICES}
    return Panel(sessions=sessions, symbols=symbols, **prices)
