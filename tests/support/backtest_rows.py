"""A toy backtest of two folds: its rows as db/rows/backtests.py takes them."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from tests.support.prediction_rows import NEXT, TARGET

NAME = "toy-2024-01-05-1a2b3c4d"
NOW = datetime(2024, 1, 9, 2, 30, tzinfo=UTC)
COUNTS = {"stocks": 3, "constituent_days": 6, "without_price": 1, "tried": 2, "expected_best": 0.75}


def backtest(name: str = NAME, **changed: object) -> dict[str, Any]:
    return {
        "id": name,
        "market": "toy",
        "first": TARGET.date(),
        "last": NEXT.date(),
        "retrain_every": 1,
        "config": {
            "experiment": {"window": 3},
            "sessions_a_year": 252,
            "costs": {"commission": 1.0},
            "strategies": ["long"],
        },
        "seeds": [2, 3],
        "code_version": "0.1.0",
        "data_watermark": NOW,
        "list_is_snapshot": True,
        "list_as_of": date(2023, 12, 29),
        "device": "cpu",
        "created_at": NOW,
    } | changed


def fold(number: int = 1, run_id: str = "first", **changed: object) -> dict[str, Any]:
    target = (TARGET, NEXT)[number - 1].date()
    as_of = target - timedelta(days=1)
    return {
        "number": number,
        "run_id": run_id,
        "as_of": as_of,
        "first": target,
        "last": target,
        "predictions": 3,
        "refused": {str(as_of): "3 of 8 constituents have no good bar"} if number == 2 else {},
        "seconds": 1.5,
    } | changed


def scores() -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "slice": ["all", "all", "all", "fold", "symbol", "year"],
            "value": ["", "", "", "1", "A", "2024"],
            "protocol": ["all", "all", "all", "all", "all", "published"],
            "predictor": ["always_up", "dtml", "index_reversal", "dtml", "dtml", "dtml"],
            "n": [6, 6, 6, 3, 2, 0],
            "days": [2, 2, 2, 1, 2, 0],
            "rises": [3, 3, 3, 2, 1, 0],
            "acc": [
                0.6875,
                0.75,
                0.625,
                0.5,
                0.5,
                np.nan,
            ],  # of the rules one has more of this, the other of the next
            "mcc": [0.0, 0.5, 0.25, 0.0, 0.0, np.nan],
        }
    )
    gains = {
        "model_gain": [0.5, np.nan, 0.25, *[np.nan] * 3],
        "model_gain_low": np.nan,
        "model_gain_high": np.nan,
    }
    order = {
        "rank_ic": [np.nan, 0.25, np.nan, 0.5, np.nan, np.nan],
        "rank_gain": [np.nan, -0.125, *[np.nan] * 4],
    }
    order |= dict.fromkeys(
        (f"{name}_{end}" for name in ("rank_ic", "rank_gain") for end in ("low", "high")), np.nan
    )
    frame = frame.assign(**gains, **order)
    return frame.assign(
        acc_low=[0.25, 0.5, 0.375, *[np.nan] * 3], acc_high=np.nan, mcc_low=np.nan, mcc_high=np.nan
    )


def returns() -> pd.DataFrame:
    """Turnover of 2 at 3 basis points a unit costs 0.0006."""
    return pd.DataFrame(
        {
            "portfolio": ["index", "index", "long, next open", "long, next open"],
            "session": [TARGET, NEXT, TARGET, NEXT],
            "gross": [0.01, -0.02, 0.01, 0.0],
            "turnover": [0.0, 0.0, 1.0, 2.0],
            "cost": [0.0, 0.0, 0.0003, 0.0006],
            "borrow": 0.0,
            "net": [0.01, -0.02, 0.0097, -0.0006],
        }
    )


def portfolios() -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "portfolio": ["index", "long, next open"],
            "strategy": [None, {"form": "long", "fill": "next_open", "top": 10}],
            "days": 2,
            "annual_return": [-0.25, 0.5],
            "annual_volatility": 0.125,
            "sharpe": [-2.0, 4.0],
            "deflated_sharpe": [0.25, 0.75],
            "max_drawdown": [-0.02, -0.0006],
            "hit_rate": 0.5,
            "turnover": [0.0, 1.5],
            "break_even": [np.nan, 33.0],
            "settled": [0, 2],
            "unbooked": [0.0, 0.75],
        }
    )
    gains = {"index_gain": [np.nan, 6.0], "index_gain_low": np.nan, "index_gain_high": np.nan}
    return frame.assign(sharpe_low=np.nan, sharpe_high=np.nan, **gains)
