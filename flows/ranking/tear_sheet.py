"""The tear sheet of a walk: computed when the walk is scored, and kept in a file beside its page.

The store has the figures of a walk over all its days, and not those of each day, so only the walk
itself can compute the sheet.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection, Engine

from db.connection.frames import sql_text
from db.engine import reading
from db.read import read, read_row, selection
from dtml.evaluation.ranking import both_known, decile_spreads, rank_ics
from dtml.evaluation.tear_sheet import (
    TearSheet,
    by_horizon,
    coverage,
    cumulative_ic,
    group_returns,
    halves_ic,
    monthly_ic,
    net_spread,
    running_means,
)
from dtml.markets import Market
from dtml.pages.ranking import HEADLINE, Ranking
from dtml.prices.sessions import sessions_a_year
from dtml.ranking.features import rule_scores
from dtml.ranking.outcomes import Leg, overlap_of
from dtml.ranking.panel import Grid
from dtml.ranking.walk import History
from flows.settings import page_of, write_page

TRADED_LEG: Leg = "open_to_open"  # of the spread: a ranking made at a close cannot be traded at it
LEG_COLUMNS = ["leg", "days", "rank_ic", "rank_ic_low", "rank_ic_high", "t"]
SECTOR_COLUMNS = ["sector", "days", "n", "rank_ic", "rank_ic_low", "rank_ic_high"]
TEXTS = ("predictor", "rule", "leg", "spread_leg")
# Columns that are no numbers: days, and names.
DATES = ("session", "first", "last")
NAMES = ("predictor", "leg", "sector")


@dataclass(frozen=True)
class WalkedDays:
    """The days of a walk: scores of a model and of a rule, and returns over each leg.

    `scores` has those of `predictor` and of `rule` by these names. Grids are [days stocks], NaN
    where a stock is not ranked or a return is not known.
    """

    sessions: pd.DatetimeIndex
    symbols: tuple[str, ...]
    predictor: str
    rule: str
    scores: Mapping[str, Grid]
    returns: Mapping[Leg, Grid]


def walked_days(
    history: History, days: slice, scores: Grid, rule: str, returns: Mapping[Leg, Grid]
) -> WalkedDays:
    """Return the scores of HEADLINE and of `rule`, and the returns, on the scored days of a walk.

    `scores` are HEADLINE's on all sessions of the history, `returns` those of the `days`.
    """
    there = history.there[days]
    of_rule = rule_scores(history.features, rule)
    return WalkedDays(
        sessions=history.panel.sessions[days],
        symbols=history.panel.symbols,
        predictor=HEADLINE,
        rule=rule,
        scores={
            HEADLINE: np.where(there, scores[days], np.nan),
            rule: np.where(there, of_rule[days], np.nan),
        },
        returns=returns,
    )


def walk_sheet(days: WalkedDays, leg: Leg, figures: pd.DataFrame, market: Market) -> TearSheet:
    """Return the sheet of a walk that ranks by the returns over `leg`.

    `figures` are the stored scores of the walk, which have those by leg and by sector already. The
    spread is over `TRADED_LEG`, or over `leg` where that return was not measured.
    """
    scores = days.scores[days.predictor]
    outcome = days.returns[leg]
    spread_leg = TRADED_LEG if TRADED_LEG in days.returns else leg
    overlap = overlap_of(leg)
    cumulative = []
    for name in (days.predictor, days.rule):
        daily = rank_ics(*both_known(days.scores[name], outcome))
        rows = cumulative_ic(days.sessions, daily, running_means(daily, overlap=overlap))
        cumulative.append(rows.assign(predictor=name))
    of_predictor = cumulative[0]  # the first of the two names above
    spread = decile_spreads(*both_known(scores, days.returns[spread_leg]))
    members = market.is_constituent(days.sessions, days.symbols).sum(axis=1)
    sectors = _scores_by(figures, days.predictor, "sector").rename(columns={"value": "sector"})
    return TearSheet(
        predictor=days.predictor,
        rule=days.rule,
        leg=leg,
        spread_leg=spread_leg,
        cumulative=pd.concat(cumulative, ignore_index=True),
        months=monthly_ic(of_predictor),
        halves=halves_ic(of_predictor, overlap=overlap),
        groups=group_returns(scores, outcome, overlap=overlap),
        spread=net_spread(
            scores, spread, days.sessions, market.trading.costs, sessions_a_year(market.calendar)
        ),
        horizons=by_horizon(scores),
        legs=_scores_by(figures, days.predictor, "all")[LEG_COLUMNS],
        sectors=sectors[SECTOR_COLUMNS],
        coverage=coverage(days.sessions, members, scores, outcome),
        overlap=overlap,
    )


def _scores_by(figures: pd.DataFrame, predictor: str, kind: str) -> pd.DataFrame:
    is_part = (figures["predictor"] == predictor) & (figures["slice"] == kind)
    rows: pd.DataFrame = figures[is_part].reset_index(drop=True)
    return rows


def sheet_file(row: Mapping[str, Any]) -> Path:
    """Return the file of the sheet of a stored ranking, from its row: beside its page."""
    return page_of("ranking", row).with_suffix(".json")


def write_sheet(row: Mapping[str, Any], sheet: TearSheet) -> None:
    """Write the sheet of a ranking, whole or not at all."""
    texts = {name: getattr(sheet, name) for name in TEXTS}
    tables = {name: _table_as_json(table) for name, table in sheet.tables.items()}
    write_page(sheet_file(row), json.dumps(texts | {"tables": tables}))


def read_sheet(row: Mapping[str, Any]) -> TearSheet | None:
    """Return the sheet of a stored ranking; None where its file is missing or damaged.

    The file is missing on a machine other than the walk's, and for walks of earlier versions. One
    of another version counts as damaged.
    """
    file = sheet_file(row)
    if file.name != f"ranking-{row['id']}.json":  # the store may name a path outside the folder
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        stored_tables = content.pop("tables")
        tables: dict[str, Any] = {
            name: _table_from_json(each) for name, each in stored_tables.items()
        }
        return TearSheet(**content, **tables, overlap=overlap_of(content["leg"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _table_as_json(table: pd.DataFrame) -> dict[str, list[Any]]:
    """Return a table for JSON: a missing number is null, a date its day."""
    rows = [list(map(_json_value, row)) for row in table.itertuples(index=False)]
    return {"columns": list(table), "rows": rows}


def _json_value(value: Any) -> Any:
    if pd.isna(value):
        return None
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d}"
    return value.item() if isinstance(value, np.generic) else value


def _table_from_json(parts: Mapping[str, list[Any]]) -> pd.DataFrame:
    """Return a table from its columns and rows in JSON; missing numbers become NaN."""
    table = pd.DataFrame(parts["rows"], columns=parts["columns"])
    for name in table:
        if name in DATES:
            table[name] = pd.to_datetime(table[name])
        elif name not in NAMES:
            table[name] = pd.to_numeric(table[name])
    return table


def stored_ranking(engine: Engine, ranking_id: str) -> Ranking | None:
    """Return a ranking from the store; None where it has none of this id."""
    with reading(engine) as conn:
        return read_ranking(conn, ranking_id)


def read_ranking(conn: Connection, ranking_id: str) -> Ranking | None:
    """Return a ranking from the store, with its tear sheet if the file is on this machine.

    None where the store has no ranking of this id.
    """
    row = read_row(conn, "ranking", id=ranking_id)
    if row is None:
        return None
    return Ranking(
        row=row,
        scores=read(conn, "ranking_score", columns="-ranking_id", ranking_id=ranking_id),
        differences=read(conn, "ranking_difference", columns="-ranking_id", ranking_id=ranking_id),
        portfolios=read(conn, "ranking_portfolio", columns="-ranking_id", ranking_id=ranking_id),
        sheet=read_sheet(row),
    )


def sql_behind(conn: Connection, ranking_id: str) -> dict[str, str]:
    """Return the SQL behind the charts `legs` and `sectors` of a ranking's page.

    The rows of its other charts are in no table, but in the file of the tear sheet.
    """
    parts = {"legs": "all", "sectors": "sector"}
    return {
        chart: sql_text(
            conn,
            selection(
                "ranking_score",
                ranking_id=ranking_id,
                predictor=HEADLINE,
                slice=part,
                order="leg, value",
            ),
        )
        for chart, part in parts.items()
    }
