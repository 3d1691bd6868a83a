"""The audit that admits a user's own code: does the code look ahead?

A feature of a day must have the same value whatever follows that day, whatever later dividends and
splits do to the prices before it, and when computed from only HISTORY sessions: on every session of
a year, and with as many stocks and sessions as in a training. A model must score a day the same
whenever it is asked. A result far better than that of any rule of any market is not believed; only
this last check catches code that reads the outcomes from elsewhere, such as a file of later prices.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

from dtml.evaluation.ranking import both_known, mean_of_days, rank_ics
from dtml.lookahead.pipeline import History
from dtml.markets.definition import Leg, Market
from dtml.own.code import HISTORY, PRICES, OwnCodeError, cut, ranks_of
from dtml.own.process import Description, IsolatedCode
from dtml.prices.sessions import next_session, sessions_between
from dtml.ranking.features import RULES, RULES_READ, ranked_features, rule_scores
from dtml.ranking.outcomes import outcomes, overlap_of, sessions_to
from dtml.ranking.panel import Features, Grid, Panel, mean_of_known, ranked
from dtml.ranking.walk import market_panel

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
    fewer_stocks = _with_grids(
        panel,
        sessions=panel.sessions,
        symbols=panel.symbols[:-1],
        change=lambda grid: grid[:, :-1],
    )
    symbols = (*fewer_sessions.symbols, f"{fewer_sessions.symbols[-1]}2")
    next_day = fewer_stocks.sessions[-1] + pd.offsets.BusinessDay(1)
    return (
        _with_grids(
            fewer_sessions,
            sessions=fewer_sessions.sessions,
            symbols=symbols,
            change=lambda grid: np.hstack([grid, grid[::-1, -1:]]),  # [sessions stocks]
        ),
        _with_grids(
            fewer_stocks,
            sessions=pd.DatetimeIndex([*fewer_stocks.sessions, next_day]),
            symbols=fewer_stocks.symbols,
            change=lambda grid: np.vstack([grid, grid[-2:-1]]),  # [sessions stocks]
        ),
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


# Of the part of the market that is changed: stocks at most, and sessions, more for a long HISTORY.
STOCKS = 50
SESSIONS = 600
FEW = 12  # stocks that are tested on every session of a year
YEAR = 253  # sessions, one of which is the last of a year
LEAST = 63  # sessions on which a feature must be tested with the whole of its HISTORY
DATES = 3  # sessions drawn, after which the future is changed
# Positions of further such sessions at the beginning, where a fill of missing values shows.
EARLY = (5, 30)
NEIGHBOURS = 3  # days that are compared with a session or a stock more or less
SCORED = 126  # sessions that a model ranks, and on which rank ICs are measured
# The highest rank IC that is believed: no ranking of any market that we know reached a third of
# it. Where this multiple of the rank IC of the market's best one-line rule is more, it counts.
BELIEVED = 0.3
TIMES_THE_RULES = 3
MEANING = {
    "asked_twice": "differs when it is called again (it keeps state, or is not seeded)",
    "rescaled_past": (
        "depends on later dividends and splits (which rescale all earlier prices: use ratios of "
        "prices, such as returns)"
    ),
    "read_too_far": (
        "reads more than HISTORY sessions, which a night does not provide "
        "(an `ewm` or `expanding` reads all sessions: return its last row, `.iloc[-1]`, "
        "which is computed from the last HISTORY sessions of each day; "
        "or set HISTORY to a larger number)"
    ),
    "fitted_twice": "differs when it is fitted again (seed it)",
    "backwards": "keeps state between days (its scores differ when the last day is scored first)",
    "too_good": "is too good to be true",
    "model_alone": "fails in its own process, where it can read only the ranks of its features",
}
Finding = dict[str, Any]


@dataclass(frozen=True)
class _OtherHistory:
    """A changed history, whose features must equal those of the audited part up to a session.

    They must be the same in both on every session up to position `at`, included. `check` names the
    check that fails where they are not.
    """

    check: str
    at: int
    panel: Panel


def past_of(market: Market, bars: pd.DataFrame) -> History:
    """Return a market's bars as the history that the audit cuts and changes."""
    first = bars["session"].min().date()
    # A `History` has the sessions of its bars and at least one after them.
    last = next_session(market.calendar, bars["session"].max().date())
    return History(
        bars=bars,
        sessions=sessions_between(market.calendar, first, last),
        market=market,
    )


def require_admitted(user_code: IsolatedCode, history: History, leg: Leg) -> None:
    """Audit a user's code, and raise an OwnCodeError if it fails.

    The error has the first failure of each feature, of the model or of HISTORY, with its detail.
    """
    findings = admit(user_code, history, leg)
    # Reversed, so that the first failure of a feature or of the model overrides the later ones.
    details = {
        finding["what"]: finding["detail"]
        for finding in reversed(findings)
        if not finding["passed"]
    }
    if details:
        why = "; ".join(details.values())
        name = user_code.code.name
        raise OwnCodeError(f"correct {name}, which is refused by the audit: {why}")


def admit(user_code: IsolatedCode, history: History, leg: Leg) -> list[Finding]:
    """Return a row `check, what, passed, detail` for each check of a feature or of the model.

    First, features are compared on histories that are changed. If all pass, they are compared with
    what nights would compute, over the whole market too, and their rank ICs with the highest that
    is believed. If all pass again, the model is tested.

    A HISTORY that the market is too short to test gives a single row. A model whose first fit
    raises an error gives a row that is not passed. Any later error of the model is raised as an
    OwnCodeError, and so is any error of a feature, except where fewer sessions than its HISTORY are
    only tried (`windows_of`).
    """
    whole = _panel(history)
    # Only the description is needed, so any small number of sessions is enough.
    description, _values = user_code.values(cut(whole, slice(-EARLY[1], None)))
    needed_history = int(description["history"])
    longest = max(len(whole.sessions) - LEAST, HISTORY)  # the default is always allowed
    if needed_history > longest:
        detail = (
            f"HISTORY is {needed_history} sessions, but the audit has bars of "
            f"{len(whole.sessions)}: set it to at most {longest}, which the audit can test"
        )
        return [{"check": "whole_history", "what": "HISTORY", "passed": False, "detail": detail}]
    # Enough for the year that is compared with nights to have a whole HISTORY before it.
    needed = needed_history + YEAR + LEAST
    part = history.cut(stocks=STOCKS, sessions=max(SESSIONS, needed), seed=0)
    base, findings = _check_with_changes(user_code, description, part)
    bound = _highest_believed(history.market, whole, leg)
    if _all_passed(findings):
        findings += _compare_with_nights(user_code, description, part, whole, leg, bound)
    if _all_passed(findings):
        findings += _check_model(user_code, description, base, leg, bound)
    return findings


def _all_passed(findings: list[Finding]) -> bool:
    return all(finding["passed"] for finding in findings)


def _check_with_changes(
    user_code: IsolatedCode, description: Description, part: History
) -> tuple[Answers, list[Finding]]:
    """Test the features on a part of the market and on changed copies of it.

    The copies have another future after some sessions, or rescaled prices; the last one is the part
    itself, read a second time. Returns the features of the part, some bars of which are removed
    first, and a finding for each feature and check.
    """
    sessions = _panel(part).sessions
    last = len(sessions) - 1
    history = int(description["history"])
    # The future is changed after these sessions. Those drawn lie in the second half, and not among
    # the first `history` where the part is longer; after the last there is no future.
    earliest = min(max(last // 2, history), last - 1)
    drawn = np.random.default_rng(0).integers(earliest, last, DATES)
    positions = [int(at) for at in (*EARLY, *drawn) if at < last]
    # Some stocks lose their bar there, so that a feature that fills gaps with later values differs
    # when the future is another.
    for at in positions:
        part = part.with_holes(sessions[at], seed=at)
    panel = _panel(part)
    base = answers_of(user_code, panel)
    # A feature that differs when it is called again differs in the other checks too. Its finding
    # comes first, although that check is the last below: the first failure of a feature is the one
    # that is reported.
    differences = {("asked_twice", name): "" for name in description["features"]}  # "": none
    others = []
    for at in positions:
        scrambled = part.scrambled_after(panel.sessions[at], seed=at)
        others.append(_OtherHistory("scrambled_future", at=at, panel=_panel(scrambled)))
    rescaled = _panel(part.rescaled())
    for other_history in [
        *others,
        _OtherHistory("rescaled_past", at=last, panel=rescaled),
        _OtherHistory("asked_twice", at=last, panel=panel),
    ]:
        days = range(other_history.at + 1)
        _description, values = user_code.values(other_history.panel, days)
        base_until = base.on(days)
        for column, name in enumerate(description["features"]):
            difference_here = base_until.difference(column, values)
            # Of several futures, the first in which a feature differs is reported.
            earlier = differences.get((other_history.check, name))
            differences[other_history.check, name] = earlier or difference_here
    findings = [_finding(check, name, failure) for (check, name), failure in differences.items()]
    return base, findings


def _compare_with_nights(
    user_code: IsolatedCode,
    description: Description,
    part: History,
    whole: Panel,
    leg: Leg,
    bound: float,
) -> list[Finding]:
    """Return findings: does each feature agree with its nights, and is it too good to be true?

    A night computes a feature from its last HISTORY sessions alone. `FEW` stocks of the `part` are
    compared on every session of a year. The `whole` market is compared on fewer days: around the
    latest turns of a month, a quarter and a year, and on the first and the last of the `SCORED`
    days. It is also compared in the sizes of `other_sizes`, on their last days, because code may
    look ahead only in a market of a certain size. `bound` is the highest rank IC that is believed
    of a feature on the `SCORED` days.
    """
    few = _panel(part.cut(stocks=FEW, sessions=len(part.sessions), seed=0))
    every_session = answers_of(user_code, few, _last_days(few, YEAR))
    scored_days = _last_days(whole, SCORED)
    # A feature by calendar month, quarter or year differs where one ends, if it looks ahead.
    turning_days = turns(whole.sessions)
    answers = answers_of(user_code, whole, sorted({*scored_days, *turning_days}))
    compared_days = sorted({*turning_days, scored_days[0], scored_days[-1]})
    some_days = answers.on(compared_days)
    compared = [("every_session", every_session), ("market_size", some_days)]
    for panel in other_sizes(whole):
        neighbours = answers_of(user_code, panel, _last_days(panel, NEIGHBOURS))
        compared.append(("market_size", neighbours))
    # The windows, in sessions, are chosen once, on the few stocks, and used for all comparisons.
    windows = windows_of(user_code, description, every_session)
    findings = []
    for check, compared_answers in compared:
        differing = disagreements(user_code, description, compared_answers, windows)
        findings += [
            _comparison(check, name, differing.get(name)) for name in description["features"]
        ]
    outcome = outcomes(whole, leg)[scored_days]
    values = answers.on(scored_days).values
    for column, name in enumerate(description["features"]):
        scores, known_outcome = both_known(values[..., column], outcome)
        findings.append(_plausibility(name, scores, known_outcome, bound, leg))
    return findings


def _comparison(check: str, name: str, disagreement: Disagreement | None) -> Finding:
    """Return the row of a feature compared with its nights; None is a feature that agrees."""
    if disagreement is None:
        return _finding(check, name, "")
    if disagreement.reads_too_far:
        return _finding("read_too_far", name, disagreement.detail)
    return _finding(check, name, disagreement.detail)


def _last_days(panel: Panel, count: int) -> list[int]:
    """Return the positions of the last `count` sessions before a panel's last one.

    The last one is left out, as no session shows what a feature could have looked ahead to.
    """
    last = len(panel.sessions) - 1
    return [*range(max(0, last - count), last)]


def _highest_believed(market: Market, whole: Panel, leg: Leg) -> float:
    """Return the rank IC above which no result is believed.

    It is `max_rank_ic` of the market's file, if set; else `BELIEVED`, or `TIMES_THE_RULES` times
    the largest rank IC, whatever its sign, of a one-line rule on the last `SCORED` days, whichever
    is more.
    """
    if market.checks.max_rank_ic is not None:
        return market.checks.max_rank_ic
    days = slice(-SCORED, None)
    # The days that are scored, and those that the rules read before them.
    recent = cut(whole, slice(-SCORED - RULES_READ, None))
    features = ranked_features(recent, names={feature for feature, _ in RULES.values()})
    outcome = outcomes(recent, leg)[days]
    rank_ic_of_rules = []
    for rule in RULES:
        scores, known_outcome = both_known(rule_scores(features[days], rule), outcome)
        rank_ic_of_rules.append(float(mean_of_known(rank_ics(scores, known_outcome), axis=0)))
    best = max(abs(rank_ic) for rank_ic in rank_ic_of_rules)
    return max(BELIEVED, TIMES_THE_RULES * best)


def _plausibility(name: str, scores: Grid, outcome: Grid, bound: float, leg: Leg) -> Finding:
    """Return the row of the check that a rank IC, whatever its sign, is not beyond `bound`.

    `name` is a feature, whose values are the scores, or MODEL. Scores and outcomes are
    [days stocks]. A rank IC far below 0 is as suspicious as one far above: a model that learns from
    the feature only has to reverse its sign. The whole 95 % interval must lie beyond the bound: the
    rank IC of few stocks, or of returns that overlap, may be large by chance.
    """
    rank_ic = mean_of_days(rank_ics(scores, outcome), overlap=overlap_of(leg))
    nearer = max(rank_ic.low, -rank_ic.high)  # the end of the interval that is nearer to 0
    if not nearer > bound:  # with few days, it is NaN
        return _finding("too_good", name, "")
    allowing = min(np.ceil(nearer * 1000) / 1000, 1.0)  # rounded up, as it is a bound
    return _finding(
        "too_good",
        name,
        f"its rank IC is {rank_ic.value:+.3f} [{rank_ic.low:.3f}, {rank_ic.high:.3f}], beyond the "
        f"plausible ±{bound:.3g}; look for later prices that it reads or, if you know why it is so "
        "good, set max_rank_ic in [checks] of the market's file to at least "
        f"{allowing:.3f}",
    )


def _check_model(
    user_code: IsolatedCode,
    description: Description,
    base: Answers,
    leg: Leg,
    bound: float,
) -> Iterator[Finding]:
    """Fit the model on the earlier days of a part, score its last days, and yield the findings.

    `base` has the features of the part; `bound` is the highest rank IC that is believed. A model
    that fails without the features gives a single finding.
    """
    panel = base.panel
    count = len(panel.sessions)
    # At most a third is scored, so that most sessions are left to fit the model.
    days = slice(count - min(SCORED, count // 3), count)
    ranks = ranks_of(base.values, panel.observed)
    try:
        scores, outcome = _fit_and_score(user_code, panel, ranks, leg, days)
    except OwnCodeError as error:
        # The process of a model runs no feature, so a model that needs one fails here.
        yield _finding("model_alone", "MODEL", str(error))
        return

    def difference_when_fitted_again(backwards: bool) -> str:
        again, _outcome = _fit_and_score(user_code, panel, ranks, leg, days, backwards=backwards)
        return difference(scores[days], again[days], panel.sessions[days], panel.symbols)

    if description["model"]:  # the default model has a fixed seed and scores each row alone
        reordered = difference_when_fitted_again(backwards=True)
        # Only a model that differs is fitted a third time, to tell the two causes apart: a model
        # without a seed differs in the same order too.
        unseeded = difference_when_fitted_again(backwards=False) if reordered else ""
        yield _finding("fitted_twice", "MODEL", unseeded)
        yield _finding("backwards", "MODEL", "" if unseeded else reordered)
    known_scores, known_outcome = both_known(scores[days], outcome[days])
    yield _plausibility("MODEL", known_scores, known_outcome, bound, leg)


def _fit_and_score(
    user_code: IsolatedCode,
    panel: Panel,
    ranks: Features,
    leg: Leg,
    days: slice,
    *,
    backwards: bool = False,
) -> tuple[Grid, Grid]:
    """Fit the model on all days whose outcomes ended before the first of `days`; score `days`.

    Returns the scores and the outcomes. Both cover all sessions of the panel, [sessions stocks].
    The scores are NaN outside `days`; the outcomes are NaN where the day, or the start or end of
    its leg, has no bar. With `backwards`, the last day is scored first.
    """
    outcome = np.where(panel.observed, outcomes(panel, leg), np.nan)
    # The outcome of a day ends `sessions_to(leg)` sessions later, before the first day scored.
    trained = slice(0, days.start - sessions_to(leg))
    scores, _fitted_model = user_code.fits(
        ranks,
        panel.observed,
        ranked(outcome),
        [(trained, days)],
        backwards=backwards,
    )
    return scores, outcome


def _panel(part: History) -> Panel:
    bars = part.bars.sort_values(["symbol", "session"], ignore_index=True)
    return market_panel(part.market, bars)


def _finding(check: str, subject: str, failure: str) -> Finding:
    """Return the row of a check of a feature or of the model, passed if `failure` is empty."""
    detail = f"{subject} passed"
    if failure:
        meaning = MEANING.get(check, "looked ahead")
        detail = f"{subject} {meaning}: {failure}"
    return {"check": check, "what": subject, "passed": not failure, "detail": detail}
