"""The page of one market: a night's ranking, its directions, and how good they have been.

A page is a mapping, from which the template of its name is rendered. Missing values (NaN, None) are
rendered as "-".
"""

from collections.abc import Mapping
from datetime import date, datetime
from functools import reduce
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from sqlalchemy import Connection

from db import where
from db.read import read, read_row, read_value
from db.rows import nights, paper_account
from dtml.baselines.naive_rules import MODEL, NAIVE_RULES, beside_rules
from dtml.evaluation.family import beside_strongest_rule
from dtml.markets.definition import LEVELS
from dtml.pages.backtest import predictor_charts
from dtml.pages.charts import Chart, Panel, over_sessions, probability_axis
from dtml.pages.figures import records
from dtml.pages.night import ranking_words
from flows.dashboard.briefing import (
    account_line,
    after_costs,
    briefing,
    contradicts,
    state_of_night,
)
from flows.dashboard.markets import STOCKS, NotThereError, require_market
from flows.dashboard.running import LONGEST_REFRESH_S, REFRESH_S, other_work
from flows.markets.files import market_of_store
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
OptionalDay = Annotated[date | None, BeforeValidator(lambda text: text or None)]


def _known_level(level: float | None) -> float | None:
    if level not in (None, 0, *LEVELS):
        levels = ", ".join(map(str, LEVELS))
        raise ValueError(
            f"it is not one of {levels}: choose one of these, or level=any for directions without "
            "a band"
        )
    return level


# A form sends an empty text, or "any" for directions without a band, which is 0 here.
Level = Annotated[
    float | None,
    BeforeValidator(lambda text: {"": None, "any": 0.0}.get(text, text)),
    AfterValidator(_known_level),
]
Every = Annotated[int, Field(ge=0, le=LONGEST_REFRESH_S)]


class Asked(BaseModel):
    """Hold what the address of a market's page asks for.

    `as_of` is the last session that the night saw, None for the newest night. `level` is that of
    `level_of`, `sort` a column of the directions, after a minus for descending. The page is loaded
    again after `every` seconds; 0 for never.
    """

    as_of: OptionalDay = None
    level: Level = None
    sort: Annotated[str, Field(pattern=f"^-?({'|'.join(SORTS)})$")] = "-probability"
    every: Every = 0


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
    The page of a market without nights has its models instead. Raises
    NotThereError for an unknown market or night.
    """
    require_market(conn, market)
    night = night_of(conn, market, asked.as_of)
    level = level_of(night, asked.level)
    common = {
        "market": market,
        "night": night and night.row,
        "level": level,
        "levels": LEVELS,
        "sort": asked.sort,
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
    before, after = nights.neighbours(conn, market, night.as_of)
    directions = night_directions(night, level)
    scored = read(
        conn,
        "daily_score",
        market=market,
        target=where.until(night.target),
        order="-target, protocol, predictor",
        limit=SCORED * 2 * (1 + len(NAIVE_RULES)),  # a row for each protocol and predictor
    )
    is_model = scored["predictor"] == MODEL
    newest = scored[scored["target"] == scored["target"].max()]
    of_all_days = scored[scored["protocol"] == "all"]
    acc_mcc = scored.loc[is_model & (scored["protocol"] == "all"), ["target", "acc", "mcc"]]
    newest_nights = read(
        conn,
        "night_log",
        market=market,
        as_of=where.until(night.as_of),
        order="-as_of",
        limit=NIGHTS,
    )
    seeds = directions[["probability", "lowest", "highest"]].to_numpy().ravel()
    by_symbol = directions.sort_values("symbol", kind="stable")
    sorted_rows = by_symbol.sort_values(
        asked.sort.removeprefix("-"), ascending=asked.sort[0] != "-", kind="stable"
    )
    return {
        **common,
        # A night has no target where the calendar ended before the session that it predicts.
        "target": str(night.row["target"] or f"the session after {night.as_of}"),
        "state": state_of_night(conn, market, night.row, now, None if after else times.get(market)),
        **_ranking_of_night(night, directions, asked.level, is_newest=after is None),
        "directions": records(sorted_rows),
        "counts": directions["direction"].value_counts().to_dict(),
        "rule_directions": next(iter(records(directions[list(NAIVE_RULES)])), {}),
        "axis": probability_axis(seeds),
        "coverage": _coverage(night, level),
        "stocks": by_symbol["symbol"].tolist(),
        "scores": records(
            newest.sort_values(
                ["protocol", "predictor"],
                key=lambda column: column.where(column != MODEL, ""),  # before the rules
            )
        ),
        "skill_of_directions": _skill(newest[newest["protocol"] == "all"]),
        "chart": predictor_charts(
            of_all_days.rename(columns={"target": "session"}), "running_acc", "running_mcc"
        ),
        "nights": records(newest_nights.merge(acc_mcc, on="target", how="left")),
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
        "before": before,
        "after": after,
        "run": read_row(conn, "run_log", run_id=night.row["run_id"]),
        "has_report": night.row["status"] in nights.COMPLETE
        and market_of_store(conn.engine, market) is not None,
        "gaps": night.row["gaps"] or [],
        "rejected": records(
            read(
                conn,
                "rejected",
                market=market,
                session=night.as_of,
                order="symbol, reason",
                limit=STOCKS,
            )
        ),
    }


def _ranking_of_night(
    night: NightFacts, directions: pd.DataFrame, level: float | None, *, is_newest: bool
) -> dict[str, Any]:
    """Return a night's ranking beside its directions, the orders, and how good rankings have been.

    The ranking shown is that of `ranked_night`: the night itself if it is complete, else the last
    complete one before it. If there is none, `ranked_night` and `account` are None, `ranking` is
    empty, and the other keys are missing. `directions` are those of the night, `level` is the
    requested one.
    """
    shown = night if night.row["status"] in nights.COMPLETE else night.before
    if shown is None:
        return {"ranking": [], "ranked_night": None, "account": None}
    if shown is not night:
        directions = night_directions(shown, level_of(shown, level))
    # After the newest night there may be alerts about a night that never began.
    found = briefing(shown, None if is_newest else night.as_of)
    ranking = found["ranking"]
    weights = {row["symbol"]: row["weight"] for row in found["orders"] if row["weight"] > 0}
    rows = records(
        ranking.merge(directions[["symbol", "direction"]], on="symbol", how="left").assign(
            weight=ranking["symbol"].map(weights).astype(float)
        )
    )
    paper = paper_account.paper_returns(night.conn, night.market, shown.as_of)
    return {
        **found,
        "ranked_night": shown.row,
        "ranking_target": shown.target,
        "ranking": rows,
        "ranking_words": ranking_words(ranking, shown.rank_scores, shown.champion)
        if rows
        else None,
        "disagreeing": [
            row for row in rows if contradicts(row["place"], len(rows), row["direction"])
        ],
        "rank_scores": records(
            shown.rank_scores.sort_values(["is_rule", "rank_ic"], ascending=[True, False])
        ),
        "costs": after_costs(night.conn, night.market, paper),
        "account_line": account_line(paper),
        "account": account_chart(paper),
    }


def account_chart(returns: pd.DataFrame) -> Chart | None:
    """Return a chart of the paper account's equity, from the rows of `paper_account.paper_returns`.

    None where the account has fewer than two sessions. The chart also has the account without
    costs, equal parts of all stocks, and the index.
    """
    equities = {
        str(portfolio): rows.set_index("session")["equity"]
        for portfolio, rows in returns.groupby("portfolio")
    }
    panel = Panel(title="value of 1", lines=equities, base=1.0)
    return over_sessions("Paper account", [panel], dashed=["account, no costs"])


def _coverage(night: NightFacts, level: float | None) -> dict[str, Any] | None:
    """Return how many directions up to a night were covered at a level, decided, and correct."""
    if level is None:
        return None
    counted = read(
        night.conn,
        "coverage",
        columns="n, covered, decided, decided_correct",
        market=night.market,
        kind="nightly",
        level=level,
        target=where.until(night.target),
    )
    return {str(name): number for name, number in counted.sum().items()}


def _skill(scores: pd.DataFrame) -> dict[str, Any] | None:
    """Return the model's row of one session's scores, beside the strongest rule by MCC.

    `rule` is its name, and `verb` compares the model with it; both are None where no rule was
    scored on as many nights.
    """
    pair = beside_rules(scores, "running_nights")
    if pair is None:
        return None
    model, rules = pair
    strongest = beside_strongest_rule(rules, "model_gain", "predictor") or {}
    return {**model, "rule": strongest.get("predictor"), "verb": strongest.get("verb")}


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
    raise NotThereError(
        f"there is no night of {market} as of {as_of}: "
        + (
            f"choose the nearest, {' or '.join(nearest)}"
            if nearest
            else f"the market has no night yet; `dtml nightly {market}` runs one"
        )
    )


def night_directions(night: NightFacts, level: float | None) -> pd.DataFrame:
    """Return the directions of a night, a row for each stock; no rows for a night without a model.

    The columns are those of the view prediction_history, and name and sector (missing for stocks
    that the newest night did not predict), lowest, highest and rising_share over the seeds, and
    `low` and `high`, the ends of the abstention band at `level`.

    Without a level, `low` and `high` are NaN, and `direction` is a rise above one half. At a level,
    `direction` is 'none' in the band, and missing if the model has no band. `correct` is missing
    where there is no rise or fall, and where there is no outcome.
    """
    market = night.market
    of_night = {"market": market, "run_id": night.row["run_id"], "target": night.target}
    of_seeds = "symbol, lowest, highest, rising_share"
    parts = [
        read(night.conn, "prediction_history", order="symbol", limit=STOCKS, **of_night),
        read(night.conn, "latest_prediction", columns="symbol, name, sector", market=market),
        read(night.conn, "disagreement", columns=of_seeds, **of_night),
    ]
    if level is not None:
        parts[0] = parts[0].drop(columns="direction")
        columns = "symbol, low, high, direction"
        parts.append(read(night.conn, "band_direction", columns=columns, level=level, **of_night))
    directions = reduce(lambda left, right: left.merge(right, on="symbol", how="left"), parts)
    if level is None:
        return directions.assign(low=np.nan, high=np.nan)
    is_correct = (directions["direction"] == "rise") == (directions["realised_return"] > 0)
    is_decided = directions["direction"].isin(["rise", "fall"])
    is_settled = is_decided & directions["realised_return"].notna()
    return directions.assign(correct=is_correct.astype("Int64").where(is_settled))
