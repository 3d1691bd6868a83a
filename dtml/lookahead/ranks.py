"""The look-ahead audit of rankers, with a small boosting: as `dtml.lookahead.audit`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd

from dtml.evaluation.ranking import MINIMUM_STOCKS
from dtml.evaluation.splits import GAP
from dtml.lookahead.audit import Finding, questions
from dtml.lookahead.pipeline import LOOK_AHEAD, LOOK_BACK, History, Said
from dtml.ranking.models import BoostingConfig
from dtml.ranking.outcomes import sessions_to
from dtml.ranking.panel import panel_of
from dtml.ranking.rankers import (
    VALIDATION_DAYS,
    Rankers,
    RankersConfig,
    fit_rankers,
    ranking_of_day,
    spans_of,
)
from dtml.ranking.walk import MINIMUM_TRAIN_DAYS
from dtml.ranking.walk import History as Ranked

SMALL = BoostingConfig(trees=20, rate=0.1, rows_a_leaf=50)
ROUNDING = 1e-6  # of a slope that is measured on outcomes turned round


def fit_honestly(inputs: Ranked, at: pd.Timestamp, config: RankersConfig) -> Rankers:
    """Return rankers fitted on the outcomes that had ended at the close of a session."""
    return fit_rankers(with_known_outcomes(inputs, at), config)


@dataclass(frozen=True)
class RankingPath:
    """The path from a history to rankings, in the steps of a night and of a walk.

    Both steps, `spoil` and `fit`, are honest by default, and a leak replaces one of them. `spoil`
    changes the inputs, that is, the ranked features and the outcomes. `fit` takes the inputs, the
    session as of which it trains, and the settings. `max_return` is that of the market
    (`ranked_features`).
    """

    config: RankersConfig = field(default_factory=lambda: RankersConfig(boosting=SMALL))
    max_return: float = np.inf
    spoil: Callable[[Ranked], Ranked] = lambda inputs: inputs
    fit: Callable[[Ranked, pd.Timestamp, RankersConfig], Rankers] = fit_honestly

    def read(self, history: History) -> Ranked:
        """Return the inputs: the ranked features and the outcomes of all sessions."""
        market = history.market
        panel = panel_of(
            history.bars,
            sessions=history.sessions,
            symbols=market.symbols,
            returns=market.returns,
        )
        among = np.asarray(market.is_constituent(panel.sessions))
        inputs = Ranked.of(
            panel,
            self.config.leg,
            among,
            max_return=self.max_return,
            feature_set=market.features,
        )
        return self.spoil(inputs)

    def said(self, history: History, at: pd.Timestamp) -> Said:
        """Return the ranked features up to `at`, and the rankings of the last `LOOK_BACK` closes.

        Trained as of `at`: `as_of, predictor, symbol, score, place, probability`
        (`ranking_of_day`).
        """
        inputs = self.read(history)
        sessions = inputs.panel.sessions
        rankers = self.fit(inputs, at, self.config)
        stop = int(sessions.searchsorted(at, side="right"))
        days = slice(stop - LOOK_BACK, stop)
        scores = rankers.scores(inputs.features, inputs.there, days)
        orders = []
        for day in range(LOOK_BACK):
            scores_of_day = {name: by_day[day] for name, by_day in scores.items()}
            orders.append(ranking_of_day(scores_of_day, rankers.slopes, inputs.panel.symbols))
        rankings = pd.concat(orders, keys=sessions[days], names=["as_of", None])
        return {"ranks": inputs.features[:stop], "rankings": rankings.reset_index("as_of")}


def audit_ranking(path: RankingPath, history: History, *, trains: bool = True) -> list[Finding]:
    """Check the rankings of a path at the latest date with `LOOK_AHEAD` sessions after it.

    With slopes if it `trains`. Too short a history gives one finding, which says so.
    """
    sessions = path.read(history).panel.sessions
    # The outcomes of the training and those of the validation days each take so many sessions.
    reach = 2 * sessions_to(path.config.leg)
    needed = MINIMUM_TRAIN_DAYS + VALIDATION_DAYS + GAP + reach + LOOK_AHEAD + 1
    stocks = len(history.market.symbols)
    if len(sessions) < needed or stocks < MINIMUM_STOCKS:
        detail = (
            f"{stocks} stocks in {len(sessions)} sessions are too few to rank: {MINIMUM_STOCKS} "
            f"and {needed} are needed"
        )
        return [Finding("cut", history.sessions[-1], None, detail)]
    at = sessions[-LOOK_AHEAD - 1]
    findings = questions(partial(path.said, at=at), history, at)
    return [*findings, slopes_turn(path, history, at)] if trains else findings


def slopes_turn(path: RankingPath, history: History, at: pd.Timestamp) -> Finding:
    """Check that slopes are measured on days to which the rankers were not fitted.

    There, each slope changes its sign where outcomes are turned round, without the middle stock.
    """
    past = with_known_outcomes(path.read(history), at)
    days = spans_of(past)[0].scored
    middle = past.relative[days] == 0
    side = np.where(middle, np.nan, past.relative[days])
    slopes = []
    for turned in (side, -side):
        outcome = past.outcome.copy()
        outcome[days] = turned
        slopes.append(path.fit(replace(past, outcome=outcome), at, path.config).slopes)
    one, other = slopes
    passed = all(abs(one[name] + other[name]) < ROUNDING for name in one)
    listed = ", ".join(f"{name} {one[name]:+.3f} and {other[name]:+.3f}" for name in one)
    detail = f"slopes on outcomes and on these turned round: {listed}"
    return Finding("slopes_turn", at, passed, detail)


def with_known_outcomes(inputs: Ranked, at: pd.Timestamp) -> Ranked:
    """Return the inputs of the sessions whose outcomes have ended at a close."""
    stop = int(inputs.panel.sessions.searchsorted(at, side="right")) - sessions_to(inputs.leg)
    return replace(
        inputs,
        there=inputs.there[:stop],
        features=inputs.features[:stop],
        outcome=inputs.outcome[:stop],
    )
