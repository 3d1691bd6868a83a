"""The look-ahead audit of rankers: a day's ranking may not depend on what follows its close.

As in `dtml.lookahead.audit`, a whole path from bars to rankings runs on a history and on a changed
one, with a small boosting. The leaks below make one mistake each on that path, and every one must
be caught.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from dtml.evaluation.ranking import MINIMUM_STOCKS
from dtml.evaluation.splits import GAP
from dtml.lookahead.audit import (
    LATEST_RETRAINING,
    LOOK_AHEAD,
    LOOK_BACK,
    ZOO_STOCKS,
    Finding,
)
from dtml.lookahead.leaks import fit_for_leaks
from dtml.lookahead.pipeline import History
from dtml.markets.definition import FeatureSet
from dtml.ranking.models import BoostingConfig
from dtml.ranking.outcomes import sessions_to
from dtml.ranking.panel import panel_of, ranked
from dtml.ranking.rankers import (
    VALIDATION_DAYS,
    Rankers,
    RankersConfig,
    fit_rankers,
    ranking_of_day,
    slope_of,
)
from dtml.ranking.walk import MINIMUM_TRAIN_DAYS
from dtml.ranking.walk import History as Ranked

SMALL = BoostingConfig(trees=40, rate=0.1, rows_a_leaf=50)
SESSIONS = 400  # of the history on which leaks are planted
# The largest slope on randomly drawn outcomes, in standard deviations, that chance explains: a
# larger one was measured on days to which the rankers were fitted.
DEVIATIONS = 4.0
LATER = 5  # sessions by which the outcomes of a leak begin later than the rankers are told


def fit_honestly(inputs: Ranked, at: pd.Timestamp, config: RankersConfig) -> Rankers:
    """Return rankers fitted on the outcomes that had ended at the close of a session."""
    return fit_rankers(_with_known_outcomes(inputs, at), config)


@dataclass(frozen=True)
class RankingPath:
    """The path from a history to rankings, in the steps of a night and of a walk.

    Both steps, `spoil` and `fit`, are honest by default, and a leak replaces one of them. `spoil`
    changes the inputs, that is, the ranked features and the outcomes. `fit` takes the inputs, the
    session as of which it trains, and the settings. `max_return` and `feature_set` are those of the
    market (`ranked_features`).
    """

    config: RankersConfig = field(default_factory=lambda: RankersConfig(boosting=SMALL))
    max_return: float = np.inf
    feature_set: FeatureSet = "usual"
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
            feature_set=self.feature_set,
        )
        return self.spoil(inputs)

    def orders(self, history: History, at: pd.Timestamp, trained: pd.Timestamp) -> pd.DataFrame:
        """Return the rankings of the last `LOOK_BACK` closes up to `at`.

        The rankers are trained as of `trained`. The columns are `as_of, predictor, symbol, score,
        place, probability` (`ranking_of_day`).
        """
        inputs = self.read(history)
        sessions = inputs.panel.sessions
        rankers = self.fit(inputs, trained, self.config)
        stop = int(sessions.searchsorted(at, side="right"))
        days = slice(stop - LOOK_BACK, stop)
        scores = rankers.scores(inputs.features, inputs.there, days)
        orders = []
        for day in range(LOOK_BACK):
            scores_of_day = {name: by_day[day] for name, by_day in scores.items()}
            orders.append(ranking_of_day(scores_of_day, rankers.slopes, inputs.panel.symbols))
        joined = pd.concat(orders, keys=sessions[days], names=["as_of", None])
        return joined.reset_index("as_of")


def audit_ranking(
    path: RankingPath, history: History, *, seed: int = 0, trains: bool = True
) -> list[Finding]:
    """Check the rankings of a path at one date, drawn from the seed.

    Its slopes are checked too if it `trains` its rankers, as the default path does. Returns no
    finding where the history has too few sessions or stocks.
    """
    sessions = path.read(history).panel.sessions
    # The outcomes of the training and those of the validation days each take so many sessions.
    reach = 2 * sessions_to(path.config.leg)
    first = MINIMUM_TRAIN_DAYS + VALIDATION_DAYS + GAP + reach + LATEST_RETRAINING
    stop = len(sessions) - LOOK_AHEAD
    if stop <= first or len(history.market.symbols) < MINIMUM_STOCKS:
        return []
    generator = np.random.default_rng(seed)
    at = sessions[int(generator.integers(first, stop))]
    findings = [same_rankings(path, history, at, seed), same_ranks(path, history, at)]
    if trains:
        findings.append(slopes_of_chance(path, history, at, seed))
    return findings


def same_rankings(path: RankingPath, history: History, at: pd.Timestamp, seed: int) -> Finding:
    """Check that no ranking up to `at` changes when everything after `at` is scrambled.

    The rankers are trained as of the close of `at`. Scores, places and probabilities are compared.
    The check fails where nothing is ranked.
    """
    true_future = history.with_holes(at, seed)  # so that a backward fill of a missing bar shows
    orders = path.orders(true_future, at, at)
    others = path.orders(true_future.scrambled_after(at, seed), at, at)
    passed = orders.equals(others)
    if passed:
        detail = (
            f"{len(orders)} places up to that day are equal to the last bit, whatever comes later"
        )
    else:
        merged = orders.merge(others, how="outer", indicator=True)
        changed = int((merged["_merge"] == "left_only").sum())
        detail = f"{changed} of {len(orders)} places change with later data"
    # Without any place, nothing was compared.
    return Finding("same_rankings", at, passed and len(orders) > 0, detail)


def same_ranks(path: RankingPath, history: History, at: pd.Timestamp) -> Finding:
    """Check that ranked features do not depend on the scale of past prices.

    Later dividends and splits set it.
    """
    past = history.known_at(at)
    features = path.read(past).features
    others = path.read(past.rescaled()).features
    passed = np.array_equal(features, others, equal_nan=True)
    compared = "the same" if passed else "different"
    detail = f"ranks of {len(features)} days are {compared} after later dividends and splits"
    return Finding("same_ranks", at, passed, detail)


def slopes_of_chance(path: RankingPath, history: History, at: pd.Timestamp, seed: int) -> Finding:
    """Check that no slope is learned where outcomes are drawn at random.

    Rankers always rank the days well to which they were fitted, even by random outcomes. A slope
    that is measured on those days is therefore far from 0; on other days it is near 0.
    """
    inputs = path.read(history)
    generator = np.random.default_rng([seed, 3])
    has_outcome = np.isfinite(inputs.outcome)
    random_outcome = generator.random(has_outcome.shape)
    randomised = replace(inputs, outcome=np.where(has_outcome, random_outcome, np.nan))
    # `fit` measures the slopes on these stock-days, those of the validation days.
    validation_outcome = _with_known_outcomes(randomised, at).outcome[-VALIDATION_DAYS:]
    rows = int(np.isfinite(validation_outcome).sum())
    slopes = path.fit(randomised, at, path.config).slopes
    # The variance of a logistic slope near 0 is 1 / (rows * 1/4 * 1/12): being above the median or
    # not has a variance of 1/4, a rank one of 1/12.
    deviations = {name: slope * np.sqrt(rows / 48) for name, slope in slopes.items()}
    listed = ", ".join(f"{name} {value:+.1f}" for name, value in deviations.items())
    passed = bool(max(abs(value) for value in deviations.values()) < DEVIATIONS)
    detail = f"slopes on randomly drawn outcomes, in standard deviations: {listed}"
    return Finding("slopes_of_chance", at, passed, detail)


def prove_ranking(history: History, path: RankingPath, *, seed: int = 0) -> pd.DataFrame:
    """Audit each planted leak and the honest path on part of a history.

    Returns rows as `audit.prove` does, and none where the history is too short.
    """
    small = fit_for_leaks(history.cut(stocks=ZOO_STOCKS, sessions=SESSIONS, seed=seed), seed)
    pipelines: dict[str, Mapping[str, Any]] = {"honest, ranking": {}, **LEAKS}
    rows = []
    for name, leak in pipelines.items():
        findings = audit_ranking(replace(path, **leak), small, seed=seed)
        if not findings:  # the history is too short for all pipelines alike
            break
        failed = [finding.check for finding in findings if finding.is_alarm]
        rows.append((name, bool(leak), ", ".join(failed), bool(failed)))
    return pd.DataFrame(rows, columns=["pipeline", "planted", "caught_by", "caught"])


def _with_known_outcomes(inputs: Ranked, at: pd.Timestamp) -> Ranked:
    """Return the inputs of the sessions whose outcomes have ended at the close of a session.

    The panel keeps all its sessions, the first of which are these.
    """
    stop = int(inputs.panel.sessions.searchsorted(at, side="right")) - sessions_to(inputs.leg)
    return replace(
        inputs,
        there=inputs.there[:stop],
        features=inputs.features[:stop],
        outcome=inputs.outcome[:stop],
    )


def _fit_and_calibrate_on_the_same(
    inputs: Ranked, at: pd.Timestamp, config: RankersConfig
) -> Rankers:
    """Return honest rankers, but with slopes measured on days to which they were fitted."""
    rankers = fit_honestly(inputs, at, config)
    past = _with_known_outcomes(inputs, at)
    days = slice(-VALIDATION_DAYS, None)
    scores = rankers.scores(past.features, past.there, days)
    relative = past.relative[days]
    slopes = {name: slope_of(ranked(of_days), relative) for name, of_days in scores.items()}
    return replace(rankers, slopes=slopes)


def _with_first_feature(inputs: Ranked, values: np.ndarray) -> Ranked:
    """Return the inputs with other values, [sessions stocks], of the first feature."""
    first = values[..., None].astype(np.float32)
    return replace(inputs, features=np.dstack([first, inputs.features[..., 1:]]))


def _ranked_over_all_days(inputs: Ranked) -> Ranked:
    """Return the inputs with a feature ranked over all days, later ones too."""
    closes = inputs.panel.close
    ratios = closes / np.roll(closes, 1, axis=0)
    ranks = pd.Series(ratios.ravel()).rank(pct=True)
    return _with_first_feature(inputs, ranks.to_numpy().reshape(closes.shape))


def _scaled_over_all_days(inputs: Ranked) -> Ranked:
    """Return the inputs with features scaled by their deviation over all days, later ones too."""
    deviation = np.nanstd(inputs.features[inputs.there], axis=0)
    return replace(inputs, features=inputs.features / (deviation + 1e-6))


def _scaled_by_maximum(inputs: Ranked) -> Ranked:
    """Return the inputs with the close over the stock's highest close of all days as a feature."""
    highest = np.nanmax(np.nan_to_num(inputs.panel.close), axis=0)
    return _with_first_feature(
        inputs, inputs.panel.close / np.maximum(highest, np.finfo(float).tiny)
    )


def _with_later_outcomes(inputs: Ranked) -> Ranked:
    """Return the inputs with the outcomes of `LATER` sessions later, as if they were known."""
    later = np.full_like(inputs.outcome, np.nan)
    later[:-LATER] = inputs.outcome[LATER:]
    return replace(inputs, outcome=later)


LEAKS: Mapping[str, Mapping[str, Any]] = {
    "OutcomeAsFeature": {"spoil": lambda inputs: _with_first_feature(inputs, inputs.relative)},
    "RankOverHistory": {"spoil": _ranked_over_all_days},
    "ScaledOverHistory": {"spoil": _scaled_over_all_days},
    "ScaledByMaximum": {"spoil": _scaled_by_maximum},
    "LaterLeg": {"spoil": _with_later_outcomes},
    "OutcomeKnown": {"spoil": lambda inputs: replace(inputs, there=np.isfinite(inputs.outcome))},
    "PriceAsFeature": {
        "spoil": lambda inputs: _with_first_feature(inputs, ranked(inputs.panel.close))
    },
    "LaterRankers": {
        "fit": lambda inputs, _, config: fit_honestly(inputs, inputs.panel.sessions[-1], config)
    },
    "SlopeOnFittedDays": {"fit": _fit_and_calibrate_on_the_same},
}
