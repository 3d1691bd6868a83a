"""A benchmark of two models and a rule, as db/rows/backtests.py takes it."""

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import sqlalchemy as sa

from db import tables

NAME = "toy-1a2b3c4d"
NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)
FIGURES = [
    each.name
    for each in tables.benchmark_score.c
    if isinstance(each.type, type(tables.score.c.acc.type))
]
KEPT, DROPPED = {"hidden": 64, "betas": [0.1, 1]}, {"hidden": 32, "betas": []}


def benchmark(name: str = NAME, **changed: object) -> dict[str, Any]:
    return {
        "id": name,
        "market": "toy",
        "title": "Toy market, paper protocol",
        "config": {"dtml": {"window": 3, "rates": [0.001, 0.0001]}, "stocknet": {}},
        "code_version": "0.1.0",
        "data_watermark": NOW,
        "stocks": 87,
        "train_first": date(2014, 1, 2),
        "train_last": date(2015, 7, 31),
        "validation_first": date(2015, 8, 3),
        "validation_last": date(2015, 9, 30),
        "test_first": date(2015, 10, 1),
        "test_last": date(2015, 12, 31),
        "best_rule": "index_reversal",
        "seconds": 97.5,
        "device": "cpu",
        "test_read_at": NOW,
    } | changed


def scores() -> pd.DataFrame:
    """A rule, which has few figures, and two models: one of five seeds and one
    of a single seed, not in print.
    """
    frame = pd.DataFrame(
        {
            "predictor": ["dtml", "gradient_boosting", "index_reversal"],
            "protocol": "published",
            "run_id": ["first", "trees", None],
            "is_rule": [False, False, True],
            "days": 64,
            "n": 3720,
            "rises": 1873,
            "seeds": [5, 1, np.nan],
            "configurations": [4, 2, np.nan],
        }
    )
    frame[FIGURES] = 0.125
    few = ("acc", "acc_low", "acc_high", "mcc", "mcc_low", "mcc_high", "same_direction")
    frame.loc[2, [each for each in FIGURES if each not in few]] = np.nan
    frame.loc[
        1, ["acc_sd", "mcc_sd", *(each for each in FIGURES if each.startswith("published"))]
    ] = np.nan
    return frame.assign(acc=[0.5625, 0.53, 0.51])


def seeds_of_models() -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "predictor": ["dtml", "dtml", "dtml", "gradient_boosting"],
            "configuration": [0, 1, 1, 0],
            "seed": [0, 0, 1, 0],
            "settings": [DROPPED, KEPT, KEPT, {"leaves": 31}],
            "kept": [False, True, True, True],
            "best_epoch": [7, 11, 13, np.nan],
            "validation_acc": [0.5, 0.5, 0.75, 0.5],
            "validation_loss": [0.7, 0.6, 0.5, np.nan],
        }
    )
    return frame.assign(acc=[np.nan, 0.5, 0.625, 0.53], mcc=[np.nan, 0.0, 0.25, 0.0])


def ranking() -> dict[str, Any]:
    """A walk of one model and one rule."""
    return {
        "id": "toy-2022-01-03-1a2b3c4d",
        "market": "toy",
        "leg": "next_close",
        "first": date(2022, 1, 3),
        "last": date(2022, 12, 30),
        "config": {
            "ridge": {"penalty": 0.1},
            "trading": {"top": 20, "sources": {"lot": "Made up."}},
        },
        "stocks": 31,
        "folds": 4,
        "best_rule": "day_losers",
        "code_version": "0.1.0",
        "data_watermark": NOW,
        "seconds": 2.5,
        "read_at": NOW,
    }


def ranker(**kept: object) -> dict[str, Any]:
    """The rankers of a training, with where their checkpoint lies."""
    same = {
        name: value
        for name, value in ranking().items()
        if name in ("market", "leg", "code_version")
    }
    own = {"id": "toy-2023-12-29-1a2b3c4d", "chosen": "ridge", "config": {"leg": "next_close"}}
    times = {"data_watermark": NOW, "train_last": date(2023, 12, 29), "created_at": NOW}
    return same | own | times | kept


def ranking_scores() -> pd.DataFrame:
    figures = dict.fromkeys(_numbers(tables.ranking_score), 0.1 + 0.2)
    rows = {
        "predictor": ["day_losers", "ridge", "blend"],
        "leg": "next_close",
        "slice": "all",
        "value": "",
        "is_rule": [True, False, False],
    }
    return pd.DataFrame(rows).assign(days=251, n=7001, **figures)


def ranking_differences() -> pd.DataFrame:
    figures = dict.fromkeys(_numbers(tables.ranking_difference), 0.1 + 0.2)
    rows = {
        "predictor": ["day_losers", "ridge", "blend", "blend"],
        "other": ["ridge", "day_losers", "day_losers", "ridge"],
        "leg": "next_close",
    }
    return pd.DataFrame(rows).assign(**figures)


def ranking_portfolios() -> pd.DataFrame:
    figures = dict.fromkeys(_numbers(tables.ranking_portfolio), 0.1 + 0.2) | {
        "max_drawdown": -0.1,
        "band": 2.0,
    }
    rows = {
        "span": ["validation", "test", "test"],
        "version": ["", "smoothed and banded", "equal parts"],
    }
    return pd.DataFrame(rows).assign(smooth=5, days=251, **figures)


def _numbers(table: sa.Table) -> list[str]:
    return [each.name for each in table.c if isinstance(each.type, sa.Float)]
