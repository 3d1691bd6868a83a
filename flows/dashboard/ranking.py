"""The page of how well the nights of a market ranked its stocks: a tear sheet of stored rankings.

Everything is read from documented views. What is stored already, such as the rank IC of each night
and its running interval, is not computed again.
"""

from datetime import date
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.connection.frames import Statement, frame, sql_text
from db.read import read, read_row, selection
from db.rows.rankings import last_rank_scores
from dtml.evaluation.ranking import beside_rules, mean_of_days, rank_ic_t
from dtml.evaluation.tear_sheet import OF_LEGS, TearSheet, by_sector, cumulative_ic
from dtml.markets.definition import Costs, Leg
from dtml.pages.ranking import sheet_values
from dtml.ranking.outcomes import overlap_of
from dtml.ranking.panel import Grid
from flows.dashboard.briefing import Row, caveats
from flows.dashboard.markets import require_market
from flows.markets.files import market_of_store

NIGHTS = 252  # of whose single stocks the page computes figures, at most
TRADED_LEG = "open_to_open"  # of the spread: a ranking made at a close cannot be traded at it


class RankedNights(NamedTuple):
    """The rankings of some nights: grids of their scores and outcomes, [nights stocks]."""

    sessions: pd.DatetimeIndex
    sectors: list[str | None]
    scores: Grid
    outcome: Grid


def market_ranking_page(conn: Connection, market: str) -> dict[str, Any]:
    """Return the page of the ranking that a market's nights show.

    `ranker` is None before the first ranking. The costs are those of the market's file, and unknown
    where it cannot be read. The page is kept, and computed again only after a night has ranked or
    scored stocks, or the costs have changed. Raises NotThereError for a market that the store
    lacks.
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
    return {**_pages[place][1], "caveats": caveats(conn, market)}


# The newest page of each market of a store, and the version of the rows that it is made of: the
# intervals of a page take a second of computation, and change only when a night scores rankings.
_pages: dict[tuple[str, str], tuple[tuple[Any, ...], dict[str, Any]]] = {}


def _page(
    conn: Connection, market: str, shown: Row, running: pd.DataFrame, costs: Costs | None
) -> dict[str, Any]:
    predictor, leg = shown["predictor"], shown["leg"]
    overlap = overlap_of(leg)
    of_nights = frame(conn, _scores(market, "night", leg=leg))
    rules = running.loc[running["is_rule"] == 1, "predictor"]
    daily = of_nights.pivot(index="target", columns="predictor", values="rank_ic")
    daily = daily.astype(float).dropna(axis=1, how="all")
    strongest = None
    if predictor in daily:
        of_rules = {str(rule): daily[rule].to_numpy() for rule in rules if rule in daily}
        strongest = beside_rules(daily[predictor].to_numpy(), of_rules, overlap=overlap)
    rule = None if strongest is None else strongest["other"]
    names = [name for name in (predictor, rule) if name is not None]
    log = read(conn, "night_log", market=market).dropna(subset="target")
    targets = log["target"].nlargest(NIGHTS)
    statements = {
        "nights": _scores(market, "night", leg=leg, predictor=names),
        "running": _scores(market, "running", leg=leg, predictor=names),
        "legs": _scores(market, "night", predictor=[predictor]),
        "stocks": selection(
            "ranking_history",
            columns="target, symbol, sector, score, place, realised_return, made_at",
            market=market,
            predictor=predictor,
            target=where.since(date.min if targets.empty else targets.min().date()),
            order="target, made_at, place",
        ),
    }
    tables = {name: frame(conn, statement) for name, statement in statements.items()}
    ranked = ranked_nights(tables["stocks"])
    by_leg = tables["legs"]
    spread_leg = TRADED_LEG if (by_leg["leg"] == TRADED_LEG).any() else leg
    spreads = by_leg[by_leg["leg"] == spread_leg].set_index("target")["decile_spread"]
    predicted = log.dropna(subset="predictions")
    left_out = predicted["gaps"].map(lambda gaps: len(gaps or []))
    counts = (predicted["predictions"].astype(int) + left_out).set_axis(predicted["target"])
    sheet = TearSheet.of(
        predictor=predictor,
        leg=leg,
        spread_leg=spread_leg,
        overlap=overlap,
        cumulative={name: _cumulative(tables, name) for name in names},
        sessions=ranked.sessions,
        scores=ranked.scores,
        outcome=ranked.outcome,
        gross=spreads.reindex(ranked.sessions).to_numpy(dtype=float),
        constituents=counts.reindex(ranked.sessions).fillna(0).to_numpy(dtype=int),
        costs=costs,
        legs=pd.DataFrame(
            [_of_leg(str(name), scores) for name, scores in by_leg.groupby("leg")],
            columns=OF_LEGS,
        ),
        sectors=by_sector(ranked.scores, ranked.outcome, ranked.sectors, overlap=overlap),
    )
    behind = {
        "nights": ("cumulative", "months", "distribution"),
        "legs": ("spread", "legs"),
        "stocks": ("groups", "autocorrelation", "replaced", "sectors", "coverage"),
    }
    sql = {
        chart: sql_text(conn, statements[name])
        for name, charts in behind.items()
        for chart in charts
    }
    values = sheet_values(sheet, unit="nights", strongest=strongest, sql=sql)
    return {"market": market, "ranker": predictor, "nights": NIGHTS, **values}


def _scores(market: str, span: str, **conditions: Any) -> Statement:
    return selection(
        "rank_score_log", market=market, span=span, order="predictor, leg, target", **conditions
    )


def _cumulative(tables: dict[str, pd.DataFrame], predictor: str) -> pd.DataFrame:
    """Return the rank IC of a predictor, added up over its nights, with the running interval."""
    scores, running = (
        tables[name][tables[name]["predictor"] == predictor] for name in ("nights", "running")
    )
    rank_ic = scores["rank_ic"].to_numpy(dtype=float)
    return cumulative_ic(pd.DatetimeIndex(scores["target"]), rank_ic, running)


def _of_leg(leg: str, daily: pd.DataFrame) -> dict[str, Any]:
    """Return the figures of a leg; the store has running ones for the market's own leg alone."""
    rank_ic = daily["rank_ic"].to_numpy(dtype=float)
    overlap = overlap_of(cast(Leg, leg))
    return {
        "leg": leg,
        "days": int(np.isfinite(rank_ic).sum()),
        **mean_of_days(rank_ic, overlap=overlap).named("rank_ic"),
        "t": rank_ic_t(rank_ic, overlap=overlap),
    }


def ranked_nights(rows: pd.DataFrame) -> RankedNights:
    """Return the rankings of stocks, from rows of the view ranking_history, as grids.

    Of a session that was ranked more than once, the newest ranking counts: its rows come last. The
    columns of the grids are in the order of the symbols, which `sectors` follows too; it is None
    for a stock without a sector.
    """
    newest = rows.drop_duplicates(["target", "symbol"], keep="last")
    scores = newest.pivot(index="target", columns="symbol", values="score").astype(float)
    outcome = newest.pivot(index="target", columns="symbol", values="realised_return")
    sectors = newest.drop_duplicates("symbol", keep="last").set_index("symbol")["sector"]
    named = sectors.reindex(scores.columns)
    return RankedNights(
        sessions=pd.DatetimeIndex(scores.index),
        sectors=[None if pd.isna(sector) else str(sector) for sector in named],
        scores=scores.to_numpy(),
        outcome=outcome.to_numpy(dtype=float),
    )
