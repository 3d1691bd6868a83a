"""The pages that are files too: a night, a backtest, a benchmark, a walk of rankings."""

from datetime import date

import pandas as pd
from sqlalchemy import Connection

from db.read import read, read_row
from db.rows import nights
from dtml.pages.backtest import backtest_page
from dtml.pages.benchmark import benchmark_page
from dtml.pages.figures import ci, counted, named
from dtml.pages.ranking import HEADLINE, ranking_page
from flows.dashboard.briefing import skill_of
from flows.dashboard.markets import NotThereError
from flows.markets.files import market_of_store
from flows.night_facts import night_facts
from flows.night_page import night_page
from flows.studies.tear_sheet import read_ranking, sql_behind

LISTED_IN = {  # the view that lists all finished studies of a kind
    "backtest": "backtest_summary",
    "benchmark": "benchmark_configuration",
    "ranking": "ranking_summary",
}


def study_page(conn: Connection, kind: str, name: str) -> str:
    """Return the page of a study. Its kind is backtest, benchmark or ranking.

    Raises NotThereError for a study that is not stored or not finished.
    """
    page_functions = {
        "backtest": _backtest_page,
        "benchmark": _benchmark_page,
        "ranking": _ranking_page,
    }
    make_page = page_functions[kind]
    page = make_page(conn, name)
    if page is None:
        raise NotThereError(
            f"the store has no finished {kind} {name!r}: /table/{LISTED_IN[kind]} lists those that "
            "are finished"
        )
    return page


def _backtest_page(conn: Connection, name: str) -> str | None:
    """Return the page of a backtest; None for one that is not stored or not finished."""
    backtest = read_row(conn, "backtest", id=name)
    if backtest is None or backtest["finished_at"] is None:
        return None
    # `rolling`, `curve` and `coverage` are computed from predictions and not stored: only the
    # report, which is written after the backtest, has them.
    return backtest_page(
        backtest=backtest,
        folds=read(conn, "backtest_fold", backtest_id=name),
        scores=read(conn, "backtest_score", backtest_id=name),
        tracks=read(conn, "backtest_return", backtest_id=name),
        performances=read(conn, "backtest_portfolio", backtest_id=name),
        served=True,
        rolling=pd.DataFrame(),
        curve=pd.DataFrame(),
        coverage=pd.DataFrame(),
    )


def _benchmark_page(conn: Connection, name: str) -> str | None:
    benchmark = read_row(conn, "benchmark", id=name)
    if benchmark is None:
        return None
    return benchmark_page(
        benchmark=benchmark,
        scores=read(conn, "benchmark_score", benchmark_id=name, order="protocol, predictor"),
        seed_scores=read(conn, "benchmark_seed", benchmark_id=name),
        served=True,
    )


def _ranking_page(conn: Connection, name: str) -> str | None:
    ranking = read_ranking(conn, name)
    if ranking is None:
        return None
    return ranking_page(
        ranking,
        served=True,
        sql=sql_behind(conn, name),
        nights=_of_nights(conn, ranking.row["market"]),
    )


def _of_nights(conn: Connection, market: str) -> str:
    """Say by which model the nights of a market rank, and its rank IC so far.

    Empty where no night has ranked stocks, or no ranking of the model has an outcome.
    """
    night = night_facts(conn, market, settled=True, status=nights.COMPLETE)
    skill = night and skill_of(night)
    if not skill or not skill.score:
        return ""
    other = "" if skill.ranker == HEADLINE else "another model, "
    rank_ic = ci(skill.score, "rank_ic")
    return (
        f"rank by {other}{named(skill.ranker)}: rank IC {rank_ic} over "
        f"{counted(skill.score['days'], 'night')}."
    )


def report_page(conn: Connection, market: str, as_of: date, level: float | None) -> str:
    """Return the page that a complete night writes to a file.

    Raises NotThereError for another night, and for a market whose definition cannot be read.
    """
    night = read_row(conn, "night_log", market=market, as_of=as_of, status=nights.COMPLETE)
    definition = market_of_store(conn.engine, market)
    if night is None or definition is None:
        raise NotThereError(
            f"there is no complete night of {market} as of {as_of}, or its market's file cannot be "
            "read here: /table/night_log lists all nights"
        )
    return night_page(conn, definition, night, level=level or None, served=True)
