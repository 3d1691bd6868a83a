"""The page of how well a market's nights ranked its stocks: a tear sheet of views."""

from datetime import date
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.connection.frames import frame, sql_text
from db.read import read, read_row, selection
from db.rows.rankings import last_rank_scores
from dtml.evaluation.ranking import beside_rules, mean_of_days, rank_ic_t
from dtml.evaluation.tear_sheet import OF_LEGS, TRADED_LEG, TearSheet, by_sector, cumulative_ic
from dtml.markets.definition import Costs, Leg
from dtml.pages.figures import Page, Row, proven
from dtml.pages.ranking import sheet_values
from dtml.ranking.outcomes import overlap_of
from flows.dashboard.markets import require_market
from flows.markets.files import market_of_store
from flows.morning import caveats, hindsight

NIGHTS = 252  # of whose single stocks the page computes figures, at most


def market_ranking_page(conn: Connection, market: str) -> Page:
    """Return the page of the ranking that a market's nights show, kept until something has changed.

    `ranker` is None before the first. Costs are those of the market's file, if it can be read.
    Raises NotThereError for an unknown market.
    """
    require_market(conn, market)
    shown = read_row(
        conn,
        "ranking_history",
        columns="predictor, leg, target, made_at",
        market=market,
        chosen=1,
        order="-target, -made_at",
    )
    if shown is None:
        return {"market": market, "ranker": None}
    definition = market_of_store(conn.engine, market)
    costs = None if definition is None else definition.trading.costs
    running = last_rank_scores(conn, market)
    version = (*shown.values(), running["scored_at"].max(), repr(costs))
    place = (str(conn.engine.url), market)
    if place not in _pages or _pages[place][0] != version:
        _pages[place] = (version, _page(conn, market, shown, running, costs))
    page = _pages[place][1]
    _nights, late = hindsight(conn, market)
    if late:
        words = {
            question: word if word == proven(None) else f"{word} in hindsight"
            for question, word in page["answers"].items()
        }
        page = {**page, "answers": words}
    return {**page, "caveats": caveats(conn, market)}


# The newest page of each market of a store, and the version of the rows that it is made of: the
# intervals of a page take a second of computation, and change only when a night scores rankings.
_pages: dict[tuple[str, str], tuple[tuple[Any, ...], Page]] = {}


def _page(
    conn: Connection, market: str, shown: Row, running: pd.DataFrame, costs: Costs | None
) -> Page:
    predictor, leg = shown["predictor"], shown["leg"]
    overlap = overlap_of(leg)
    scores = partial(selection, "rank_score_log", market=market, order="predictor, leg, target")
    every = frame(conn, scores(span="night", leg=leg))
    daily = every.pivot(index="target", columns="predictor", values="rank_ic")
    daily = daily.astype(float).dropna(axis=1, how="all")
    rules = running.loc[running["is_rule"] == 1, "predictor"]
    strongest = None
    if predictor in daily:
        of_rules = {str(rule): daily[rule].to_numpy() for rule in rules if rule in daily}
        strongest = beside_rules(daily[predictor].to_numpy(), of_rules, overlap=overlap)
    names = [predictor] if strongest is None else [predictor, strongest["other"]]
    of_running = frame(conn, scores(span="running", leg=leg, predictor=names))
    cumulative = {
        str(name): cumulative_ic(
            pd.DatetimeIndex(rank_ic.index),
            rank_ic.to_numpy(),
            of_running[of_running["predictor"] == name],
        )
        for name, rank_ic in daily.reindex(columns=names).items()
    }
    log = read(conn, "night_log", market=market).dropna(subset="target")
    targets = log["target"].nlargest(NIGHTS)
    by_leg = scores(span="night", predictor=[predictor])
    stocks = selection(
        "ranking_history",
        columns="target, symbol, sector, score, place, realised_return, made_at",
        market=market,
        predictor=predictor,
        target=where.since(date.min if targets.empty else targets.min().date()),
        order="target, made_at, place",
    )
    # Of a session that was ranked more than once, the newest ranking counts.
    ranked = frame(conn, stocks).drop_duplicates(["target", "symbol"], keep="last")
    grid = partial(ranked.pivot, index="target", columns="symbol")
    ranks = grid(values="score").astype(float)
    outcome = grid(values="realised_return").astype(float).to_numpy()
    sectors = ranked.drop_duplicates("symbol", keep="last").set_index("symbol")["sector"]
    sectors = sectors.reindex(ranks.columns).astype(object)
    daily_of_legs = frame(conn, by_leg)
    legs = []  # the store has running figures for the market's own leg alone
    for name, rows in daily_of_legs.groupby("leg"):
        rank_ic = rows["rank_ic"].to_numpy(dtype=float)
        shared = overlap_of(cast(Leg, name))
        legs.append(
            {
                "leg": name,
                "days": int(np.isfinite(rank_ic).sum()),
                **mean_of_days(rank_ic, overlap=shared).named("rank_ic"),
                "t": rank_ic_t(rank_ic, overlap=shared),
            }
        )
    is_traded = daily_of_legs["leg"] == TRADED_LEG
    spread_leg = TRADED_LEG if is_traded.any() else leg
    of_spread = daily_of_legs[daily_of_legs["leg"] == spread_leg]
    predicted = log.dropna(subset="predictions")
    left_out = predicted["gaps"].map(lambda gaps: len(gaps or []))
    constituents = (predicted["predictions"].astype(int) + left_out).set_axis(predicted["target"])
    sheet = TearSheet.of(
        predictor=predictor,
        leg=leg,
        spread_leg=spread_leg,
        overlap=overlap,
        cumulative=cumulative,
        sessions=pd.DatetimeIndex(ranks.index),
        scores=ranks.to_numpy(),
        outcome=outcome,
        gross=of_spread.set_index("target")["decile_spread"].reindex(ranks.index).to_numpy(float),
        constituents=constituents.reindex(ranks.index).fillna(0).to_numpy(int),
        costs=costs,
        legs=pd.DataFrame(legs, columns=OF_LEGS),
        sectors=by_sector(
            ranks.to_numpy(),
            outcome,
            sectors.where(sectors.notna(), None).tolist(),
            overlap=overlap,
        ),
    )
    of_nights = scores(span="night", leg=leg, predictor=names)
    behind = (
        (of_nights, ("cumulative", "months", "distribution")),
        (by_leg, ("spread", "legs")),
        (stocks, ("groups", "autocorrelation", "replaced", "sectors", "coverage")),
    )
    sql = {chart: sql_text(conn, statement) for statement, charts in behind for chart in charts}
    values = sheet_values(sheet, unit="nights", strongest=strongest, sql=sql)
    return {"market": market, "ranker": predictor, "nights": NIGHTS, **values}
