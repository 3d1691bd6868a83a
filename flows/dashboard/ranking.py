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
from dtml.evaluation.tear_sheet import (
    TearSheet,
    by_horizon,
    by_sector,
    coverage,
    cumulative_ic,
    group_returns,
    halves_ic,
    monthly_ic,
    net_spread,
)
from dtml.markets.definition import Costs, Leg
from dtml.pages.ranking import sheet_values
from dtml.ranking.outcomes import overlap_of
from dtml.ranking.panel import Grid
from flows.dashboard.briefing import caveats
from flows.dashboard.markets import Row, require_market
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
    kept = _pages.get(place)  # the version and the page
    if kept is None or kept[0] != version:
        kept = (version, _page(conn, market, shown, running, costs))
        _pages[place] = kept
    return {**kept[1], "caveats": caveats(conn, market)}


# The newest page of each market of a store, and the version of the rows that it is made of: the
# intervals of a page take a second of computation, and change only when a night scores rankings.
_pages: dict[tuple[str, str], tuple[tuple[Any, ...], dict[str, Any]]] = {}


def _page(
    conn: Connection, market: str, shown: Row, running: pd.DataFrame, costs: Costs | None
) -> dict[str, Any]:
    predictor = shown["predictor"]
    leg = shown["leg"]
    rules = running.loc[running["is_rule"] == 1, "predictor"].to_list()
    strongest = _strongest_rule(conn, market, predictor, rules, leg)
    rule = None if strongest is None else strongest["other"]
    names = [name for name in (predictor, rule) if name is not None]
    log = read(conn, "night_log", market=market).dropna(subset="target")
    targets = log["target"].nlargest(NIGHTS)
    first = date.min if targets.empty else targets.min().date()
    statements = {
        "nights": _scores(market, names, "night", leg=leg),
        "running": _scores(market, names, "running", leg=leg),
        "legs": _scores(market, [predictor], "night"),
        "stocks": selection(
            "ranking_history",
            columns="target, symbol, sector, score, place, realised_return, made_at",
            market=market,
            predictor=predictor,
            target=where.since(first),
            order="target, made_at, place",
        ),
    }
    tables = {name: frame(conn, statement) for name, statement in statements.items()}
    ranked = ranked_nights(tables["stocks"])
    predicted = log.dropna(subset="predictions")
    left_out = predicted["gaps"].map(lambda gaps: len(gaps or []))
    counts = (predicted["predictions"].astype(int) + left_out).set_axis(predicted["target"])
    sheet = TearSheet(
        predictor=predictor,
        rule=rule,
        leg=leg,
        overlap=overlap_of(cast(Leg, leg)),
        **_figures_of_days(tables, names, predictor, leg),
        **_figures_of_stocks(ranked, tables["legs"], leg, costs),
        legs=_by_leg(tables["legs"]),
        coverage=coverage(
            ranked.sessions,
            counts.reindex(ranked.sessions).fillna(0).to_numpy(dtype=int),
            ranked.scores,
            ranked.outcome,
        ),
    )
    behind = {
        "cumulative": "nights",
        "months": "nights",
        "distribution": "nights",
        "groups": "stocks",
        "spread": "legs",
        "autocorrelation": "stocks",
        "replaced": "stocks",
        "legs": "legs",
        "sectors": "stocks",
        "coverage": "stocks",
    }
    return {
        "market": market,
        "ranker": predictor,
        "nights": NIGHTS,
        **sheet_values(
            sheet,
            unit="nights",
            strongest=strongest,
            sql={chart: sql_text(conn, statements[name]) for chart, name in behind.items()},
        ),
    }


def _strongest_rule(
    conn: Connection, market: str, predictor: str, rules: list[str], leg: str
) -> dict[str, Any] | None:
    """Return the rule that is strongest beside a ranker (`dtml.evaluation.ranking.beside_rules`).

    None before the first score of both.
    """
    scores = _scores(market, [predictor, *rules], "night", leg=leg)
    daily = frame(conn, scores).pivot(index="target", columns="predictor", values="rank_ic")
    daily = daily.astype(float).dropna(axis=1, how="all")
    if predictor not in daily:
        return None
    of_rules = {str(rule): daily[rule].to_numpy() for rule in rules if rule in daily}
    overlap = overlap_of(cast(Leg, leg))
    return beside_rules(daily[predictor].to_numpy(), of_rules, overlap=overlap)


def _scores(market: str, predictors: list[str], span: str, **leg: Any) -> Statement:
    """Return the statement of the scores of some predictors, of all returns without a `leg`."""
    return selection(
        "rank_score_log",
        market=market,
        predictor=predictors,
        span=span,
        order="predictor, leg, target",
        **leg,
    )


def _by_leg(scores: pd.DataFrame) -> pd.DataFrame:
    rows = []
    # The store has running figures for the market's own leg alone.
    for leg, daily in scores.groupby("leg"):
        rank_ic = daily["rank_ic"].to_numpy(dtype=float)
        overlap = overlap_of(cast(Leg, leg))
        rows.append(
            {
                "leg": leg,
                "days": int(np.isfinite(rank_ic).sum()),
                **mean_of_days(rank_ic, overlap=overlap).named("rank_ic"),
                "t": rank_ic_t(rank_ic, overlap=overlap),
            }
        )
    columns = ["leg", "days", "rank_ic", "rank_ic_low", "rank_ic_high", "t"]
    return pd.DataFrame(rows, columns=columns)


def _figures_of_days(
    tables: dict[str, pd.DataFrame], names: list[str], predictor: str, leg: str
) -> dict[str, Any]:
    of_names = []
    for name in names:
        scores = tables["nights"][tables["nights"]["predictor"] == name]
        running = tables["running"][tables["running"]["predictor"] == name]
        rows = cumulative_ic(
            pd.DatetimeIndex(scores["target"]), scores["rank_ic"].to_numpy(dtype=float), running
        )
        of_names.append(rows.assign(predictor=name))
    cumulative = pd.concat(of_names, ignore_index=True)
    shown = cumulative[cumulative["predictor"] == predictor]
    return {
        "cumulative": cumulative,
        "months": monthly_ic(shown),
        "halves": halves_ic(shown, overlap=overlap_of(cast(Leg, leg))),
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


def _figures_of_stocks(
    ranked: RankedNights, scores_by_leg: pd.DataFrame, leg: str, costs: Costs | None
) -> dict[str, Any]:
    """Return the tables of a sheet that are computed from the ranking of each stock.

    `scores_by_leg` are the ranker's scores of each night by leg. The spread is that of TRADED_LEG,
    if a night was scored on it, and else that of `leg`; `spread_leg` says which.
    """
    spread_leg = TRADED_LEG if (scores_by_leg["leg"] == TRADED_LEG).any() else leg
    spreads = scores_by_leg[scores_by_leg["leg"] == spread_leg].set_index("target")
    overlap = overlap_of(cast(Leg, leg))
    gross = spreads["decile_spread"].reindex(ranked.sessions).to_numpy(dtype=float)
    return {
        "spread_leg": spread_leg,
        "groups": group_returns(ranked.scores, ranked.outcome, overlap=overlap),
        "spread": net_spread(ranked.scores, gross, ranked.sessions, costs),
        "horizons": by_horizon(ranked.scores),
        "sectors": by_sector(ranked.scores, ranked.outcome, ranked.sectors, overlap=overlap),
    }
