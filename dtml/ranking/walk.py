"""The inputs of a walk forward through history, and its folds: train, score, train again."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.errors import DtmlError
from dtml.evaluation.ranking import MINIMUM_STOCKS, both_known, rank_ics
from dtml.evaluation.splits import GAP, Split, known_before, walk_forward
from dtml.markets import Market
from dtml.markets.definition import FeatureSet
from dtml.prices.sessions import sessions_between
from dtml.ranking.features import ALL, Names, ranked_features
from dtml.ranking.outcomes import Leg, measured_legs, outcomes, sessions_to
from dtml.ranking.panel import Features, Grid, Panel, There, panel_of, ranked

MINIMUM_TRAIN_DAYS = 126  # a model is not trained on fewer
RETRAIN_EVERY = 63  # sessions that each model scores


def market_panel(market: Market, bars: pd.DataFrame, symbols: tuple[str, ...] = ()) -> Panel:
    """Return the `panel_of` a market's stocks, or `symbols`, over the sessions of all bars."""
    days = bars["session"]
    first = days.min().date()
    last = days.max().date()
    sessions = sessions_between(market.calendar, first, last)
    return panel_of(
        bars,
        sessions=sessions,
        symbols=symbols or market.symbols,
        returns=market.returns,
    )


@dataclass(frozen=True)
class History:
    """The inputs of a walk: ranked features of each session, and the outcomes of a leg.

    `there` marks the stock-days ranked: constituents with a bar. `outcome` is the return over the
    leg, which begins at the session's close or later, a ratio minus 1, else NaN.
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
        feature_set: FeatureSet = "usual",
    ) -> "History":
        """Return the history of a panel, with the features of a `feature_set`.

        `among` marks the stock-days of constituents (None: all). Features not in `names` are NaN. A
        change beyond `max_return` is taken for a corporate action. Raises DtmlError for a leg that
        begins or ends at an open where the prices are closes alone.
        """
        measured = measured_legs(panel)
        if leg not in measured:
            raise DtmlError(
                f"the holding period (leg) {leg} begins or ends at an open, but the prices have "
                f"closes alone: use {' or '.join(measured)}"
            )
        there = panel.observed if among is None else panel.observed & among
        outcome = outcomes(panel, leg, max_return=max_return)
        return cls(
            panel=panel,
            leg=leg,
            there=there,
            features=ranked_features(
                panel,
                there,
                max_return=max_return,
                names=names,
                feature_set=feature_set,
            ),
            outcome=np.where(there, outcome, np.nan),
        )

    @cached_property
    def relative(self) -> Grid:
        """Return the rank of each outcome in its day, in [-0.5, 0.5], ties sharing their mean."""
        return ranked(self.outcome)

    def rows(self, days: slice) -> tuple[Float[ndarray, "rows features"], Float[ndarray, " rows"]]:
        """Return the features and relative outcomes of stock-days with an outcome."""
        relative = self.relative[days]
        has_outcome = np.isfinite(relative)
        return self.features[days][has_outcome], relative[has_outcome]


def earliest(leg: Leg) -> int:
    """Return the first position to score: `MINIMUM_TRAIN_DAYS` are known `GAP` before it."""
    return MINIMUM_TRAIN_DAYS + GAP + sessions_to(leg) - 1


def folds(history: History, first: pd.Timestamp, last: pd.Timestamp) -> list[Split]:
    """Return the folds of a walk that scores the closes from `first` to `last`.

    A model learns from sessions whose outcome ended `GAP` sessions before its first close. Raises
    DtmlError for too few, for prices that end before `last`, and for no outcomes to score a
    ranking.
    """
    sessions = history.panel.sessions
    if last > sessions[-1]:
        raise DtmlError(
            f"the last session with prices of enough stocks is {sessions[-1].date()}, before "
            f"{last.date()}: choose an earlier last day, or give the missing prices"
        )
    start = int(sessions.searchsorted(first, side="left"))
    stop = int(sessions.searchsorted(last, side="right"))
    outcome = history.outcome[start:stop]
    # Called with the outcomes twice for its other effect: days of too few stocks become NaN.
    known_outcome, _same = both_known(outcome, outcome)
    # A day on which outcomes are too few or all equal has no rank IC, not even with themselves.
    self_correlation = rank_ics(known_outcome, known_outcome)
    if np.isnan(self_correlation).all():
        raise DtmlError(
            f"no session from {first.date()} to {last.date()} has {MINIMUM_STOCKS} stocks "
            f"with known outcomes that differ over the holding period {history.leg}: "
            "choose other days, or fetch more stocks or later prices"
        )
    horizon = sessions_to(history.leg)
    days = known_before(start, horizon=horizon)  # that the first model can be trained on
    if days < MINIMUM_TRAIN_DAYS:
        raise DtmlError(
            f"{max(days, 0)} sessions have an outcome known before {first.date()}, but training "
            f"needs {MINIMUM_TRAIN_DAYS}: begin later, or give prices from before "
            f"{sessions[0].date()}"
        )
    return walk_forward(start, stop, retrain_every=RETRAIN_EVERY, horizon=horizon)
