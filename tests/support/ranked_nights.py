"""A store with a market whose nights rank its stocks: rankings, outcomes and scores, made up, with
an order in them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection, Engine

from db.engine import transaction
from db.save import save
from dtml.evaluation.ranking import score_ranking
from flows.nightly.ranking import _running_scores
from tests.support.benchmark_rows import ranker
from tests.support.dashboard_store import moment
from tests.support.night_rows import store_night

MARKET, LEG = "ranked", "next_close"
STOCKS = tuple(f"R{number:02d}" for number in range(24))
SECTORS = ("Tin", "Oil & <Gas>")
PREDICTORS = ("blend", "ridge")
RULE = "day_losers"
TRADED = "open_to_open"


def fill_ranked_nights(engine: Engine, count: int = 60, market: str = MARKET) -> None:
    """Store so many nights; the last one has no outcome yet, and the second lacks a stock."""
    days = pd.bdate_range("2024-01-02", periods=count + 1)
    drawn = np.random.default_rng(7)
    noise = drawn.standard_normal((count, len(STOCKS)))
    scores = {
        name: 0.7 * noise + drawn.standard_normal(noise.shape) for name in (*PREDICTORS, RULE)
    }
    scores["blend"][1:2, 0] = np.nan
    returns = 0.01 * (noise + drawn.standard_normal((count, 1)))
    returns[-1] = np.nan
    traded = 0.8 * returns
    with transaction(engine) as conn:
        _fill_stocks(conn, market)
        row = ranker(market=market, id=f"{market}-rankers", chosen="blend", leg=LEG)
        file = {"checkpoint_path": "made", "checkpoint_hash": "0" * 64}
        save(conn, "ranker", row | file)
        rows = pd.concat(
            _ranking(days, scores[name], name, f"{market}-rankers") for name in PREDICTORS
        )
        save(
            conn,
            "stock_rank",
            rows,
            market=market,
            known_at=moment(days[0]),
            made_at=moment(days[-1]),
        )
        for number in range(count):
            _fill_night(conn, market, days[number], days[number + 1], left_out=number == 1)
        if count == 1:
            return  # no night has an outcome
        _fill_outcomes(conn, market, days[1:-1], returns[:-1])
        nights_scores = pd.DataFrame(_scores(days[1:], scores, {LEG: returns, TRADED: traded}))
        now = moment(days[-1])
        save(conn, "rank_score", nights_scores, market=market, scored_at=now)
        of_leg = nights_scores[nights_scores["leg"] == LEG].sort_values(["predictor", "target"])
        running = pd.DataFrame(list(_running_scores(of_leg, days[0], 1))).assign(leg=LEG)
        save(conn, "rank_score", running, market=market, scored_at=now)


def _fill_stocks(conn: Connection, market: str) -> None:
    stocks = pd.DataFrame({"symbol": STOCKS, "source_symbol": STOCKS, "kind": "stock"})
    names = [f"{stock} & Sons" for stock in STOCKS]
    sectors = [SECTORS[number % 2] for number in range(len(STOCKS))]
    save(conn, "instrument", stocks.assign(name=names, sector=sectors), market=market)


def _ranking(
    days: pd.DatetimeIndex, scores: np.ndarray, predictor: str, ranker_id: str
) -> pd.DataFrame:
    """Return the rankings of a predictor, in the columns of the table stock_rank."""
    rows = pd.DataFrame(scores, index=days[1:], columns=STOCKS).rename_axis("target")
    ranked = rows.stack().dropna().rename("score").rename_axis(["target", "symbol"])
    ranked = ranked.reset_index()
    place = ranked.groupby("target")["score"].rank(ascending=False, method="first").astype(int)
    before = dict(zip(days[1:], days[:-1], strict=True))
    return ranked.assign(
        ranker_id=ranker_id,
        predictor=predictor,
        as_of=ranked["target"].map(before),
        place=place,
        probability=0.5,
        chosen=predictor == "blend",
    )


def _fill_outcomes(
    conn: Connection, market: str, targets: pd.DatetimeIndex, returns: np.ndarray
) -> None:
    rows = pd.DataFrame(returns, index=targets, columns=STOCKS).rename_axis("session")
    happened = rows.stack().rename("realised_return").rename_axis(["session", "symbol"])
    frame = happened.reset_index()
    rise = frame["realised_return"] > 0
    save(
        conn,
        "outcome",
        frame.assign(rise=rise, label=np.where(rise, 1, -1)),
        market=market,
        known_at=moment(targets[-1]),
        recorded_at=moment(targets[-1]),
    )


def _scores(
    targets: pd.DatetimeIndex, scores: dict[str, np.ndarray], returns: dict[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Yield the scores of each night that has outcomes, as the night computes them."""
    for night, target in enumerate(targets[:-1]):
        for leg, outcome in returns.items():
            for name, score in scores.items():
                found = score_ranking(score[night][None], outcome[night][None])
                yield {
                    "target": target,
                    "span": "night",
                    "leg": leg,
                    "predictor": name,
                    "is_rule": name == RULE,
                    **found,
                }


def _fill_night(
    conn: Connection, market: str, as_of: pd.Timestamp, target: pd.Timestamp, *, left_out: bool
) -> None:
    gaps = [{"symbol": STOCKS[0], "reason": "no bar"}] if left_out else []
    store_night(
        conn,
        market,
        as_of.date(),
        target=target.date(),
        at=moment(as_of),
        finished_at=moment(as_of, 23),
        counts={"fetched": 9, "stored": 9, "predictions": len(STOCKS) - len(gaps)},
        gaps=gaps,
        known_at=moment(as_of),
    )
