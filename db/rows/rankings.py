"""Rankings of a day's stocks: walks through history, nights' rankers, their rankings and scores."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import query, read, read_row, read_rows, read_value
from db.save import save

# Columns of a night's ranking as it is shown.
SHOWN = "place, symbol, name, sector, score, probability, predictor, leg, realised_return"


def save_ranking(
    conn: Connection,
    ranking: Mapping[str, object],
    scores: pd.DataFrame,
    differences: pd.DataFrame,
    portfolios: pd.DataFrame,
) -> int:
    """Store a ranking with its scores, differences and portfolios; return how many rows were new.

    The frames have their tables' columns but ranking_id; `portfolios` may have none.
    """
    tables_of = {
        "ranking_score": scores,
        "ranking_difference": differences,
        "ranking_portfolio": portfolios,
    }
    return save(conn, "ranking", ranking) + sum(
        save(conn, table, rows, ranking_id=ranking["id"]) for table, rows in tables_of.items()
    )


def night_ranking(
    conn: Connection, market: str, target: date, columns: str = SHOWN
) -> pd.DataFrame:
    """Return the newest chosen ranking of a session, the best stock first; no row where not ranked.

    `columns` are some of those of the view ranking_history, `place` among them.
    """
    shown = _shown(conn, market, target)
    ranking = read(
        conn, "ranking_history", columns=columns, market=market, target=target, chosen=1, **shown
    )
    # In SQL, the order would keep SQLite from using the index of the ranker.
    return ranking.sort_values("place", ignore_index=True)


def champion(conn: Connection, market: str, target: date | None = None) -> dict[str, Any] | None:
    """Return the row of a market's champion in a session, by default the newest; None without."""
    since = where.between(None, target)
    return read_row(conn, "champion_log", market=market, since=since, order="-since")


def _shown(conn: Connection, market: str, target: date) -> dict[str, Any]:
    """Return the ranker_id, the predictor and the moment of the ranking of a session shown."""
    best = read_row(
        conn,
        "ranking_history",
        columns="ranker_id, predictor, made_at",
        market=market,
        target=target,
        chosen=1,
        place=1,
        order="-made_at",
    )
    return best or {"ranker_id": None, "predictor": None}


def chosen_predictor(conn: Connection, market: str, target: date) -> str | None:
    """Return the predictor whose ranking of a session the nights show; None without one."""
    predictor: str | None = _shown(conn, market, target)["predictor"]
    return predictor


def ranks_of_nights(conn: Connection, market: str, first: date, last: date) -> pd.DataFrame:
    """Return a market's rankings of first..last, sorted by as_of, ranker_id, predictor, place,
    symbol.

    Columns: as_of, ranker_id, predictor, symbol, score, place, probability, chosen.
    """
    return read(
        conn,
        "stock_rank",
        columns="as_of, ranker_id, predictor, symbol, score, place, probability, chosen",
        market=market,
        as_of=where.between(first, last),
        target=where.after(first),  # excludes no further row, but lets an index be used
        order="as_of, ranker_id, predictor, place, symbol",
    )


def ranker_of_night(conn: Connection, market: str, target: date, made_by: datetime) -> str | None:
    """Return the name of the rankers that ranked a session last, up to the moment `made_by`."""
    made_at = where.until(made_by)
    name: str | None = read_value(
        conn,
        "stock_rank",
        "ranker_id",
        market=market,
        target=target,
        made_at=made_at,
        order="-made_at",
    )
    return name


def last_rank_scores(conn: Connection, market: str, last: date = date.max) -> pd.DataFrame:
    """Return the last running scores up to `last`: rank_score_log, a row a predictor and return."""
    return read(conn, "rank_score_log", **_last_scored(conn, market, last))


def last_rank_rows(conn: Connection, market: str, last: date) -> list[dict[str, Any]]:
    """Return the rows of `last_rank_scores` without a frame."""
    return read_rows(conn, "rank_score_log", **_last_scored(conn, market, last))


def _last_scored(conn: Connection, market: str, last: date) -> dict[str, Any]:
    of_market: dict[str, Any] = {"market": market, "span": "running"}
    until = where.until(last)
    newest = read_value(
        conn, "rank_score_log", "target", target=until, order="-target", **of_market
    )
    return {**of_market, "target": newest, "order": "predictor"}


def lasting_skill(
    conn: Connection, market: str, leg: str, predictor: str, last: date
) -> date | None:
    """Return the first session since which the running rank IC's interval is above 0."""
    skill = query(conn, "lasting_skill", market=market, leg=leg, predictor=predictor, last=last)
    since: date | None = skill["since"].dt.date.iloc[0]
    return None if pd.isna(since) else since
