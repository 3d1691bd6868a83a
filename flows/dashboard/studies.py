"""The pages that are files too: a night, a backtest, a benchmark, a walk of rankings."""

from datetime import date
from functools import partial
from typing import Any

import pandas as pd
from sqlalchemy import Connection

from db.connection.frames import sql_text
from db.read import read, read_row, selection
from db.rows import nights
from dtml.pages.backtest import backtest_page
from dtml.pages.benchmark import benchmark_page
from dtml.pages.ranking import HEADLINE, ranking_page
from flows.dashboard.markets import NotThereError
from flows.markets.files import market_of_store
from flows.morning import skill_of
from flows.night_facts import night_facts
from flows.night_page import night_page
from flows.studies.tear_sheet import read_ranking

LISTED_IN = {  # the view that lists all finished studies of a kind
    "backtest": "backtest_summary",
    "benchmark": "benchmark_configuration",
    "ranking": "ranking_summary",
}


def study_page(conn: Connection, kind: str, name: str) -> str:
    """Return the page of a study: backtest, benchmark or ranking.

    Raises NotThereError for one not stored or finished.
    """
    row = read_row(conn, kind, id=name)
    of_study: dict[str, Any] = {f"{kind}_id": name}
    rows = partial(read, conn, **of_study)
    if kind == "backtest" and row and row["finished_at"]:
        # `rolling`, `curve` and `coverage` are computed from predictions and not stored: only the
        # report, which is written after the backtest, has them.
        return backtest_page(
            backtest=row,
            folds=rows("backtest_fold"),
            scores=rows("backtest_score"),
            tracks=rows("backtest_return"),
            performances=rows("backtest_portfolio"),
            rolling=pd.DataFrame(),
            curve=pd.DataFrame(),
            coverage=pd.DataFrame(),
            served=True,
        )
    if kind == "benchmark" and row:
        return benchmark_page(
            benchmark=row,
            scores=rows("benchmark_score", order="protocol, predictor"),
            seed_scores=rows("benchmark_seed"),
            served=True,
        )
    if kind == "ranking" and (ranking := read_ranking(conn, name)):
        market = ranking.row["market"]
        night = night_facts(conn, market, settled=True, status=nights.COMPLETE)
        # Other charts than these come from the sheet.
        of_model = partial(selection, "ranking_score", ranking_id=name, predictor=HEADLINE)
        sql = {
            chart: sql_text(conn, of_model(slice=part, order="leg, value"))
            for chart, part in {"legs": "all", "sectors": "sector"}.items()
        }
        return ranking_page(
            ranking,
            served=True,
            sql=sql,
            skill_of_nights=night and skill_of(night),
        )
    raise NotThereError(
        f"the store has no finished {kind} {name!r}: /table/{LISTED_IN[kind]} lists those that "
        "are finished"
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
    return night_page(conn, definition, night, level=level, served=True)
