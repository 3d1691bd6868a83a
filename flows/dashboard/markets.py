"""The first page of the dashboard: every market of the store."""

from datetime import date
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db.rows import backtests, markets, nights, predictions, rankings, runs, scores
from dtml.evaluation.metrics import told_apart
from dtml.pages.charts import Axis
from dtml.pages.figures import records
from flows.dashboard.market import ENDS, Row, skill_of

TRADABLE = ", next open"  # what the name of a portfolio ends with that can be followed


def markets_page(conn: Connection, today: date) -> dict[str, Any]:
    """Return every market of the store: how its last night went, its skill so far, and what was left after costs."""
    rows = market_rows(conn, today)
    drawn = rows.reindex(columns=["mcc", "mcc_low", "mcc_high", "mcc_rule"]).to_numpy(dtype=float).ravel()
    return {"rows": records(rows), "axis": Axis.over([0.0, *drawn])}


def market_rows(conn: Connection, today: date) -> pd.DataFrame:
    """Return a row a market: last night, newest directions, model, running scores, order, newest backtest's Sharpe."""
    counted = predictions.newest_direction_counts(conn)
    rows = []
    for market in markets.all_markets(conn):
        night = nights.night(conn, market)
        run = runs.latest_model(conn, market)
        said = {name: None if night is None else night[name] for name in ("as_of", "target", "status")}
        said["days_since"] = None if night is None else (today - night["as_of"]).days
        said |= {direction: counted.get((market, direction), 0) for direction in ("rise", "fall", "none")}
        said |= {"run_id": None if run is None else run["run_id"]}
        found = said | skill_of(scores.last_running_scores(conn, market)) | order_of(conn, market, night)
        rows.append({"market": market} | found | after_costs(conn, market))
    return pd.DataFrame(rows)


def order_of(conn: Connection, market: str, night: Row | None) -> dict[str, Any]:
    """Return who orders the stocks, the rank IC so far, and the best one-line rule's; None for what there is not."""
    keys = [f"rank_ic{end}" for end in ENDS]
    found: dict[str, Any] = dict.fromkeys(("orders", *keys, "rank_rule", "rank_ic_rule"))
    orders = None if night is None else rankings.chosen_predictor(conn, market, night["target"])
    if night is None or orders is None:
        return found
    ranks = rankings.last_rank_scores(conn, market, night["target"])
    mine, rules = ranks[ranks["predictor"] == orders], ranks[ranks["is_rule"] == 1].sort_values("rank_ic")
    if len(mine):
        found |= mine.iloc[0][keys]
    if len(rules):
        found |= {"rank_rule": rules.iloc[-1]["predictor"], "rank_ic_rule": rules.iloc[-1]["rank_ic"]}
    return found | {"orders": orders}


def after_costs(conn: Connection, market: str) -> dict[str, Any]:
    """Return the best Sharpe ratio after costs of the newest backtest, of portfolios that can be traded; or None."""
    keys = ("backtest_id", "portfolio", *(f"sharpe{end}" for end in ENDS))
    made = backtests.newest_summary(conn, market)
    traded = made[made["portfolio"].str.endswith(TRADABLE)].dropna(subset="sharpe").sort_values("sharpe")
    if traded.empty:
        return dict.fromkeys((*keys, "against_index"))
    best = traded.iloc[-1]
    return {key: best[key] for key in keys} | {
        "against_index": told_apart(best["index_gain_low"], best["index_gain_high"])
    }
