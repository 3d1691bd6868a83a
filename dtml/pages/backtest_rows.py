"""The rows of a backtest's tables of scores: by year, by fold, and of single stocks.

`scores` and `folds` have the columns of db's tables `backtest_score` and `backtest_fold`.
"""

from typing import Any

import numpy as np
import pandas as pd

from dtml.baselines.naive_rules import MODEL
from dtml.pages.figures import Row, records

EXTREMES = 10  # stocks at either end of the table
FOLD_FIGURES = ("validation_acc", "acc", "acc_low", "acc_high", "mcc", "mcc_low", "mcc_high")


def year_rows(scores: pd.DataFrame) -> dict[str, dict[str, Row]]:
    """Return the scores of each year on all stock-days: by year, then by predictor."""
    rows = sliced(scores, "year", "all")
    by_year: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: str(row["value"])):
        by_year.setdefault(row["value"], {})[row["predictor"]] = row
    return by_year


def fold_rows(folds: pd.DataFrame, scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each fold with the model's scores on all stock-days; NaN without an outcome."""
    fold_scores = {
        row["value"]: row for row in sliced(scores, "fold", "all") if row["predictor"] == MODEL
    }
    missing = dict.fromkeys(FOLD_FIGURES, np.nan)
    # Later entries replace earlier ones: a fold's own `validation_acc`, if it has one, is kept.
    return [
        {
            **missing,
            **fold_scores.get(str(fold["number"]), {}),
            **fold,
        }
        for fold in records(folds)
    ]


def stock_rows(scores: pd.DataFrame) -> dict[str, Any]:
    """Return the model's scores of the stocks with the highest and the lowest MCC.

    `best` and `worst` are these stocks, each from the highest MCC down and none in both; `measured`
    counts the stocks that have an interval, `above` those whose interval is above 0.
    """
    of_stocks = (
        (scores["slice"] == "symbol")
        & (scores["protocol"] == "all")
        & (scores["predictor"] == MODEL)
    )
    stocks = scores[of_stocks].dropna(subset=["mcc"])
    stocks = stocks.sort_values(["mcc", "value"], ascending=[False, True])
    best_count = min(EXTREMES, (len(stocks) + 1) // 2)  # at most the better half
    first_worst = max(best_count, len(stocks) - EXTREMES)
    return {
        "best": records(stocks.iloc[:best_count]),
        "worst": records(stocks.iloc[first_worst:]),
        "measured": int(stocks["mcc_low"].notna().sum()),
        "above": int((stocks["mcc_low"] > 0).sum()),
    }


def sliced(scores: pd.DataFrame, name: str, protocol: str) -> list[dict[str, Any]]:
    """Return the scores of a breakdown, the model before the rules."""
    is_sliced = (scores["slice"] == name) & (scores["protocol"] == protocol)
    rows = records(scores[is_sliced])
    return sorted(rows, key=lambda row: bool(row["predictor"] != MODEL))
