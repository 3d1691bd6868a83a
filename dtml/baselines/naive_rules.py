"""The one-line rules that every model is printed beside.

Each rule gives all stocks of a session one direction. On the public data sets the best of these
rules on the training span does as well as the published models, so a model that does not beat them
has shown no skill.
"""

from datetime import date
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from dtml.markets.definition import AnyCalendar
from dtml.prices.returns import published_labels
from dtml.prices.sessions import sessions_up_to

MODEL = "dtml"  # the name of the model among the predictors
NAIVE_RULES = {
    "always_up": "every stock rises",
    "index_reversal": (
        "every stock rises after a session in which the index fell, and falls after the others"
    ),
    "index_below_mean20": (
        "every stock rises while the index closes below its mean of 20 sessions, else falls"
    ),
}
RULE_HISTORY = 20  # sessions of the index, the last one included, that the longest rule reads


def naive_directions(index_close: "pd.Series[float]") -> pd.DataFrame:
    """Predict the session after each row of `index_close` (currency units, by session).

    Returns one column a rule: 1.0 for a rise, 0.0 for a fall, NaN while the rule lacks history.
    """
    change = index_close.pct_change(fill_method=None)
    mean = index_close.rolling(RULE_HISTORY).mean()
    directions = {
        "always_up": pd.Series(1.0, index=index_close.index),
        "index_reversal": (change < 0).where(change.notna(), np.nan),
        "index_below_mean20": (index_close < mean).where(mean.notna(), np.nan),
    }
    return pd.DataFrame(directions).astype(float)


def directions_on(days: pd.DatetimeIndex, bars: pd.DataFrame, index_symbol: str) -> pd.DataFrame:
    """Return `naive_directions` of the index among `bars` for the session after each day.

    They are NaN where the index has no bar.
    """
    bars_of_index = bars[bars["symbol"] == index_symbol]
    index_close = bars_of_index.set_index("session")["close"]
    return naive_directions(index_close).reindex(days)


def rules_read_from(calendar: AnyCalendar, day: date) -> date:
    """Return the first session that a direction predicted on `day` may read.

    It is twice as far back as the longest rule reads, to allow for missing bars of the index.
    """
    return sessions_up_to(calendar, day, 2 * RULE_HISTORY)[0].date()


def beside_rules(
    scores: pd.DataFrame, nights: str = "nights"
) -> "tuple[pd.Series[Any], pd.DataFrame] | None":
    """Return the model's row of one session's scores, and the rows of the rules.

    `scores` has a row a predictor. `nights` names the column with the number of nights scored:
    rules with another number than the model are left out. None where the model has no row.
    """
    is_model = scores["predictor"] == MODEL
    if not is_model.any():
        return None
    model = scores[is_model].iloc[0]
    same_nights = scores[nights] == model[nights]
    return model, scores[~is_model & same_nights]


def best_at(rules: pd.DataFrame, figure: str) -> "pd.Series[Any] | None":
    """Return the row of the rule with the highest value of a column, the first of equal ones.

    None where no rule has a value there.
    """
    known_rules = rules.dropna(subset=[figure])
    if known_rules.empty:
        return None
    figures = known_rules[figure].to_numpy(dtype=float)
    return known_rules.iloc[int(figures.argmax())]


def choose_rule(directions: pd.DataFrame, movement: Float[ndarray, "days stocks"]) -> str:
    """Return the rule with the best ACC on the paper's labels; of equals, the first column.

    `directions` has a column a rule, as `naive_directions` returns them, and a row for each day of
    a training span; `movement` is the return that followed, a ratio minus 1, NaN where it is not
    known. Pass training days only: a rule chosen on the days it is scored on has seen their
    outcomes. Days without a direction of every rule are left out.
    """
    has_directions = directions.notna().all(axis=1).to_numpy()
    # [days stocks]: 1 for a rise, -1 for a fall, 0 for a stock-day that does not count.
    labels = np.where(has_directions[:, None], published_labels(movement), 0)
    rises = (labels == 1).sum(axis=1)
    falls = (labels == -1).sum(axis=1)
    correct = {}
    for rule in directions.columns:
        # A rule gives all stocks of a day one direction: it is correct for those with this label.
        correct_by_day = np.where(directions[rule] == 1, rises, falls)
        correct[rule] = int(correct_by_day.sum())
    return max(correct, key=lambda rule: correct[rule])
