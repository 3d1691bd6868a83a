"""A run, its predictions of three stocks and their scores, as db/rows takes them."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db.save import save

STOCKS = ["A", "B", "C"]
AS_OF, TARGET, NEXT = (
    pd.Timestamp("2024-01-04"),
    pd.Timestamp("2024-01-05"),
    pd.Timestamp("2024-01-08"),
)
NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)
LATER = NOW + timedelta(hours=23)


def save_stocks(conn: Connection, symbols: Sequence[str], market: str = "toy") -> None:
    stocks = pd.DataFrame({"symbol": symbols, "source_symbol": symbols})
    save(conn, "instrument", stocks, market=market, kind="stock")


def run(name: str = "first", **changed: object) -> dict[str, object]:
    return {
        "id": name,
        "market": "toy",
        "kind": "nightly",
        "model": "dtml",
        "config": {"window": 3, "betas": [0.1, 0.01]},
        "universe": {"index": "IDX", "constituents": [["A", "2023-01-03", None]]},
        "seeds": [2, 3, 5],
        "code_version": "0.1.0",
        "data_watermark": NOW,
        "checkpoint_path": f"data/{name}",
        "checkpoint_hash": f"hash of {name}",
        "losses": [{"seed": 2, "loss": [0.7, 0.6]}],
        "train_first": date(2023, 1, 3),
        "train_last": date(2024, 1, 4),
        "slope": 1.25,
        "intercept": -0.5,
        "created_at": NOW,
        "computed_by": None,
    } | changed


def predictions(run_id: str = "first", target: pd.Timestamp = TARGET) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run_id": run_id,
            "as_of": AS_OF if target == TARGET else TARGET,
            "target": target,
            "symbol": STOCKS,
            "probability": [0.25, 0.5, 0.75],
            "probability_std": [0.125, np.nan, 0.0],
        }
    )
