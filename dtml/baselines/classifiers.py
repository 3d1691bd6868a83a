"""Logistic regression and gradient boosting on flattened windows: what needs no network.

A row is a stock-day: the window of the stock, then of the index. Settings are chosen from the lists
below by the accuracy on the validation span; `Fitted.tried` counts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dtml.errors import DtmlError
from dtml.markets.definition import LabelProtocol
from dtml.windows import Windows

Kind = Literal["logistic_regression", "gradient_boosting"]

# C of the logistic regression: 1 / weight of its squared norm.
INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
# The grid of the boosting: leaves of a tree, and learning rates.
LEAVES = (4, 16)
RATES = (0.03, 0.1)
ITERATIONS = 100  # trees that a boosting grows; any number of the first ones may be kept
# Share of the columns that a split chooses from, drawn from the seed, which has no other use.
COLUMNS_A_SPLIT = 0.3


class Labelled(NamedTuple):
    """The stock-days of a span that count: their rows, and which rose."""

    x: Float[ndarray, "rows columns"]
    rises: Bool[ndarray, " rows"]


@dataclass(frozen=True)
class Fitted:
    """A fitted classifier and how it was chosen."""

    model: Any  # of scikit-learn
    chosen: Mapping[str, float | int]
    validation_acc: float
    tried: int  # configurations that the validation span chose from, each number of trees included
    trees: int | None = None  # of a boosting, the first ones that are kept

    def probability(self, windows: Windows) -> Float[ndarray, "days stocks"]:
        """Return the probability of a rise, NaN where a stock is not observed."""
        x, day_places, stock_places = design(windows)
        probability = np.full(windows.observed.shape, np.nan)
        if len(x):  # scikit-learn refuses to predict no rows
            if self.trees is None:
                classes = self.model.predict_proba(x)
            else:
                stages = self.model.staged_predict_proba(x)
                classes = next(islice(stages, self.trees - 1, None))
            probability[day_places, stock_places] = classes[:, 1]
        return probability


def design(
    windows: Windows, counted: Bool[ndarray, "days stocks"] | None = None
) -> tuple[Float[ndarray, "rows columns"], Int[ndarray, " rows"], Int[ndarray, " rows"]]:
    """Return a row for each stock-day `counted`, by default observed, with its day and stock.

    Columns: the features of the stock's window, oldest first, then the index's, in percent.
    """
    if counted is None:
        counted = windows.observed.numpy()
    day_places, stock_places = np.nonzero(counted)
    of_stocks = windows.stocks.numpy()[day_places, stock_places]  # [rows window features]
    of_index = windows.index.numpy()[day_places]
    # Given as a number, because `reshape` cannot find it where there are no rows.
    columns = 2 * windows.index.shape[1:].numel()
    rows = np.stack([of_stocks, of_index], axis=1).reshape(len(day_places), columns)
    return rows, day_places, stock_places


def fit_classifier(
    kind: Kind, train: Windows, validation: Windows, protocol: LabelProtocol, seed: int
) -> Fitted:
    """Fit every configuration on `train` and keep the most accurate on `validation`.

    Of equals, the first is kept. `protocol` says which stock-days count. The seed draws the columns
    that each split of a boosting may use; the logistic regression has one solution, the same for
    every seed. Stock-days of both spans count; raises DtmlError where those of the training span
    all rise, or all fall.
    """
    train_rows = _labelled(train, protocol)
    validation_rows = _labelled(validation, protocol)
    if len(np.unique(train_rows.rises)) < 2:
        raise DtmlError(
            f"all stock-days that count from {train.target[0].date()} to "
            f"{train.target[-1].date()} have the same direction, so there is nothing to learn: "
            "check the prices of this span"
        )
    if kind == "logistic_regression":
        return _logistic_regression(train_rows, validation_rows)
    return _boosting(train_rows, validation_rows, seed)


def _labelled(windows: Windows, protocol: LabelProtocol) -> Labelled:
    counted = windows.labelled(protocol).numpy()
    x, day_places, stock_places = design(windows, counted)
    return Labelled(x=x, rises=windows.rises().numpy()[day_places, stock_places])


def _logistic_regression(train: Labelled, validation: Labelled) -> Fitted:
    """Fit one model for each penalty, and keep the most accurate on the validation span.

    Columns are scaled; Newton's method needs a few steps.
    """
    fitted: list[Fitted] = []
    for c in INVERSE_PENALTIES:
        regression = LogisticRegression(C=c, solver="newton-cholesky")
        model = make_pipeline(StandardScaler(), regression)
        model.fit(train.x, train.rises)
        accuracy = _accuracy(model.predict_proba(validation.x), validation.rises)
        fitted.append(
            Fitted(
                model=model,
                chosen={"c": c},
                validation_acc=accuracy,
                tried=len(INVERSE_PENALTIES),
            )
        )
    return max(fitted, key=lambda classifier: classifier.validation_acc)


def _boosting(train: Labelled, validation: Labelled, seed: int) -> Fitted:
    """Fit one boosting for each point of the grid, cut to its best trees, and keep the best."""
    grid = list(product(LEAVES, RATES))
    fitted: list[Fitted] = []
    for leaves, rate in grid:
        model = HistGradientBoostingClassifier(
            max_leaf_nodes=leaves,
            learning_rate=rate,
            max_iter=ITERATIONS,
            random_state=seed,
            max_features=COLUMNS_A_SPLIT,
            early_stopping=False,  # it would split training days at random
        )
        model.fit(train.x, train.rises)
        accuracies = [  # of the first tree alone, of the first two, and so on
            _accuracy(classes, validation.rises)
            for classes in model.staged_predict_proba(validation.x)
        ]
        trees = int(np.argmax(accuracies)) + 1
        fitted.append(
            Fitted(
                model=model,
                chosen={"leaves": leaves, "rate": rate, "trees": trees},
                validation_acc=max(accuracies),
                tried=len(grid) * ITERATIONS,
                trees=trees,
            )
        )
    return max(fitted, key=lambda classifier: classifier.validation_acc)


def _accuracy(classes: Float[ndarray, "rows 2"], rises: Bool[ndarray, " rows"]) -> float:
    return float(((classes[:, 1] > 0.5) == rises).mean())
