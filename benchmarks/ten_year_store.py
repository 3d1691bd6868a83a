"""Make a store as it is after ten years: ten markets of 400 stocks, a model every 63 sessions.

All of it is simulated.
"""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import product

import pandas as pd
from sqlalchemy import Connection, Engine

from benchmarks.ten_year_rows import (
    PREDICTORS,
    RANDOM,
    STOCKS,
    moment,
    night_grid,
    run_name,
    run_row,
    write_bars,
    write_evidence,
    write_log,
    write_looks,
    write_outcomes,
    write_predictions,
    write_rankings,
    write_scores,
    write_stocks,
)
from db import tables
from db.connection.bulk import insert_frame
from db.engine import transaction
from db.rows import backtests
from db.save import instrument_ids, save
from dtml.baselines.naive_rules import NAIVE_RULES

MARKETS = tuple(f"market{number:02d}" for number in range(10))
RESTATED = STOCKS[::20]  # each was split twice, and its history fetched anew
A_NIGHT = len(MARKETS) * len(STOCKS)
RETRAIN_EVERY = 63
SPLIT_AT = (13, 26)  # models
BACKTEST_NIGHTS = 1000
BACKTEST_MARKET = MARKETS[0]
BACKTEST = "market00-backtest"
ATTENTION_NIGHTS = 3


@dataclass(frozen=True)
class TenYears:
    """The days of a store: a night has the bars up to `days[i]` and predicts `days[i + 1]`."""

    days: pd.DatetimeIndex

    @classmethod
    def of(cls, predictions: int) -> "TenYears":
        """Return the days for so many predictions, the last of them 30 June 2025."""
        nights = max(predictions // A_NIGHT, ATTENTION_NIGHTS)
        return cls(pd.bdate_range(end="2025-06-30", periods=nights + 1))

    @property
    def starts(self) -> range:
        """Return the place of each model's first night."""
        return range(0, len(self.days) - 1, RETRAIN_EVERY)

    def fill(self, engine: Engine) -> None:
        """Write all of it into an empty store."""
        for market in MARKETS:
            with transaction(engine) as conn:
                write_stocks(conn, market)
        for start, market in product(self.starts, MARKETS):
            with transaction(engine) as conn:
                self._write_nights(conn, market, start)
        with transaction(engine) as conn:
            self._write_backtest(conn)
            _write_benchmarks(conn, self.days)
            self._write_attention(conn)

    def fill_predictions(self, engine: Engine) -> None:
        """Write only the rows behind the history of predictions into an empty store, no prices."""
        for market in MARKETS:
            with transaction(engine) as conn:
                write_stocks(conn, market)
        for start, market in product(self.starts, MARKETS):
            with transaction(engine) as conn:
                grid, run_id = self._predict(conn, market, start)
                as_of_days = _days(grid, "as_of")
                targets = _days(grid, "target")
                write_evidence(conn, market, run_id, as_of_days, targets)
                write_outcomes(conn, grid)
                write_scores(conn, market, targets)
                write_rankings(
                    conn, market, grid, as_of_days[0], is_newest=start == self.starts[-1]
                )

    def attended(self) -> pd.DatetimeIndex:
        """Return the predicted sessions with stored attention, in the backtest's market."""
        return self.days[-ATTENTION_NIGHTS:]

    @property
    def _backtest_nights(self) -> int:
        return min(BACKTEST_NIGHTS, len(self.days) - 1)

    def _predict(self, conn: Connection, market: str, start: int) -> tuple[pd.DataFrame, str]:
        """Write a model and its predictions; return their grid and the model's name."""
        as_of_days = self.days[start : min(start + RETRAIN_EVERY, len(self.days) - 1)]
        targets = self.days[start + 1 : start + 1 + len(as_of_days)]
        run_id = run_name(market, as_of_days[0])
        save(conn, "run", run_row(run_id, market, "nightly", as_of_days[0]))
        grid = night_grid(as_of_days, targets, _stock_ids(conn, market))
        write_predictions(conn, grid, run_id)
        return grid, run_id

    def _write_nights(self, conn: Connection, market: str, start: int) -> None:
        grid, run_id = self._predict(conn, market, start)
        as_of_days = _days(grid, "as_of")
        targets = _days(grid, "target")
        ids = _stock_ids(conn, market)
        write_evidence(conn, market, run_id, as_of_days, targets)
        if market == BACKTEST_MARKET:
            write_looks(conn, grid, run_id)
        write_outcomes(conn, grid)
        write_bars(conn, grid, as_of_days[-1])
        if start // RETRAIN_EVERY in SPLIT_AT:
            past = self.days[: start + len(as_of_days)]
            restated = night_grid(past, past, ids[ids.index.isin(RESTATED)])
            write_bars(conn, restated, as_of_days[-1], hours=1)
        write_scores(conn, market, targets)
        write_rankings(conn, market, grid, as_of_days[0], is_newest=start == self.starts[-1])
        write_log(conn, market, run_id, as_of_days, targets, ids)

    def _write_backtest(self, conn: Connection) -> None:
        nights = self._backtest_nights
        first = len(self.days) - 1 - nights
        as_of_days = self.days[first:-1]
        targets = self.days[first + 1 :]
        ids = _stock_ids(conn, BACKTEST_MARKET)
        save(conn, "backtest", _backtest_row(targets))
        for number, start in enumerate(range(0, nights, RETRAIN_EVERY), start=1):
            of_fold = slice(start, start + RETRAIN_EVERY)
            run_id = f"{BACKTEST}-{number}"
            save(conn, "run", run_row(run_id, BACKTEST_MARKET, "backtest", as_of_days[start]))
            grid = night_grid(as_of_days[of_fold], targets[of_fold], ids)
            write_predictions(conn, grid, run_id)
            fold = _fold_row(number, run_id, as_of_days[of_fold], targets[of_fold])
            save(conn, "backtest_fold", fold, backtest_id=BACKTEST)
        _finish_backtest(conn, targets)

    def _write_attention(self, conn: Connection) -> None:
        """Write the attention of every stock to every other by the model of the last fold."""
        ids = _stock_ids(conn, BACKTEST_MARKET).to_numpy()
        last_fold = math.ceil(self._backtest_nights / RETRAIN_EVERY)
        run_id = f"{BACKTEST}-{last_fold}"
        pairs = pd.MultiIndex.from_product([ids, ids], names=["instrument_id", "source_id"])
        for target in self.attended():
            weights = pairs.to_frame(index=False).assign(
                run_id=run_id,
                target=target,
                weight=RANDOM.uniform(0, 0.005, len(pairs)),
            )
            insert_frame(conn, tables.attention_weight, weights)


def _days(grid: pd.DataFrame, column: str) -> pd.DatetimeIndex:
    return pd.DatetimeIndex(grid[column].unique())


def _stock_ids(conn: Connection, market: str) -> "pd.Series[int]":
    return instrument_ids(conn, market).drop("INDEX")


def _backtest_row(targets: pd.DatetimeIndex) -> dict[str, object]:
    known = moment(targets[-1]).to_pydatetime()
    return {
        "id": BACKTEST,
        "market": BACKTEST_MARKET,
        "first": targets[0].date(),
        "last": targets[-1].date(),
        "retrain_every": RETRAIN_EVERY,
        "config": {},
        "seeds": [1, 2, 3],
        "code_version": "0.1.0",
        "device": "cpu",
        "data_watermark": known,
        "created_at": known,
        "list_is_snapshot": True,
        "list_as_of": None,
    }


def _fold_row(
    number: int, run_id: str, as_of_days: pd.DatetimeIndex, targets: pd.DatetimeIndex
) -> dict[str, object]:
    return {
        "number": number,
        "run_id": run_id,
        "as_of": as_of_days[0].date(),
        "first": targets[0].date(),
        "last": targets[-1].date(),
        "predictions": len(targets) * len(STOCKS),
        "refused": {},
        "seconds": 60.0,
    }


def _finish_backtest(conn: Connection, targets: pd.DatetimeIndex) -> None:
    names = [f"portfolio {number}" for number in range(12)]
    keys = pd.MultiIndex.from_product([names, targets], names=["portfolio", "session"])
    returns = keys.to_frame(index=False).assign(
        gross=0.001,
        turnover=0.5,
        cost=0.0001,
        borrow=0.0,
        net=0.0009,
    )
    counts = (len(STOCKS), len(returns), 0, len(names), 1.0)
    backtests.finish_backtest(
        conn,
        BACKTEST,
        scores=_backtest_scores(),
        returns=returns,
        portfolios=_portfolios(names, days=len(targets)),
        counts=dict(zip(backtests.COUNTS, counts, strict=True)),
        finished_at=datetime(2025, 7, 1, tzinfo=UTC),
        seconds=900.0,
    )


def _backtest_scores() -> pd.DataFrame:
    slices = [("all", "")]
    slices += [("symbol", symbol) for symbol in STOCKS]
    slices += [("fold", str(number)) for number in range(1, 17)]
    keys = []
    for slice_and_value, protocol, predictor in product(slices, ("published", "all"), PREDICTORS):
        keys.append((*slice_and_value, protocol, predictor))
    scores = pd.DataFrame(keys, columns=["slice", "value", "protocol", "predictor"])
    columns = [column.name for column in tables.backtest_score.c if column.name != "backtest_id"]
    scores = scores.reindex(columns=columns)
    return scores.assign(n=1000, days=1000, rises=500, acc=0.51, mcc=0.02)


def _portfolios(names: list[str], days: int) -> pd.DataFrame:
    columns = [
        column.name for column in tables.backtest_portfolio.c if column.name != "backtest_id"
    ]
    portfolios = pd.DataFrame({"portfolio": names}).reindex(columns=columns)
    return portfolios.assign(strategy=None, days=days, settled=0, unbooked=0.0)


def _write_benchmarks(conn: Connection, days: pd.DatetimeIndex) -> None:
    """Write twenty benchmarks, alike but for their names."""
    seeds = _benchmark_seeds()
    scores = _benchmark_scores()
    for number in range(20):
        row = _benchmark_row(f"benchmark{number:02d}", last=days[-1])
        backtests.save_benchmark(conn, row, scores, seeds)


def _benchmark_row(name: str, last: pd.Timestamp) -> dict[str, object]:
    def days_before(count: int) -> date:
        return (last - pd.Timedelta(days=count)).date()

    known = moment(last).to_pydatetime()
    return {
        "id": name,
        "market": MARKETS[0],
        "title": "six models",
        "config": {},
        "code_version": "0.1.0",
        "data_watermark": known,
        "test_read_at": known,
        "stocks": 400,
        "best_rule": "always_up",
        "device": "cpu",
        "train_first": days_before(900),
        "train_last": days_before(600),
        "validation_first": days_before(599),
        "validation_last": days_before(300),
        "test_first": days_before(299),
        "test_last": days_before(0),
        "seconds": 60.0,
    }


def _benchmark_seeds() -> pd.DataFrame:
    keys = product(["dtml", "lstm", "alstm"], range(1, 7), range(10))
    seeds = pd.DataFrame(list(keys), columns=["predictor", "configuration", "seed"])
    return seeds.assign(
        settings=pd.Series([{"window": 15}] * len(seeds)),
        kept=False,
        best_epoch=9,
        validation_loss=0.69,
        validation_acc=0.51,
        acc=0.51,
        mcc=0.02,
    )


def _benchmark_scores() -> pd.DataFrame:
    keys = product([*PREDICTORS, "lstm", "alstm"], ["published", "all"])
    scores = pd.DataFrame(list(keys), columns=["predictor", "protocol"])
    columns = [column.name for column in tables.benchmark_score.c if column.name != "benchmark_id"]
    return scores.reindex(columns=columns).assign(
        is_rule=scores["predictor"].isin(list(NAIVE_RULES)),
        run_id=None,
        days=250,
        n=100_000,
        rises=50_000,
        acc=0.51,
        mcc=0.02,
    )
