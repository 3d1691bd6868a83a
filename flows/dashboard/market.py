"""The page of one market: a night's ranking, its directions, and how good they have been.

A page is a mapping, from which the template of its name is rendered. Missing values (NaN, None) are
rendered as "-".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import where
from db.read import read, read_row, read_value
from db.rows import (
    nights,
    paper_account,
)
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES
from dtml.errors import UsageError
from dtml.markets.definition import LEVELS
from dtml.pages.backtest import predictor_charts
from dtml.pages.charts import Chart, Panel, over_sessions, probability_axis
from dtml.pages.figures import records
from dtml.pages.night import ranking_words
from flows.dashboard.briefing import (
    Shown,
    account_line,
    changes,
    in_order_of,
    order_values,
    orders_of_night,
    ranking_of_night,
    skill_line,
    state_of_night,
    with_directions,
)
from flows.dashboard.markets import (
    FIGURES,
    STOCKS,
    NotThereError,
    after_costs,
    ranking_of_day,
    require_market,
    skill_of,
)
from flows.dashboard.running import REFRESH_S, other_work
from flows.night_facts import NightFacts, night_facts
from flows.service.timeliness import Timeliness

NIGHTS = 30  # in the table of a market, at most
STUDIES = 10  # of each kind, in the lists of a market, at most
SCORED = 250  # nights of a chart of running scores, at most
SORTS = (
    "symbol",
    "name",
    "sector",
    "probability",
    "calibrated",
    "probability_std",
    "rising_share",
    "direction",
    "realised_return",
    "correct",
)
ASCENDING_FIRST = ("symbol", "name", "sector", "direction")  # at the first click on the heading
DIRECTION_COLUMNS = [  # of the frame of `night_directions`
    "symbol",
    "name",
    "sector",
    "probability",
    "lowest",
    "highest",
    "rising_share",
    "calibrated",
    "low",
    "high",
    "probability_std",
    "direction",
    "realised_return",
    "correct",
    *NAIVE_RULES,
    "run_id",
    "made_at",
    "receipt",
]


@dataclass(frozen=True)
class Sort:
    """Hold the column by which a table is sorted, and the direction.

    In an address it is the column, after a minus for descending: `-probability_std`.
    """

    column: str
    is_descending: bool

    @classmethod
    def read(cls, text: str) -> "Sort":
        """Parse the order in an address; raise UsageError, which lists the columns, for others."""
        column = text.removeprefix("-")
        if column not in SORTS:
            raise UsageError(
                f"sort={text!r} is not one of {', '.join(SORTS)}, with or without a minus before "
                "it: choose one of these"
            )
        return cls(column=column, is_descending=text.startswith("-"))

    def after(self, column: str) -> str:
        """Return the order to which the heading of a column links.

        For the current column it is the reverse; other columns of numbers begin with the largest.
        """
        if column == self.column:
            is_descending = not self.is_descending
        else:
            is_descending = column not in ASCENDING_FIRST
        return f"-{column}" if is_descending else column

    def in_words(self, column: str) -> str:
        """Return the value of the heading's attribute aria-sort; "" for columns not sorted by."""
        if column != self.column:
            return ""
        return "descending" if self.is_descending else "ascending"

    def rows(self, directions: pd.DataFrame) -> pd.DataFrame:
        """Return the directions in this order, missing values last, equal ones by symbol."""
        by_symbol = directions.sort_values("symbol", kind="stable")
        return by_symbol.sort_values(
            self.column,
            ascending=not self.is_descending,
            kind="stable",
            na_position="last",
        )


@dataclass(frozen=True)
class Asked:
    """Hold what the address of a market's page asks for.

    `as_of` is the last session that the night saw, None for the newest night. `level` is that of
    `level_of`, `sort` that of `Sort`. The page is loaded again after `every` seconds; 0 for never.
    """

    as_of: date | None
    level: float | None
    sort: str
    every: int


def market_page(
    conn: Connection,
    market: str,
    asked: Asked,
    now: datetime,
    times: Mapping[str, Timeliness],
) -> dict[str, Any]:
    """Return the page of a night: its ranking, its directions, its gaps, and the scores up to it.

    `times` maps a market to how late it is, which is shown only on the page of the newest night.
    `before` and `after` are the `as_of` of the nights next to this one, None where there is none.
    The page of a market without nights has its models instead. Raises UsageError for an unknown
    level or order, and NotThereError for an unknown market or night.
    """
    order = Sort.read(asked.sort)
    require_level(asked.level)
    require_market(conn, market)
    night = night_of(conn, market, asked.as_of)
    level = level_of(night, asked.level)
    common = {
        "market": market,
        "night": night and night.row,
        "level": level,
        "levels": LEVELS,
        "sort": order,
        "every": asked.every,
        "choices": REFRESH_S,
        "works": [work for work in other_work(conn, now) if work.market == market],
    }
    if night is None:
        models = read(
            conn,
            "run_log",
            columns="run_id, kind, model, train_last",
            market=market,
            order="-created_at, run_id",
            limit=NIGHTS,
        )
        return {**common, "models": records(models)}

    # A night has no target where the calendar ended before the session that it predicts.
    common["target"] = str(night.row["target"] or f"the session after {night.as_of}")
    run = read_row(conn, "run_log", run_id=night.row["run_id"])
    previous_as_of, next_as_of = nights.neighbours(conn, market, night.as_of)
    rejected_bars = read(
        conn,
        "rejected",
        market=market,
        session=night.as_of,
        order="symbol, reason",
        limit=STOCKS,
    )
    directions = night_directions(night, level)
    is_newest = next_as_of is None
    rule_directions: dict[str, Any] = {}
    if not directions.empty:
        rule_directions = {rule: directions[rule].iloc[0] for rule in NAIVE_RULES}
    counts = {
        direction: int((directions["direction"] == direction).sum())
        for direction in ("rise", "fall", "none")
    }
    coverage = None
    if level is not None:
        counted = read(
            conn,
            "coverage",
            columns="n, covered, decided, decided_correct",
            market=market,
            kind="nightly",
            level=level,
            target=where.until(night.target),
        )
        coverage = counted.sum().to_dict()
    probabilities = directions[["probability", "lowest", "highest"]].to_numpy().ravel()
    # A session has a row for each predictor and protocol, at most.
    predictors = 1 + len(NAIVE_RULES)
    protocols = 2
    scored = read(
        conn,
        "daily_score",
        market=market,
        target=where.until(night.target),
        order="-target, protocol, predictor",
        limit=SCORED * protocols * predictors,
    )
    of_all_days = scored[scored["protocol"] == "all"]
    by_session = of_all_days.rename(columns={"target": "session"})  # as `predictor_charts` asks
    running_figures = [f"running_{figure}" for figure in FIGURES]
    return {
        **common,
        "state": state_of_night(
            conn, market, night.row, now, times.get(market) if is_newest else None
        ),
        **_ranking_of_night(night, directions, asked.level, is_newest=is_newest),
        "directions": records(order.rows(directions)),
        "counts": counts,
        "rule_directions": rule_directions,
        "axis": probability_axis(probabilities),
        "coverage": coverage,
        "stocks": [row["symbol"] for row in records(directions)],
        "scores": records(_rows_of_last_session(scored)),
        "skill": skill_of(_rows_of_last_session(of_all_days)),
        "chart": predictor_charts(by_session, *running_figures),
        "nights": night_rows(conn, market, night.as_of, of_all_days),
        "backtests": records(
            read(
                conn,
                "backtest",
                market=market,
                finished_at=where.stored,
                order="-finished_at",
                limit=STUDIES,
            )
        ),
        "walks": records(
            read(conn, "ranking_summary", market=market, order="-read_at", limit=STUDIES)
        ),
        "before": previous_as_of,
        "after": next_as_of,
        "run": run,
        "gaps": night.row["gaps"] or [],
        "rejected": records(rejected_bars),
    }


def _ranking_of_night(
    night: NightFacts,
    directions: pd.DataFrame,
    level: float | None,
    *,
    is_newest: bool,
) -> dict[str, Any]:
    """Return a night's ranking beside its directions, the orders, and how good rankings have been.

    The ranking shown is that of `ranked_night`, for the session `ranking_target`: the night itself
    if it is complete, else the last complete one before it. If there is none, `ranked_night` and
    `account` are None, `ranking` is empty, and the other keys are missing.

    `ranking` has a row for each stock, with its direction and its weight in `orders`, NaN for a
    stock that is not to be held. `disagreeing` has the rows whose direction contradicts the place.
    `rank_scores` has the running scores of all predictors, `ranked` those of the one that ranks
    (`ranking_of_day`). `directions` are those of the night, `level` is the requested one, and
    `is_newest` says that no night of the market is newer.
    """
    ranked_night = night if night.row["status"] in nights.COMPLETE else night.before
    if ranked_night is None:
        return {"ranking": [], "ranked_night": None, "account": None}
    if ranked_night is not night:
        directions = night_directions(ranked_night, level_of(ranked_night, level))
    shown = Shown(night.conn)
    ranking = with_directions(ranking_of_night(ranked_night, shown), directions)
    orders = in_order_of(ranking, orders_of_night(ranked_night))
    weights = orders.set_index("symbol")["weight"]
    ranking = ranking.assign(weight=ranking["symbol"].map(weights[weights > 0]).astype(float))
    rank_scores = ranked_night.rank_scores
    best_first = rank_scores.sort_values(["is_rule", "rank_ic"], ascending=[True, False])
    # After the newest night there may be alerts about a night that never began.
    last_alerts = None if is_newest else night.as_of
    words = line = None
    if len(ranking):
        words = ranking_words(ranking, rank_scores, ranked_night.champion)
        line = skill_line(ranked_night, *ranking[["leg", "predictor"]].iloc[0])
    paper = paper_account.paper_returns(night.conn, night.market, ranked_night.as_of)
    return {
        "ranked_night": ranked_night.row,
        "ranking_target": ranked_night.target,
        "ranking": records(ranking),
        "ranking_words": words,
        "disagreeing": records(ranking[ranking["disagrees"]]),
        "rank_scores": records(best_first),
        "ranked": ranking_of_day(ranked_night, shown),
        "skill_line": line,
        **order_values(orders),
        "costs": after_costs(night.conn, night.market, paper),
        "paper_days": paper["session"].nunique(),
        "account_line": account_line(paper),
        "account": account_chart(paper),
        "changes": changes(ranked_night, ranking, last_alerts),
    }


def account_chart(returns: pd.DataFrame) -> Chart | None:
    """Return a chart of the paper account's equity, from the rows of `paper_account.paper_returns`.

    None where the account has fewer than two sessions. The chart also has the account without
    costs, equal parts of all stocks, and the index.
    """
    equities: dict[str, pd.Series[Any]] = {}
    for portfolio, rows in returns.groupby("portfolio"):
        equities[str(portfolio)] = rows.set_index("session")["equity"]
    panel = Panel(title="value of 1", lines=equities, base=1.0)
    return over_sessions("Paper account", [panel], dashed=["account, no costs"])


def require_level(level: float | None) -> None:
    """Raise UsageError, which lists the levels, for a level at which no model has a band.

    None stands for the model's default level. 0 stands for no band: a rise above one half, else a
    fall.
    """
    if level not in (None, 0, *LEVELS):
        listed = ", ".join(str(known_level) for known_level in LEVELS)
        raise UsageError(
            f"level {level} is not one of {listed}: choose one of these, or level=any for "
            "directions without a band"
        )


def level_of(night: NightFacts | None, level: float | None) -> float | None:
    """Return the level at which a night's directions are shown; None for directions without a band.

    `level` is the requested one: None for the default level of the night's model, 0 for directions
    without a band.
    """
    if level is None and night is not None:
        run_id = night.row["run_id"]
        level = read_value(night.conn, "band_direction", "level", run_id=run_id, is_default=1)
    return level or None  # 0 becomes None


def night_of(conn: Connection, market: str, as_of: date | None) -> NightFacts | None:
    """Return the night whose last session was `as_of`, by default the newest, scored by its target.

    None for a market without nights, if `as_of` is None. Raises NotThereError if there is no night
    of the day `as_of`; it names the nearest nights, if there are any.
    """
    night = night_facts(conn, market, settled=True, as_of=where.given(as_of))
    if night is not None or as_of is None:
        return night

    nearest = [str(day) for day in nights.neighbours(conn, market, as_of) if day is not None]
    if not nearest:
        raise NotThereError(
            f"there is no night of {market} as of {as_of}: the market has no night yet; "
            f"`dtml nightly {market}` runs one"
        )
    raise NotThereError(
        f"there is no night of {market} as of {as_of}: choose the nearest, {' or '.join(nearest)}"
    )


def night_directions(night: NightFacts, level: float | None) -> pd.DataFrame:
    """Return the directions of a night, a row for each stock; no rows for a night without a model.

    The columns are DIRECTION_COLUMNS. Most are those of the view prediction_history. name and
    sector are missing for stocks that the newest night did not predict. lowest, highest and
    rising_share are over the seeds. `low` and `high` are the ends of the abstention band at
    `level`.

    Without a level, there is no band: `low` and `high` are NaN, and `direction` is a rise above one
    half. At a level, `direction` is 'none' in the band, and missing if the model has no band.
    `correct` is 1 where the direction was that of the return, else 0; it is missing where there is
    no rise or fall, and where there is no outcome.
    """
    conn, market = night.conn, night.market
    of_night: dict[str, Any] = {"run_id": night.row["run_id"], "target": night.target}
    of_night["market"] = market
    directions = read(conn, "prediction_history", order="symbol", limit=STOCKS, **of_night)
    names = read(conn, "latest_prediction", columns="symbol, name, sector", market=market)
    seeds = read(conn, "disagreement", columns="symbol, lowest, highest, rising_share", **of_night)
    directions = directions.merge(names, on="symbol", how="left")
    directions = directions.merge(seeds, on="symbol", how="left")
    if level is None:
        directions = directions.assign(low=np.nan, high=np.nan)
    else:
        bands = read(
            conn,
            "band_direction",
            columns="symbol, low, high, direction",
            level=level,
            **of_night,
        )
        banded = directions.drop(columns="direction").merge(bands, on="symbol", how="left")
        # Without meaning in the rows that `where` drops below.
        is_correct = (banded["direction"] == "rise") == (banded["realised_return"] > 0)
        has_outcome = banded["realised_return"].notna()
        is_decided = banded["direction"].isin(["rise", "fall"]) & has_outcome
        directions = banded.assign(correct=is_correct.astype("Int64").where(is_decided))
    return directions.reindex(columns=DIRECTION_COLUMNS)


def night_rows(
    conn: Connection, market: str, last: date, scores: pd.DataFrame
) -> list[dict[str, Any]]:
    """Return the last NIGHTS nights up to a day, newest first, each with its ACC and MCC.

    These figures are taken from `scores`, and are NaN for a night that has no row there, such as
    one whose outcomes are not known yet.
    """
    newest_nights = read(
        conn,
        "night_log",
        market=market,
        as_of=where.until(last),
        order="-as_of",
        limit=NIGHTS,
    )
    model_scores = scores.loc[scores["predictor"] == MODEL, ["target", "acc", "mcc"]]
    return records(newest_nights.merge(model_scores, on="target", how="left"))


def _rows_of_last_session(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last scored session, the model before the rules."""
    last: pd.DataFrame = scores[scores["target"] == scores["target"].max()]
    marked = last.assign(rule=last["predictor"] != MODEL)  # False sorts before True
    return marked.sort_values(["protocol", "rule", "predictor"])
