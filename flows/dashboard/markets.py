"""The first page of the dashboard: of every market, is there skill, does it survive costs, since when does it last?"""

from datetime import date
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db.rows import backtests, markets, nights, predictions, rankings, runs, scores
from dtml.evaluation.metrics import MINIMUM_DAYS, told_apart
from dtml.evaluation.ranking import mean_of_days
from dtml.markets.trading import YEAR
from dtml.pages.figures import interval, percent, records, signed_percent
from flows.dashboard.market import ENDS, Row, skill_of

TRADABLE = ", next open"  # what the name of a portfolio ends with that can be followed


def markets_page(conn: Connection, today: date) -> dict[str, Any]:
    """Return every market of the store: how its last night went, its skill so far, and what is left after costs."""
    return {"rows": records(market_rows(conn, today))}


def market_rows(conn: Connection, today: date) -> pd.DataFrame:
    """Return a row a market: last night, newest directions, model, running scores, order, and what costs leave."""
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
    """Return who orders the stocks, the rank IC so far, since when it is above 0, and the best one-line rule's.

    None for what there is not. `skill` says whether the interval of the rank IC lies above 0; None without an interval.
    """
    keys = ("rank_days", *(f"rank_ic{end}" for end in ENDS))
    found: dict[str, Any] = dict.fromkeys((*keys, "orders", "skill", "since", "lasts", "rank_rule", "rank_ic_rule"))
    orders = None if night is None else rankings.chosen_predictor(conn, market, night["target"])
    if night is None or orders is None:
        return found
    ranks = rankings.last_rank_scores(conn, market, night["target"]).rename(columns={"days": "rank_days"})
    mine, rules = ranks[ranks["predictor"] == orders], ranks[ranks["is_rule"] == 1].sort_values("rank_ic")
    if len(mine):
        found |= mine.iloc[0][[*keys]]
        since, lasts = rankings.lasting_skill(conn, market, mine.iloc[0]["leg"], orders, night["target"])
        found |= {"skill": told_apart(found["rank_ic_low"], found["rank_ic_high"]), "since": since, "lasts": lasts}
    if len(rules):
        found |= {"rank_rule": rules.iloc[-1]["predictor"], "rank_ic_rule": rules.iloc[-1]["rank_ic"]}
    return found | {"orders": orders}


def after_costs(conn: Connection, market: str) -> dict[str, Any]:
    """Return what is left after costs beside its yardstick, in words, with the interval and where it is from.

    From the last year of the paper account, else the newest walk of rankings, else the newest backtest.
    """
    paper = rankings.paper_returns(conn, market)
    net = paper.pivot(index="session", columns="portfolio", values="net").astype(float).tail(YEAR)
    if len(net) >= MINIMUM_DAYS:
        gain = mean_of_days((net["account"] - net["equal parts"]).to_numpy())
        value, low, high = (YEAR * each for each in (gain.value, gain.low, gain.high))
        figures = f"{signed_percent(value)} a year [{percent(low)}, {percent(high)}]"
        return _left(told_apart(low, high), "equal parts", figures, f"paper account, {len(net)} sessions", None)
    if (walk := rankings.newest_ranking(conn, market)) is not None:
        ends = walk["index_gain_low"], walk["index_gain_high"]
        figures = f"Sharpe ratio {walk['index_gain']:+.2f} {interval(walk, 'index_gain', 2, signed=True)}"
        link = f"/ranking/{walk['ranking_id']}"
        return _left(told_apart(*ends), "equal parts", figures, f"walk to {walk['last']}", link)
    made = backtests.newest_summary(conn, market)
    traded = made[made["portfolio"].str.endswith(TRADABLE)].dropna(subset="sharpe").sort_values("sharpe")
    if traded.empty:
        return _left(None, None, None, None, None)
    best = records(traded)[-1]
    figures = f"Sharpe ratio {best['index_gain']:+.2f} {interval(best, 'index_gain', 2, signed=True)}"
    words = f"backtest to {best['last']:%Y-%m-%d}, its best portfolio in hindsight"
    compared = told_apart(best["index_gain_low"], best["index_gain_high"])
    return _left(compared, "the index", figures, words, f"/backtest/{best['backtest_id']}")


def _left(
    compared: str | None, beside: str | None, figures: str | None, source: str | None, link: str | None
) -> dict[str, Any]:
    return {"left": compared, "left_beside": beside, "left_figures": figures, "left_from": source, "left_link": link}
