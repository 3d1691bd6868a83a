"""The audit of a user's own code, by which it is admitted: does any feature, or the model, know what came later?

A feature of a day must say the same whatever follows that day, whatever later dividends and splits do to the prices
before it, and from no more sessions than its HISTORY. A model must score a day the same whatever follows it; and where
the direction of every session is drawn by coin, it must order the stocks no better than chance. What reads the outcomes
from elsewhere, such as a file of later prices, escapes all of these.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from dtml.evaluation.ranking import score_ranking
from dtml.lookahead.pipeline import History
from dtml.markets.definition import Leg, Market
from dtml.own.code import OwnCodeError, cut
from dtml.own.process import Asked
from dtml.prices.sessions import next_session, sessions_between
from dtml.ranking.outcomes import outcomes, sessions_to
from dtml.ranking.panel import Grid, Panel, ranked
from dtml.ranking.walk import market_panel

STOCKS, SESSIONS = 50, 600  # at most: a part shows what the whole market does
DATES, EARLY = 3, (5, 30)  # sessions looked at: so many drawn, and these of the beginning, where filling shows
SAME = 1e-6  # of the day's standard deviation: below it a difference is of rounding
SCORED, BACK = 126, 10  # sessions ordered with directions drawn by coin; around a date whose scores are compared
MEANING = {
    "permuted_labels": "knows what a coin decided",
    "rescaled_past": "knows later dividends and splits",
    "read_too_far": "reads more sessions than HISTORY, which a night has not",
    "fitted_twice": "differs when it is fitted twice: seed it",
}
Finding = dict[str, Any]


def past_of(market: Market, bars: pd.DataFrame) -> History:
    """Return a market's bars as the audit changes them."""
    first, last = bars["session"].min().date(), next_session(market.calendar, bars["session"].max().date())
    return History(bars, sessions_between(market.calendar, first, last), market)


def require_admitted(asked: Asked, history: History, leg: Leg) -> None:
    """Audit a user's code; raise OwnCodeError that names what looked ahead, and by how much."""
    failed = {each["what"]: each["detail"] for each in reversed(admit(asked, history, leg)) if not each["passed"]}
    if failed:
        raise OwnCodeError(f"{asked.code.name} is refused by the audit: {'; '.join(failed.values())}")


def admit(asked: Asked, history: History, leg: Leg) -> list[Finding]:
    """Return a row `check, what, passed, detail` for each check of each feature and, where these pass, of the model."""
    part = history.cut(stocks=STOCKS, sessions=SESSIONS, seed=0)
    found = list(_features(asked, part))
    return found + (list(_model(asked, part, leg)) if all(each["passed"] for each in found) else [])


def _features(asked: Asked, part: History) -> Iterator[Finding]:
    panel = _panel(part)
    sessions, last = panel.sessions, len(panel.sessions) - 1
    drawn = np.random.default_rng(0).integers(last // 2, last, DATES)
    ats = [int(each) for each in (*EARLY, *drawn) if each < last]
    for at in ats:
        part = part.with_holes(sessions[at], seed=at)
    told, _ = asked.values(cut(_panel(part), slice(-EARLY[1], None)))
    others = [("scrambled_future", at + 1, _panel(part.scrambled_after(sessions[at], seed=at))) for at in ats]
    others += [("appended_rows", at + 1, cut(_panel(part), slice(at + 1))) for at in ats if at >= EARLY[-1]]
    others += [("rescaled_past", last + 1, _panel(part.rescaled()))]
    others += [("read_too_far", last + 1, cut(_panel(part), slice(-told["history"], None)))]
    _, (base, *again) = asked.values(_panel(part), *(each for _, _, each in others))
    said = {(check, name): "" for check, _, _ in others for name in told["features"]}
    for (check, stop, _), values in zip(others, again, strict=True):
        first = last if check == "read_too_far" else 0
        there = values[-1:] if first else values[:stop]
        for column, name in enumerate(told["features"]):
            found = _difference(base[first:stop, :, column], there[..., column], panel, first)
            said[check, name] = said[check, name] or found
    yield from (_finding(check, name, why) for (check, name), why in said.items())


def _model(asked: Asked, part: History, leg: Leg) -> Iterator[Finding]:
    panel = _panel(part)
    sessions = len(panel.sessions)
    at = int(np.random.default_rng(1).integers(sessions * 2 // 3, sessions - BACK - 1))
    others = {"fitted_twice": part, "scrambled_future": part.scrambled_after(panel.sessions[at], seed=at)}
    base, *again = (_scores(asked, each, leg, at - BACK, at + BACK)[0] for each in (part, *others.values()))
    days = slice(at - BACK, at + 1)
    for check, scores in zip(others, again, strict=True):
        yield _finding(check, "MODEL", _difference(base[days], scores[days], panel, at - BACK))
    sides, told = [], ""
    for seed in range(2):  # of honest models 2 x .025 x .025 fail
        scores, outcome = _scores(asked, part.tossed(seed), leg, sessions - min(SCORED, sessions // 3), sessions)
        ic = score_ranking(scores, outcome, overlap=sessions_to(leg)).rank_ic
        told = f"rank IC {ic.value:+.3f} [{ic.low:+.3f}, {ic.high:+.3f}]"
        sides.append((ic.low > 0) - (ic.high < 0))
    yield _finding("permuted_labels", "MODEL", told if abs(sum(sides)) == 2 else "")


def _scores(asked: Asked, part: History, leg: Leg, begin: int, end: int) -> tuple[Grid, Grid]:
    """Return the scores of some days by a model fitted on all whose outcomes ended before them, and the outcomes."""
    panel = _panel(part)
    found = np.where(panel.observed, outcomes(panel, leg), np.nan)
    fold = slice(0, begin - sessions_to(leg)), slice(begin, min(end, len(panel.sessions)))
    return asked.walk(panel, panel.observed, ranked(found), [fold])[0], found


def _panel(part: History) -> Panel:
    return market_panel(part.market, part.bars.sort_values(["symbol", "session"], ignore_index=True))


def _finding(check: str, what: str, said: str) -> Finding:
    detail = f"{what} {MEANING.get(check, 'looked ahead')}: {said}" if said else f"{what} passed"
    return {"check": check, "what": what, "passed": not said, "detail": detail}


def _difference(values: Grid, others: Grid, panel: Panel, first: int) -> str:
    """Say where two grids of a feature differ most, and by how much; nothing where they are the same."""
    deviation = pd.DataFrame(values).std(axis=1).to_numpy()[:, None]
    scale = np.nan_to_num(deviation) + 1e-12 + 1e-9 * np.abs(np.nan_to_num(values))
    far = np.abs(np.nan_to_num(values) - np.nan_to_num(others)) / scale
    gone = np.isfinite(values) != np.isfinite(others)
    far = np.where(gone, 0 if (far[~gone] > SAME).any() else np.inf, far)  # where both are known, it says how much
    if not (far > SAME).any():
        return ""
    day, stock = divmod(int(far.argmax()), far.shape[1])
    one, two = (f"{each:.6g}" if np.isfinite(each) else "missing" for each in (values[day, stock], others[day, stock]))
    where = f"{panel.symbols[stock]} on {panel.sessions[first + day].date()} is {one}, and {two} when that changes"
    return f"{where} ({int(((far > SAME) | gone).sum())} of {far.size} values differ)"
