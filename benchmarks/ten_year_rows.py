"""Write the simulated rows of one model's nights into the store of `ten_year_store`."""

from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from db import tables
from db.connection.bulk import insert_frame, insert_missing
from db.save import save
from dtml.baselines.naive_rules import NAIVE_RULES
from dtml.markets.definition import LEVELS
from dtml.ranking.features import RULES

STOCKS = tuple(f"S{number:03d}" for number in range(400))
PREDICTORS = ("dtml", *NAIVE_RULES)
ORDERED_BY = ("ridge", "boosting", "blend", "dtml")
UNSCORED = ("acc_low", "acc_high", "mcc_low", "mcc_high")
RANDOM = np.random.default_rng(5)


def run_name(market: str, day: pd.Timestamp) -> str:
    """Return the name of the model trained on a day."""
    return f"{market}-{day:%Y%m%d}-1a2b3c4d"


def moment(day: Any, hours: float = 22) -> Any:
    """Return the moment in UTC of an hour of a day, or of each of many days."""
    return (day + pd.Timedelta(hours=hours)).tz_localize("UTC")


def run_row(run_id: str, market: str, kind: str, day: pd.Timestamp) -> dict[str, object]:
    """Return a model: every column of run."""
    known = moment(day).to_pydatetime()
    return {
        "id": run_id,
        "market": market,
        "kind": kind,
        "data_watermark": known,
        "created_at": known,
        "model": "dtml",
        "config": {"window": 15, "hidden": 64},
        "seeds": [1, 2, 3],
        "code_version": "0.1.0",
        "checkpoint_path": f"data/{run_id}",
        "checkpoint_hash": run_id,
        "losses": [{"seed": seed, "loss": [0.69] * 20} for seed in (1, 2, 3)],
        "train_first": (day - pd.Timedelta(days=1000)).date(),
        "train_last": day.date(),
    }


def write_stocks(conn: Connection, market: str) -> None:
    """Name the stocks of a market, and its index."""
    symbols = [*STOCKS, "INDEX"]
    stocks = pd.DataFrame(
        {
            "symbol": symbols,
            "source_symbol": symbols,
            "name": "A company",
            "kind": ["stock"] * len(STOCKS) + ["index"],
            "sector": "Industrials",
        }
    )
    save(conn, "instrument", stocks, market=market)


def night_grid(
    as_of_days: pd.DatetimeIndex, targets: pd.DatetimeIndex, ids: "pd.Series[int]"
) -> pd.DataFrame:
    """Return a row for each night and stock, night by night in the given order."""
    nights = len(as_of_days)
    stocks = len(ids)
    return pd.DataFrame(
        {
            "instrument_id": np.tile(ids.to_numpy(), nights),
            "as_of": as_of_days.repeat(stocks),
            "target": targets.repeat(stocks),
        }
    )


def write_predictions(conn: Connection, grid: pd.DataFrame, run_id: str) -> None:
    """Write a prediction by that model for each row of the grid."""
    chances = RANDOM.beta(200, 200, len(grid))
    as_of_days = pd.DatetimeIndex(grid["as_of"])
    predictions = grid.assign(
        run_id=run_id,
        probability=chances,
        probability_std=chances / 50,
        calibrated=chances,
        lowest=chances - 0.02,
        highest=chances + 0.02,
        rising_share=(chances > 0.5) * 1.0,
        known_at=moment(as_of_days),
        made_at=moment(as_of_days, 23),
    )
    insert_frame(conn, tables.prediction, predictions)


def write_evidence(
    conn: Connection,
    market: str,
    run_id: str,
    as_of_days: pd.DatetimeIndex,
    targets: pd.DatetimeIndex,
) -> None:
    """Write the run's bands, and each night's bins, counts at each level and rule directions.

    Each night has twenty bins of its predictions.
    """
    levels = pd.DataFrame({"level": LEVELS})
    bands = levels.assign(threshold=0.5 + levels["level"] / 50, days=63, n=25_000)
    save(conn, "abstention_band", bands.assign(is_default=False), run_id=run_id)

    nights = pd.DataFrame({"run_id": run_id, "target": targets})
    bins = nights.merge(pd.DataFrame({"bin": range(40, 60)}), how="cross")
    bins = bins.assign(n=20, probability_sum=bins["bin"] / 5, rises=10)
    save(conn, "calibration_bin", bins)

    counts = nights.merge(levels, how="cross")
    counts = counts.assign(n=400, covered=352, decided=100, decided_correct=52)
    save(conn, "abstention_count", counts)

    rules = dict.fromkeys(NAIVE_RULES, True)
    directions = pd.DataFrame({"as_of": as_of_days, "target": targets, **rules})
    save(conn, "rule_direction", directions, market=market)


def write_looks(conn: Connection, grid: pd.DataFrame, run_id: str) -> None:
    """Write the three stocks that each stock looked at most.

    They are written for one market only: those of the other nine would be the same.
    """
    ids = grid["instrument_id"].to_numpy()
    sources = [
        grid[["instrument_id", "target"]].assign(source_id=np.roll(ids, step), weight=0.1 / step)
        for step in (1, 2, 3)
    ]
    insert_frame(conn, tables.attention_weight, pd.concat(sources).assign(run_id=run_id))


def write_outcomes(conn: Connection, grid: pd.DataFrame) -> None:
    """Write how the price of each row of the grid moved."""
    returns = RANDOM.normal(0, 0.015, len(grid))
    days = pd.DatetimeIndex(grid["target"])
    labels = np.where(returns >= 0.0055, 1, np.where(returns <= -0.005, -1, 0))
    outcomes = grid[["instrument_id"]].assign(
        session=days,
        realised_return=returns,
        rise=returns > 0,
        known_at=moment(days),
        label=labels,
        recorded_at=moment(days, 23),
    )
    insert_frame(conn, tables.outcome, outcomes)


def write_bars(conn: Connection, grid: pd.DataFrame, last: pd.Timestamp, hours: float = 0) -> None:
    """Write a bar of each row of the grid for its as_of, fetched that evening.

    With `hours`, the bars are restatements, fetched so many hours after the evening of `last`.
    """
    days = pd.DatetimeIndex(grid["as_of"])
    close = RANDOM.uniform(10, 500, len(grid))
    known = moment(days) if hours == 0 else moment(last, 22 + hours)
    bars = grid[["instrument_id"]].assign(
        session=days,
        known_at=known,
        source="yahoo",
        volume=1e6,
        open=close * 0.99,
        high=close * 1.02,
        low=close * 0.98,
        close=close,
        adj_close=close * 0.9,
        dividend=np.nan,
        split=np.nan,
    )
    insert_frame(conn, tables.price, bars)


def write_scores(conn: Connection, market: str, targets: pd.DatetimeIndex) -> None:
    """Write the scores of each predictor, of each night and running."""
    keys = pd.MultiIndex.from_product(
        [targets, ["night", "running"], ["published", "all"], PREDICTORS],
        names=["target", "span", "protocol", "predictor"],
    )
    scores = keys.to_frame(index=False)
    scores = scores.assign(
        market=market,
        scored_at=moment(pd.DatetimeIndex(scores["target"]), 23),
        n=400,
        nights=1,
        rises=201,
        predicted_rises=210,
        acc=0.51,
        mcc=0.02,
    )
    for column in UNSCORED:
        scores[column] = 0.5
    insert_frame(conn, tables.score, scores)


def write_rankings(
    conn: Connection,
    market: str,
    grid: pd.DataFrame,
    trained: pd.Timestamp,
    *,
    is_newest: bool,
) -> None:
    """Write the scores of every night's orders, and the orders of the newest training.

    The orders of all trainings would fill a disk.
    """
    keys = pd.MultiIndex.from_product(
        [grid["target"].unique(), ["night", "running"], [*ORDERED_BY, *RULES]],
        names=["target", "span", "predictor"],
    )
    scores = keys.to_frame(index=False)
    scores = scores.assign(
        leg="next_close",
        is_rule=scores["predictor"].isin(RULES),
        days=1,
        n=400,
        rank_ic=0.02,
    )
    save(conn, "rank_score", scores, market=market, scored_at=moment(trained, 23).to_pydatetime())
    if is_newest:
        _write_newest_rankings(conn, market, grid, trained)


def _write_newest_rankings(
    conn: Connection, market: str, grid: pd.DataFrame, trained: pd.Timestamp
) -> None:
    known = moment(trained).to_pydatetime()
    ranker = {
        "id": f"{market}-order",
        "market": market,
        "leg": "next_close",
        "chosen": "blend",
        "config": {},
        "code_version": "0",
        "checkpoint_path": "models/none",
        "checkpoint_hash": "0" * 64,
        "train_last": trained.date(),
        "data_watermark": known,
        "created_at": known,
    }
    save(conn, "ranker", ranker)
    place = grid.groupby("target").cumcount() + 1
    evening = moment(pd.DatetimeIndex(grid["as_of"]))
    for predictor in ORDERED_BY:
        ranks = grid.assign(
            ranker_id=ranker["id"],
            predictor=predictor,
            score=-place / 400,
            place=place,
            probability=0.5,
            chosen=predictor == "blend",
            known_at=evening,
            made_at=evening,
        )
        insert_frame(conn, tables.stock_rank, ranks)


def write_log(
    conn: Connection,
    market: str,
    run_id: str,
    as_of_days: pd.DatetimeIndex,
    targets: pd.DatetimeIndex,
    ids: "pd.Series[int]",
) -> None:
    """Write what each night logged: every seventh has gaps, rejected bars and an alert."""
    nights = []
    fetches = []
    alerts = []
    for number, (day, target) in enumerate(zip(as_of_days, targets, strict=True)):
        has_gaps = number % 7 == 6
        nights.append(_night_row(market, run_id, day, target, has_gaps=has_gaps))
        fetches.append(_fetch_row(market, day, has_gaps=has_gaps))
        if has_gaps:
            alerts.append(_alert_row(market, day))
    insert_missing(conn, tables.night, nights)
    insert_missing(conn, tables.price_fetch, fetches)
    insert_missing(conn, tables.alert, alerts)
    _write_rejected_bars(conn, as_of_days, ids)


def _fetched(market: str, day: pd.Timestamp, *, has_gaps: bool) -> dict[str, object]:
    """Return what a night and its fetch have in common."""
    return {
        "market": market,
        "as_of": day.date(),
        "source": "yahoo",
        "known_at": moment(day).to_pydatetime(),
        "fetched": 4000,
        "stored": 400,
        "rejected": 3 if has_gaps else 0,
    }


def _night_row(
    market: str, run_id: str, day: pd.Timestamp, target: pd.Timestamp, *, has_gaps: bool
) -> dict[str, object]:
    known = moment(day).to_pydatetime()
    without_bar = STOCKS[:3] if has_gaps else ()
    gaps = [{"symbol": symbol, "reason": "bar rejected: null_price"} for symbol in without_bar]
    return {
        **_fetched(market, day, has_gaps=has_gaps),
        "target": target.date(),
        "started_at": known,
        "finished_at": known,
        "reason": None,
        "run_id": run_id,
        "status": "complete_with_gaps" if has_gaps else "complete",
        "predictions": 400,
        "inputs_hash": "0" * 64,
        "gaps": gaps,
    }


def _fetch_row(market: str, day: pd.Timestamp, *, has_gaps: bool) -> dict[str, object]:
    return {
        **_fetched(market, day, has_gaps=has_gaps),
        "asked": 401,
        "restated": [],
        "failures": [],
    }


def _alert_row(market: str, day: pd.Timestamp) -> dict[str, object]:
    return {
        "market": market,
        "as_of": day.date(),
        "sent_at": None,
        "kind": "below_rule",
        "message": "below always_up for 60 nights",
        "raised_at": moment(day).to_pydatetime(),
    }


def _write_rejected_bars(
    conn: Connection, as_of_days: pd.DatetimeIndex, ids: "pd.Series[int]"
) -> None:
    days_with_gaps = as_of_days[6::7]
    stocks = ids.sample(3, random_state=len(as_of_days))
    grid = night_grid(days_with_gaps, days_with_gaps, stocks)
    bars = grid[["instrument_id"]].assign(
        session=grid["as_of"],
        source="yahoo",
        reason="null_price",
        value="close=nan",
        first_known_at=moment(pd.DatetimeIndex(grid["as_of"])),
    )
    insert_frame(conn, tables.rejected_bar, bars)
