"""What a walk forward through history reads, and its folds.

It trains on what was known, scores the next sessions, and trains again.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.errors import DtmlError
from dtml.evaluation.ranking import MINIMUM_STOCKS, both_known, rank_ics
from dtml.markets import Market
from dtml.prices.sessions import sessions_between
from dtml.ranking.features import ALL, Names, ranked_features
from dtml.ranking.outcomes import Leg, outcomes, sessions_to
from dtml.ranking.panel import Features, Grid, Panel, There, panel_of, ranked

MINIMUM_TRAIN_DAYS = 126  # below that there is nothing to learn from
RETRAIN_EVERY = 63  # sessions that each model scores
GAP = 1  # sessions between the last outcome trained on and the first session scored


def market_panel(market: Market, bars: pd.DataFrame, symbols: tuple[str, ...] = ()) -> Panel:
    """Return the panel of a market's stocks, or of these alone, on the sessions of their bars."""
    days = bars["session"]
    sessions = sessions_between(market.calendar, days.min().date(), days.max().date())
    return panel_of(
        bars,
        sessions=sessions,
        symbols=symbols or market.symbols,
        returns=market.returns,
    )


@dataclass(frozen=True)
class History:
    """What a walk reads: ranked features of each session, and the outcomes of a leg.

    The leg begins at the session's close. `there` are the stock-days that are ordered: constituents
    with a bar.
    """

    panel: Panel
    leg: Leg
    there: There
    features: Features
    outcome: Grid

    @classmethod
    def of(
        cls,
        panel: Panel,
        leg: Leg,
        among: There | None = None,
        *,
        max_return: float = np.inf,
        names: Names = ALL,
    ) -> "History":
        """Return the history of a panel's constituents, with the features of these `names`.

        A change beyond `max_return` is a corporate action.
        """
        there = panel.observed if among is None else panel.observed & among
        outcome = outcomes(panel, leg, max_return=max_return)
        return cls(
            panel=panel,
            leg=leg,
            there=there,
            features=ranked_features(panel, there, max_return=max_return, names=names),
            outcome=np.where(there, outcome, np.nan),
        )

    @cached_property
    def relative(self) -> Grid:
        """Return the rank of each outcome within its day, in [-0.5, 0.5].

        Above 0 is above the day's median.
        """
        return ranked(self.outcome)

    def rows(self, days: slice) -> tuple[Float[ndarray, "rows features"], Float[ndarray, " rows"]]:
        """Return the features and relative outcomes of some sessions.

        They are of the stock-days that have an outcome.
        """
        known = np.isfinite(self.relative[days])
        return self.features[days][known], self.relative[days][known]


@dataclass(frozen=True)
class Fold:
    """Sessions scored by one model, and those it was trained on, as positions in the panel."""

    trained: slice
    scored: slice


def earliest(leg: Leg) -> int:
    """Return the first position of a panel that a walk can score.

    Those before it suffice to train.
    """
    return MINIMUM_TRAIN_DAYS + GAP + sessions_to(leg) - 1


def folds(history: History, first: pd.Timestamp, last: pd.Timestamp) -> list[Fold]:
    """Return the folds of a walk that scores the closes from `first` to `last`.

    Each model is trained on every session whose outcome ended `GAP` sessions before the first close
    that it scores. Raises DtmlError when the first has too few, when prices end before `last`, or
    when no day has an order.
    """
    sessions = history.panel.sessions
    if last > sessions[-1]:
        raise DtmlError(
            f"the prices end on {sessions[-1].date()}: choose an earlier --to, or fetch later "
            "prices"
        )
    start = int(sessions.searchsorted(first, side="left"))
    stop = int(sessions.searchsorted(last, side="right"))
    outcome = history.outcome[start:stop]
    if np.isnan(rank_ics(*both_known(outcome, outcome))).all():
        raise DtmlError(
            f"no session from {first.date()} to {last.date()} has {MINIMUM_STOCKS} stocks "
            f"with known outcomes that differ ({history.leg}): "
            "choose other days, or fetch more stocks or later prices"
        )
    known = _known_before(start, history.leg)
    if known < MINIMUM_TRAIN_DAYS:
        raise DtmlError(
            f"{max(known, 0)} sessions before {first.date()} have an outcome, but training needs "
            f"{MINIMUM_TRAIN_DAYS}: begin later, or give prices from before {sessions[0].date()}"
        )
    return [
        Fold(
            trained=slice(0, _known_before(begin, history.leg)),
            scored=slice(begin, min(begin + RETRAIN_EVERY, stop)),
        )
        for begin in range(start, stop, RETRAIN_EVERY)
    ]


def _known_before(position: int, leg: Leg) -> int:
    """Return how many sessions have an outcome that ended `GAP` sessions before a position."""
    return position - GAP - sessions_to(leg) + 1
