"""The one-line rules that every model is printed beside.

NAIVE_RULES give all stocks of a session one direction; STOCK_RULES tell half from the others. On
the public sets the best of them on the training span does as well as the published models.
"""

from collections.abc import Mapping, Sequence
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
STOCK_RULES = {
    "day_losers": "the half of the stocks with the lowest return of the session rises",
    "low_volatility": (
        "the half of the stocks whose returns of 20 sessions have the lowest deviation rises"
    ),
}


def naive_directions(index_close: "pd.Series[float]") -> pd.DataFrame:
    """Predict the session after each row of `index_close`, a column a rule.

    1.0 a rise, 0.0 a fall, NaN while the rule lacks history.
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
    """Return `naive_directions` for the session after each day; NaN without a bar of the index."""
    bars_of_index = bars[bars["symbol"] == index_symbol]
    index_close = bars_of_index.set_index("session")["close"]
    return naive_directions(index_close).reindex(days)


def stock_directions(
    days: pd.DatetimeIndex, prices: "pd.Series[float]", symbols: Sequence[str]
) -> dict[str, Float[ndarray, "days stocks"]]:
    """Predict which of `symbols` rise in the session after each day, by the rules STOCK_RULES.

    `prices` are those of returns, by symbol and session. 1.0 a rise, 0.0 a fall, NaN without
    history.
    """
    change = prices / prices.groupby(level="symbol").shift() - 1
    deviation = change.groupby(level="symbol").rolling(RULE_HISTORY).std().droplevel(0)
    directions = {}
    for rule, feature in zip(STOCK_RULES, (change, deviation), strict=True):
        of_day = feature.unstack("symbol").reindex(index=days, columns=list(symbols))
        median = of_day.median(axis=1)
        rises = of_day.lt(median, axis=0).astype(float).where(of_day.notna())
        directions[rule] = rises.to_numpy()
    return directions


def rules_read_from(calendar: AnyCalendar, day: date) -> date:
    """Return the first session that a direction predicted on `day` may read, bars missing."""
    return sessions_up_to(calendar, day, 2 * RULE_HISTORY)[0].date()


def beside_rules(
    scores: pd.DataFrame, nights: str = "nights"
) -> "tuple[pd.Series[Any], pd.DataFrame] | None":
    """Return the model's row of one session's scores, and the rows of rules of as many `nights`.

    None where the model has no row.
    """
    is_model = scores["predictor"] == MODEL
    if not is_model.any():
        return None
    model = scores[is_model].iloc[0]
    same_nights = scores[nights] == model[nights]
    return model, scores[~is_model & same_nights]


def best_at(rules: pd.DataFrame, figure: str) -> "pd.Series[Any] | None":
    """Return the first row of the rules with the highest value of a column, or None."""
    known_rules = rules.dropna(subset=[figure])
    if known_rules.empty:
        return None
    figures = known_rules[figure].to_numpy(dtype=float)
    return known_rules.iloc[int(figures.argmax())]


def choose_rule(
    directions: Mapping[str, Float[ndarray, "days stocks"]],
    movement: Float[ndarray, "days stocks"],
) -> str:
    """Return the rule with the best ACC on the paper's labels; of equals, the first.

    `directions` are of training days alone: 1.0 a rise, 0.0 a fall; `movement` is the return, a
    ratio minus 1; NaN unknown. Stock-days without a direction of every rule are left out.
    """
    labels = published_labels(movement)  # 1 for a rise, -1 for a fall, 0 for no label
    counted = (labels != 0) & np.isfinite(list(directions.values())).all(axis=0)
    correct = {
        rule: int(((of_rule == 1) == (labels == 1))[counted].sum())
        for rule, of_rule in directions.items()
    }
    return max(correct, key=lambda rule: correct[rule])
