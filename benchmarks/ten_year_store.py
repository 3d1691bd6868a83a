"""Make a store as it is after ten years: ten markets of 400 stocks, a model
every 63 sessions, all of it simulated.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Connection, Engine

from db import tables
from db.connection.bulk import insert_frame, insert_missing
from db.engine import transaction
from db.rows import backtests, benchmarks, calibration, markets, rankings, runs
from db.rows import predictions as stored_predictions
from dtml.baselines.naive_rules import NAIVE_RULES
from dtml.markets.definition import LEVELS
from dtml.ranking.outcomes import RULES

MARKETS = tuple(f"market{number:02d}" for number in range(10))
STOCKS = tuple(f"S{number:03d}" for number in range(400))
RESTATED = STOCKS[::20]  # each was split twice, and its history fetched anew
A_NIGHT = len(MARKETS) * len(STOCKS)
RETRAIN_EVERY = 63
SPLIT_AT = (13, 26)  # models
PREDICTORS = ("dtml", *NAIVE_RULES)
BACKTEST_NIGHTS = 1000
BACKTEST_MARKET, BACKTEST = MARKETS[0], "market00-backtest"
ATTENTION_NIGHTS = 3
ORDERED_BY = ("ridge", "boosting", "blend", "dtml")
UNSCORED = ("acc_low", "acc_high", "mcc_low", "mcc_high")
RANDOM = np.random.default_rng(5)


@dataclass(frozen=True)
class TenYears:
    """The days of a store: a night sees `days[i]` and predicts `days[i + 1]`."""

    days: pd.DatetimeIndex

    @classmethod
    def of(cls, predictions: int) -> "TenYears":
        """Return days for as many predictions, the last of them 30 June 2025."""
        return cls(
            pd.bdate_range(
                end="2025-06-30", periods=max(predictions // A_NIGHT, ATTENTION_NIGHTS) + 1
            )
        )

    @property
    def starts(self) -> range:
        """Return the place of each model's first night."""
        return range(0, len(self.days) - 1, RETRAIN_EVERY)

    def fill(self, engine: Engine) -> None:
        """Write all of it into an empty store."""
        for market in MARKETS:
            with transaction(engine) as conn:
                _name_stocks(conn, market)
        for start, market in product(self.starts, MARKETS):
            with transaction(engine) as conn:
                self._write_nights(conn, market, start)
        with transaction(engine) as conn:
            self._write_backtest(conn)
            _write_benchmark(conn, self.days)
            self._write_attention(conn)

    def fill_predictions(self, engine: Engine) -> None:
        """Write what the history of predictions is made of, and none of the
        prices, into an empty store.
        """
        for market in MARKETS:
            with transaction(engine) as conn:
                _name_stocks(conn, market)
        for start, market in product(self.starts, MARKETS):
            with transaction(engine) as conn:
                grid, run_id = self._predict(conn, market, start)
                seen, targets = (
                    pd.DatetimeIndex(grid[name].unique()) for name in ("as_of", "target")
                )
                _write_evidence(conn, market, run_id, seen, targets)
                _write_outcomes(conn, grid)
                _write_scores(conn, market, targets)
                _write_orders(conn, market, grid, seen[0], is_newest=start == self.starts[-1])

    def attended(self) -> pd.DatetimeIndex:
        """Return the sessions predicted whose attention is kept, in the market of the backtest."""
        return self.days[-ATTENTION_NIGHTS:]

    def _predict(self, conn: Connection, market: str, start: int) -> tuple[pd.DataFrame, str]:
        seen = self.days[start : min(start + RETRAIN_EVERY, len(self.days) - 1)]
        targets = self.days[start + 1 : start + 1 + len(seen)]
        run_id = run_name(market, seen[0])
        runs.save_run(conn, run_row(run_id, market, "nightly", seen[0]))
        grid = _grid(seen, targets, markets.instrument_ids(conn, market).drop("INDEX"))
        _write_predictions(conn, grid, run_id)
        return grid, run_id

    def _write_nights(self, conn: Connection, market: str, start: int) -> None:
        grid, run_id = self._predict(conn, market, start)
        seen, targets = (pd.DatetimeIndex(grid[name].unique()) for name in ("as_of", "target"))
        ids = markets.instrument_ids(conn, market).drop("INDEX")
        _write_evidence(conn, market, run_id, seen, targets)
        if market == BACKTEST_MARKET:
            _write_looks(conn, grid, run_id)
        _write_outcomes(conn, grid)
        _write_bars(conn, grid, seen[-1])
        if start // RETRAIN_EVERY in SPLIT_AT:
            past = self.days[: start + len(seen)]
            _write_bars(conn, _grid(past, past, ids[ids.index.isin(RESTATED)]), seen[-1], hours=1)
        _write_scores(conn, market, targets)
        _write_orders(conn, market, grid, seen[0], is_newest=start == self.starts[-1])
        _write_log(conn, market, run_id, seen, targets, ids)

    def _write_backtest(self, conn: Connection) -> None:
        nights = min(BACKTEST_NIGHTS, len(self.days) - 1)
        first = len(self.days) - 1 - nights
        seen, targets = self.days[first:-1], self.days[first + 1 :]
        ids = markets.instrument_ids(conn, BACKTEST_MARKET).drop("INDEX")
        backtests.save_backtest(conn, _backtest_row(targets))
        for number, start in enumerate(range(0, nights, RETRAIN_EVERY), start=1):
            of_fold = slice(start, start + RETRAIN_EVERY)
            run_id = f"{BACKTEST}-{number}"
            runs.save_run(conn, run_row(run_id, BACKTEST_MARKET, "backtest", seen[start]))
            grid = _grid(seen[of_fold], targets[of_fold], ids)
            _write_predictions(conn, grid, run_id)
            backtests.save_fold(
                conn, BACKTEST, _fold_row(number, run_id, seen[of_fold], targets[of_fold])
            )
        _finish_backtest(conn, targets)

    def _write_attention(self, conn: Connection) -> None:
        ids = markets.instrument_ids(conn, BACKTEST_MARKET).drop("INDEX").to_numpy()
        # of the last fold
        run_id = f"{BACKTEST}-{-(-min(BACKTEST_NIGHTS, len(self.days) - 1) // RETRAIN_EVERY)}"
        for target in self.attended():
            pairs = pd.MultiIndex.from_product(
                [ids, ids], names=["instrument_id", "source_id"]
            ).to_frame(index=False)
            weights = pairs.assign(
                run_id=run_id, target=target, weight=RANDOM.uniform(0, 0.005, len(pairs))
            )
            insert_frame(conn, tables.attention_weight, weights)


def run_name(market: str, day: pd.Timestamp) -> str:
    """Return the name of the model trained on a day."""
    return f"{market}-{day:%Y%m%d}-1a2b3c4d"


def moment(day: Any, hours: float = 22) -> Any:
    """Return that hour of a day, or of each of many, in UTC."""
    return (day + pd.Timedelta(hours=hours)).tz_localize("UTC")


def run_row(run_id: str, market: str, kind: str, day: pd.Timestamp) -> dict[str, object]:
    """Return a model: every column of run."""
    known = moment(day).to_pydatetime()
    losses = [{"seed": seed, "loss": [0.69] * 20} for seed in (1, 2, 3)]
    made = {
        "model": "dtml",
        "config": {"window": 15, "hidden": 64},
        "seeds": [1, 2, 3],
        "code_version": "0.1.0",
    }
    files = {"checkpoint_path": f"data/{run_id}", "checkpoint_hash": run_id, "losses": losses}
    spans = {"train_first": (day - pd.Timedelta(days=1000)).date(), "train_last": day.date()}
    named = {
        "id": run_id,
        "market": market,
        "kind": kind,
        "data_watermark": known,
        "created_at": known,
    }
    return named | made | files | spans


def _name_stocks(conn: Connection, market: str) -> None:
    stocks = pd.DataFrame(
        {"symbol": [*STOCKS, "INDEX"], "source_symbol": [*STOCKS, "INDEX"], "name": "A company"}
    )
    kinds = ["stock"] * len(STOCKS) + ["index"]
    markets.save_instruments(conn, market, stocks.assign(kind=kinds, sector="Industrials"))


def _grid(seen: pd.DatetimeIndex, targets: pd.DatetimeIndex, ids: "pd.Series[int]") -> pd.DataFrame:
    """A row for each night and stock, night by night as they come."""
    nights, stocks = len(seen), len(ids)
    return pd.DataFrame(
        {
            "instrument_id": np.tile(ids.to_numpy(), nights),
            "as_of": seen.repeat(stocks),
            "target": targets.repeat(stocks),
        }
    )


def _write_predictions(conn: Connection, grid: pd.DataFrame, run_id: str) -> None:
    chances = RANDOM.beta(200, 200, len(grid))
    made: dict[str, Any] = {
        "run_id": run_id,
        "probability": chances,
        "probability_std": chances / 50,
        "calibrated": chances,
    }
    made |= {
        "lowest": chances - 0.02,
        "highest": chances + 0.02,
        "rising_share": (chances > 0.5) * 1.0,
    }
    seen = pd.DatetimeIndex(grid["as_of"])
    insert_frame(
        conn,
        tables.prediction,
        grid.assign(**made, known_at=moment(seen), made_at=moment(seen, 23)),
    )


def _write_evidence(
    conn: Connection, market: str, run_id: str, seen: pd.DatetimeIndex, targets: pd.DatetimeIndex
) -> None:
    """Write the bands of the run, and of each night twenty bins of its
    predictions and their counts at each level.
    """
    levels = pd.DataFrame({"level": LEVELS})
    calibration.save_bands(
        conn, run_id, levels.assign(threshold=0.5 + levels["level"] / 50, days=63, n=25_000)
    )
    nights = pd.DataFrame({"run_id": run_id, "target": targets})
    bins = nights.merge(pd.DataFrame({"bin": range(40, 60)}), how="cross")
    calibration.save_bins(conn, bins.assign(n=20, probability_sum=bins["bin"] / 5, rises=10))
    counts = {"n": 400, "covered": 352, "decided": 100, "decided_correct": 52}
    calibration.save_band_counts(conn, nights.merge(levels, how="cross").assign(**counts))
    rules = dict.fromkeys(NAIVE_RULES, True)
    stored_predictions.save_rule_directions(
        conn, market, pd.DataFrame({"as_of": seen, "target": targets} | rules)
    )


def _write_looks(conn: Connection, grid: pd.DataFrame, run_id: str) -> None:
    """The three sources that each stock looked at most: in one market, for the
    other nine would be alike.
    """
    ids = grid["instrument_id"].to_numpy()
    parts = [
        grid[["instrument_id", "target"]].assign(source_id=np.roll(ids, step), weight=0.1 / step)
        for step in (1, 2, 3)
    ]
    insert_frame(conn, tables.attention_weight, pd.concat(parts).assign(run_id=run_id))


def _write_outcomes(conn: Connection, grid: pd.DataFrame) -> None:
    returns = RANDOM.normal(0, 0.015, len(grid))
    days = pd.DatetimeIndex(grid["target"])
    rows = grid[["instrument_id"]].assign(
        session=days, realised_return=returns, rise=returns > 0, known_at=moment(days)
    )
    labels = np.where(returns >= 0.0055, 1, np.where(returns <= -0.005, -1, 0))
    insert_frame(conn, tables.outcome, rows.assign(label=labels, recorded_at=moment(days, 23)))


def _write_bars(conn: Connection, grid: pd.DataFrame, last: pd.Timestamp, hours: float = 0) -> None:
    """A bar of each day seen, fetched that evening, or restated so many hours
    after the evening of the last.
    """
    days = pd.DatetimeIndex(grid["as_of"])
    close = RANDOM.uniform(10, 500, len(grid))
    known = moment(days) if hours == 0 else moment(last, 22 + hours)
    values = {
        "open": close * 0.99,
        "high": close * 1.02,
        "low": close * 0.98,
        "close": close,
        "adj_close": close * 0.9,
    }
    rows = grid[["instrument_id"]].assign(
        session=days, known_at=known, source="yahoo", volume=1e6, **values
    )
    insert_frame(conn, tables.price, rows.assign(dividend=np.nan, split=np.nan))


def _write_scores(conn: Connection, market: str, targets: pd.DatetimeIndex) -> None:
    names = ["target", "span", "protocol", "predictor"]
    every = pd.MultiIndex.from_product(
        [targets, ["night", "running"], ["paper", "all"], PREDICTORS], names=names
    )
    rows = every.to_frame(index=False)
    counts = {"n": 400, "nights": 1, "rises": 201, "predicted_rises": 210}
    figures = counts | {"acc": 0.51, "mcc": 0.02} | dict.fromkeys(UNSCORED, 0.5)
    scored = moment(pd.DatetimeIndex(rows["target"]), 23)
    insert_frame(conn, tables.score, rows.assign(market=market, scored_at=scored, **figures))


def _write_orders(
    conn: Connection, market: str, grid: pd.DataFrame, trained: pd.Timestamp, *, is_newest: bool
) -> None:
    """Scores of every night's orders, and those of the newest training
    themselves: all of them would fill a disk.
    """
    names = ["target", "span", "predictor"]
    every = pd.MultiIndex.from_product(
        [grid["target"].unique(), ["night", "running"], [*ORDERED_BY, *RULES]], names=names
    )
    rows = every.to_frame(index=False)
    rows = rows.assign(
        leg="next_close", is_rule=rows["predictor"].isin(RULES), days=1, n=400, rank_ic=0.02
    )
    rankings.save_rank_scores(conn, market, rows, scored_at=moment(trained, 23).to_pydatetime())
    if not is_newest:
        return
    stem = {
        "id": f"{market}-order",
        "market": market,
        "leg": "next_close",
        "chosen": "blend",
        "config": {},
    }
    made = {
        "code_version": "0",
        "checkpoint_path": "models/none",
        "checkpoint_hash": "0" * 64,
        "train_last": trained.date(),
    }
    stamps = dict.fromkeys(("data_watermark", "created_at"), moment(trained).to_pydatetime())
    rankings.save_ranker(conn, stem | made | stamps)
    place = grid.groupby("target").cumcount() + 1
    for name in ORDERED_BY:
        said = grid.assign(
            ranker_id=stem["id"], predictor=name, score=-place / 400, place=place, probability=0.5
        )
        when = moment(pd.DatetimeIndex(grid["as_of"]))
        insert_frame(
            conn,
            tables.stock_rank,
            said.assign(speaks=name == "blend", known_at=when, made_at=when),
        )


def _write_log(
    conn: Connection,
    market: str,
    run_id: str,
    seen: pd.DatetimeIndex,
    targets: pd.DatetimeIndex,
    ids: "pd.Series[int]",
) -> None:
    """The night's rows: every seventh night has gaps, rejected bars and an alert."""
    nights, fetches, alerts = [], [], []
    for number, (day, target) in enumerate(zip(seen, targets, strict=True)):
        known, gaps = moment(day).to_pydatetime(), number % 7 == 6
        counts = {"fetched": 4000, "stored": 400, "rejected": 3 * gaps}
        named = {
            "market": market,
            "as_of": day.date(),
            "source": "yahoo",
            "known_at": known,
        } | counts
        left_out = [
            {"symbol": STOCKS[stock], "reason": "bar rejected: null_price"}
            for stock in range(3 * gaps)
        ]
        begun = {
            "target": target.date(),
            "started_at": known,
            "finished_at": known,
            "reason": None,
            "run_id": run_id,
        }
        ended = {
            "status": "complete_with_gaps" if gaps else "complete",
            "predictions": 400,
            "inputs_hash": "0" * 64,
        }
        nights.append(named | begun | ended | {"gaps": left_out})
        fetches.append(named | {"asked": 401, "restated": [], "failures": []})
        if gaps:
            said = {
                "kind": "below_rule",
                "message": "below always_up for 60 nights",
                "raised_at": known,
            }
            alerts.append({"market": market, "as_of": day.date(), "sent_at": None} | said)
    insert_missing(conn, tables.night, nights)
    insert_missing(conn, tables.price_fetch, fetches)
    insert_missing(conn, tables.alert, alerts)
    rejected = _grid(seen[6::7], seen[6::7], ids.sample(3, random_state=len(seen)))
    bars = rejected[["instrument_id"]].assign(
        session=rejected["as_of"], source="yahoo", reason="null_price"
    )
    known_at = moment(pd.DatetimeIndex(rejected["as_of"]))
    insert_frame(conn, tables.rejected_bar, bars.assign(value="close=nan", first_known_at=known_at))


def _backtest_row(targets: pd.DatetimeIndex) -> dict[str, object]:
    known = moment(targets[-1]).to_pydatetime()
    named = {
        "id": BACKTEST,
        "market": BACKTEST_MARKET,
        "first": targets[0].date(),
        "last": targets[-1].date(),
    }
    how = {
        "retrain_every": RETRAIN_EVERY,
        "config": {},
        "seeds": [1, 2, 3],
        "code_version": "0.1.0",
        "device": "cpu",
    }
    return (
        named
        | how
        | {
            "data_watermark": known,
            "created_at": known,
            "list_is_snapshot": True,
            "list_as_of": None,
        }
    )


def _fold_row(
    number: int, run_id: str, seen: pd.DatetimeIndex, targets: pd.DatetimeIndex
) -> dict[str, object]:
    days = {"as_of": seen[0].date(), "first": targets[0].date(), "last": targets[-1].date()}
    made = {"predictions": len(targets) * len(STOCKS), "refused": {}, "seconds": 60.0}
    return {"number": number, "run_id": run_id} | days | made


def _finish_backtest(conn: Connection, targets: pd.DatetimeIndex) -> None:
    breakdowns = [
        ("all", ""),
        *(("symbol", symbol) for symbol in STOCKS),
        *(("fold", str(n)) for n in range(1, 17)),
    ]
    keys = [
        (*each, protocol, rule)
        for each, protocol, rule in product(breakdowns, ("paper", "all"), PREDICTORS)
    ]
    scores = pd.DataFrame(keys, columns=["slice", "value", "protocol", "predictor"])
    columns = [each.name for each in tables.backtest_score.c if each.name != "backtest_id"]
    scores = scores.reindex(columns=columns).assign(
        n=1000, days=1000, rises=500, acc=0.51, mcc=0.02
    )
    names = [f"portfolio {number}" for number in range(12)]
    held = pd.MultiIndex.from_product([names, targets], names=["portfolio", "session"]).to_frame(
        index=False
    )
    numbers = [
        each.name
        for each in tables.backtest_portfolio.c
        if each.name not in ("backtest_id", "portfolio")
    ]
    portfolios = pd.DataFrame({"portfolio": names}).reindex(columns=["portfolio", *numbers])
    backtests.finish_backtest(
        conn,
        BACKTEST,
        scores=scores,
        returns=held.assign(gross=0.001, turnover=0.5, cost=0.0001, borrow=0.0, net=0.0009),
        portfolios=portfolios.assign(strategy=None, days=len(targets), settled=0, unbooked=0.0),
        counts=dict(
            zip(backtests.COUNTS, (len(STOCKS), held.shape[0], 0, len(names), 1.0), strict=True)
        ),
        finished_at=datetime(2025, 7, 1, tzinfo=UTC),
        seconds=900.0,
    )


def _write_benchmark(conn: Connection, days: pd.DatetimeIndex) -> None:
    last = days[-1]
    ends = [(last - pd.Timedelta(days=back)).date() for back in (900, 600, 599, 300, 299, 0)]
    spans = dict(
        zip(
            (f"{s}_{e}" for s in ("train", "validation", "test") for e in ("first", "last")),
            ends,
            strict=True,
        )
    )
    known = moment(last).to_pydatetime()
    named: dict[str, Any] = {
        "market": MARKETS[0],
        "title": "six models",
        "config": {},
        "code_version": "0.1.0",
    }
    named |= {
        "data_watermark": known,
        "test_read_at": known,
        "stocks": 400,
        "best_rule": "always_up",
        "device": "cpu",
    }
    seeds = pd.DataFrame(
        list(product(["dtml", "lstm", "alstm"], range(1, 7), range(10))),
        columns=["predictor", "configuration", "seed"],
    )
    seeds = seeds.assign(
        settings=pd.Series([{"window": 15}] * len(seeds)),
        kept=False,
        best_epoch=9,
        validation_loss=0.69,
    )
    seeds = seeds.assign(validation_acc=0.51, acc=0.51, mcc=0.02)
    scores = pd.DataFrame(
        list(product([*PREDICTORS, "lstm", "alstm"], ["paper", "all"])),
        columns=["predictor", "protocol"],
    )
    whole = [each.name for each in tables.benchmark_score.c if each.name != "benchmark_id"]
    scores = scores.reindex(columns=whole).assign(
        is_rule=scores["predictor"].isin(list(NAIVE_RULES)), run_id=None
    )
    scores = scores.assign(days=250, n=100_000, rises=50_000, acc=0.51, mcc=0.02)
    for number in range(20):
        benchmarks.save_benchmark(
            conn, named | spans | {"id": f"benchmark{number:02d}", "seconds": 60.0}, scores, seeds
        )
