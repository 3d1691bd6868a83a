"""Rankers from ranked features to the rank of the outcome: ridge, gradient boosting, their blend.

A fitted ranker holds only arrays, which run no code when they are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dtml.errors import DtmlError
from dtml.ranking.panel import ranked, with_ties

Rows = Float[ndarray, "rows features"]
Scores = Float[ndarray, " rows"]

CHUNK_ROWS = 2**20  # rows that a ridge processes at once
RANK_VARIANCE = 1 / 12  # of ranks that are uniform in [-0.5, 0.5]


@dataclass(frozen=True)
class RidgeConfig:
    """The settings of a ridge: `penalty` is in units of the features' variance times the rows."""

    penalty: float = 0.1


@dataclass(frozen=True)
class BoostingConfig:
    """The shape of a gradient boosting of regression trees.

    `columns_a_split` is the share of columns for a split, drawn from `seed`. A leaf has at least
    `rows_a_leaf` rows, fewer with less than 2 * `leaves` times as many in all.
    """

    trees: int = 300
    leaves: int = 16
    rate: float = 0.03
    rows_a_leaf: int = 1000
    columns_a_split: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class Ridge:
    """A ridge regression without an intercept: ranks are centred; a missing one is 0."""

    weights: Float[ndarray, " features"]

    def score(self, features: Rows) -> Scores:
        """Return the score of each row, roughly the rank of its outcome."""
        weighted = np.nan_to_num(features) * self.weights
        return np.asarray(weighted.sum(axis=1))  # in one order on every machine


@dataclass(frozen=True)
class Boosting:
    """Regression trees whose leaves add up, a row of the arrays each, padded with leaves of 0.

    A row of features goes left if its value in `column` is at most `threshold`, or missing and
    `missing_left`. `left`, `right` are positions of children; a leaf is its own. `value` is a
    leaf's score, `depth` the splits on the longest path.
    """

    column: Int[ndarray, "trees nodes"]
    threshold: Float[ndarray, "trees nodes"]
    missing_left: Bool[ndarray, "trees nodes"]
    left: Int[ndarray, "trees nodes"]
    right: Int[ndarray, "trees nodes"]
    value: Float[ndarray, "trees nodes"]
    depth: Int[ndarray, ""]

    def score(self, features: Rows) -> Scores:
        """Return the score of each row, roughly the rank of its outcome."""
        total = np.zeros(len(features))
        rows = np.arange(len(features))
        for tree in range(len(self.value)):
            node = np.zeros(len(features), dtype=np.int64)  # of each row: all begin at the root
            for _ in range(int(self.depth)):  # a row that reaches a leaf earlier stays there
                value = features[rows, self.column[tree, node]]
                goes_left = np.where(
                    np.isnan(value),
                    self.missing_left[tree, node],
                    value <= self.threshold[tree, node],
                )
                node = np.where(goes_left, self.left[tree, node], self.right[tree, node])
            total += self.value[tree, node]
        return total


Ranker = Ridge | Boosting  # fitted: within a day, a higher score is a higher rank


def fit_ridge(features: Rows, outcome: Scores, config: RidgeConfig) -> Ridge:
    """Fit a ridge on rows and outcomes, ranks in [-0.5, 0.5]; raises DtmlError without rows."""
    _require_rows(outcome)
    rows, columns = features.shape
    # The matrix and the right side of the normal equations, summed up part by part.
    gram = config.penalty * rows * RANK_VARIANCE * np.eye(columns)
    x_outcome = np.zeros(columns)
    for first in range(0, rows, CHUNK_ROWS):
        part = slice(first, first + CHUNK_ROWS)
        x = np.nan_to_num(features[part]).astype(float)
        gram += x.T @ x
        x_outcome += x.T @ outcome[part]
    return Ridge(np.linalg.solve(gram, x_outcome))


def fit_boosting(features: Rows, outcome: Scores, config: BoostingConfig) -> Boosting:
    """Fit scikit-learn's boosting by histograms on such rows; raises DtmlError without any."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    _require_rows(outcome)
    empty = np.isnan(features).all(axis=0)
    if empty.any():  # scikit-learn requires a value in every column
        features = np.where(empty, 0, features)
    # With few rows a leaf may be smaller, so that trees still split: half of what each leaf of an
    # even tree would have.
    half_of_an_even_leaf = len(outcome) // (2 * config.leaves)
    model = HistGradientBoostingRegressor(
        max_iter=config.trees,
        max_leaf_nodes=config.leaves,
        learning_rate=config.rate,
        min_samples_leaf=max(1, min(config.rows_a_leaf, half_of_an_even_leaf)),
        max_features=config.columns_a_split,
        early_stopping=False,  # it would hold out rows of the same days that it trains on
        random_state=config.seed,
    )
    model.fit(features, outcome)
    # scikit-learn has no public name for its trees, and LightGBM, whose text has one, takes as long
    # to grow others. A regression has a single tree in each step.
    return _as_arrays([trees[0].nodes for trees in model._predictors])


def _require_rows(outcome: Scores) -> None:
    if not len(outcome):
        raise DtmlError(
            "no stock-day of the training span has a known outcome: check that the stocks that are "
            "constituents on its days have prices there"
        )


def _as_arrays(trees: Sequence[ndarray]) -> Boosting:
    """Return scikit-learn's trees as padded arrays, without the mean, which ranks nothing."""
    shape = (len(trees), max(len(nodes) for nodes in trees))  # [trees nodes], padded

    def padded(name: str, dtype: type) -> ndarray:
        values: ndarray = np.zeros(shape, dtype=dtype)
        for tree, nodes in enumerate(trees):
            values[tree, : len(nodes)] = nodes[name]
        return values

    # A leaf is its own child, whatever its column and threshold say.
    is_leaf = padded("is_leaf", bool)
    itself = np.arange(shape[1])
    return Boosting(
        column=np.where(is_leaf, 0, padded("feature_idx", np.int64)),
        threshold=padded("num_threshold", float),
        missing_left=padded("missing_go_to_left", bool),
        left=np.where(is_leaf, itself, padded("left", np.int64)),
        right=np.where(is_leaf, itself, padded("right", np.int64)),
        value=np.where(is_leaf, padded("value", float), 0.0),
        depth=np.array(padded("depth", np.int64).max()),
    )


def blend(scores: Mapping[str, Float[ndarray, "days stocks"]]) -> Float[ndarray, "days stocks"]:
    """Return the mean of the ranks that several models give the stocks of each day.

    NaN where one has no score. Means that differ only by rounding are made equal.
    """
    ranks = [ranked(of_model) for of_model in scores.values()]
    return with_ties(np.mean(ranks, axis=0))
