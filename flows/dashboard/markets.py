"""The first page of the dashboard: every market of the store."""

from datetime import date
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db.rows import markets, nights, predictions, runs, scores
from dtml.pages.charts import Axis
from dtml.pages.figures import records
from flows.dashboard.market import skill_of


def markets_page(conn: Connection, today: date) -> dict[str, Any]:
    """Return every market of the store, how its last night went and how good its predictions were."""
    rows = market_rows(conn, today)
    drawn = rows.reindex(columns=["mcc", "mcc_low", "mcc_high", "mcc_rule"]).to_numpy(dtype=float).ravel()
    return {"rows": records(rows), "axis": Axis.over([0.0, *drawn])}


def market_rows(conn: Connection, today: date) -> pd.DataFrame:
    """Return a row a market: its last night, its newest directions counted, its model, and its running scores."""
    counted = predictions.newest_direction_counts(conn)
    rows = []
    for market in markets.all_markets(conn):
        night = nights.night(conn, market)
        run = runs.latest_model(conn, market)
        said = {name: None if night is None else night[name] for name in ("as_of", "target", "status")}
        said["days_since"] = None if night is None else (today - night["as_of"]).days
        said |= {direction: counted.get((market, direction), 0) for direction in ("rise", "fall", "none")}
        said |= {"run_id": None if run is None else run["run_id"]}
        said["trained"] = None if run is None else run["train_last"]
        rows.append({"market": market} | said | skill_of(scores.last_running_scores(conn, market)))
    return pd.DataFrame(rows)
