"""Make a store as it is after ten years: ten markets of 400 stocks, a model every 63 sessions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from db.tables import UtcTimestamp
from dtml.baselines.naive_rules import NAIVE_RULES
from dtml.markets.definition import LEVELS
from dtml.ranking.features import RULES

MARKETS = tuple(f"market{number:02d}" for number in range(10))
STOCKS = tuple(f"S{number:03d}" for number in range(400))
RESTATED = STOCKS[::20]  # each was split twice, and its history fetched anew
RETRAIN_EVERY = 63
SPLIT_AT = (13, 26)  # models
BACKTEST_NIGHTS = 1000
BACKTEST_MARKET = MARKETS[0]
ATTENTION_NIGHTS = 3
MODELS = tuple(f"model-{number}" for number in range(20))  # of translation
TEXTS = 200_000
RANKERS = ("ridge", "boosting", "blend", "dtml")

# Tables of a connection, which the parts of ten_years.sql read.
HELPERS = sa.MetaData()
STOCK = sa.Table(
    "stock",
    HELPERS,
    sa.Column("symbol", sa.Text),
    sa.Column("kind", sa.Text),
    prefixes=["temporary"],
)
LEVEL = sa.Table("levels", HELPERS, sa.Column("level", sa.Float), prefixes=["temporary"])
PREDICTOR = sa.Table(
    "predictors",
    HELPERS,
    sa.Column("name", sa.Text),
    sa.Column("ranker", sa.Boolean),
    sa.Column("directions", sa.Boolean),
    sa.Column("ranks", sa.Boolean),
    prefixes=["temporary"],
)
DAY = sa.Table(
    "day",
    HELPERS,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("as_of", sa.Date),
    sa.Column("target", sa.Date),
    sa.Column("evening", UtcTimestamp),  # of as_of, 22:00
    sa.Column("late", UtcTimestamp),
    sa.Column("target_evening", UtcTimestamp),
    sa.Column("target_late", UtcTimestamp),
    prefixes=["temporary"],
)


def run_name(market: str, day: pd.Timestamp) -> str:
    """Return the name of the model trained on a day."""
    return f"{market}-{day:%Y%m%d}-1a2b3c4d"


@cache
def parts() -> Mapping[str, list[str]]:
    """Return the statements of each part of ten_years.sql."""
    text = Path(__file__).with_name("ten_years.sql").read_text(encoding="utf-8")
    _, *sections = text.split("-- part: ")
    found = {}
    for section in sections:
        name, _, body = section.partition("\n")
        found[name] = [statement for statement in body.split(";") if statement.strip()]
    return found


def write(conn: Connection, names: str, **given: object) -> None:
    """Run parts of ten_years.sql, named in one text with commas between them."""
    for name in names.split(", "):
        for statement in parts()[name]:
            conn.execute(sa.text(statement), given)


def write_helpers(conn: Connection, days: pd.DatetimeIndex) -> None:
    """Make the tables of a connection that the other parts read."""
    HELPERS.create_all(conn)
    symbols = [{"symbol": symbol, "kind": "stock"} for symbol in STOCKS]
    conn.execute(STOCK.insert(), [*symbols, {"symbol": "INDEX", "kind": "index"}])
    conn.execute(LEVEL.insert(), [{"level": level} for level in LEVELS])
    predictors = [
        {
            "name": name,
            "ranker": name in RANKERS,
            "directions": name in ("dtml", *NAIVE_RULES),
            "ranks": name in (*RANKERS, *RULES),
        }
        for name in dict.fromkeys((*RANKERS, *NAIVE_RULES, *RULES))
    ]
    conn.execute(PREDICTOR.insert(), predictors)
    evenings = list(days.tz_localize("UTC") + pd.Timedelta(hours=22))
    hour = timedelta(hours=1)
    nights = [
        {
            "number": number,
            "as_of": days[number].date(),
            "target": days[number + 1].date(),
            "evening": evenings[number],
            "late": evenings[number] + hour,
            "target_evening": evenings[number + 1],
            "target_late": evenings[number + 1] + hour,
        }
        for number in range(len(days) - 1)
    ]
    conn.execute(DAY.insert(), nights)
    write(conn, "helpers")


@dataclass(frozen=True)
class TenYears:
    """The days of a store: a night has the bars up to `days[i]` and predicts `days[i + 1]`."""

    days: pd.DatetimeIndex

    @classmethod
    def of(cls, predictions: int) -> "TenYears":
        """Return the days for so many predictions, the last of them 30 June 2025."""
        nights = max(predictions // (len(MARKETS) * len(STOCKS)), ATTENTION_NIGHTS)
        return cls(pd.bdate_range(end="2025-06-30", periods=nights + 1))

    @property
    def nights(self) -> int:
        """Return the number of nights."""
        return len(self.days) - 1

    @property
    def starts(self) -> range:
        """Return the place of each model's first night."""
        return range(0, self.nights, RETRAIN_EVERY)

    def attended(self) -> pd.DatetimeIndex:
        """Return the predicted sessions with stored attention, in the backtest's market."""
        return self.days[-ATTENTION_NIGHTS:]

    def fill(self, engine: Engine) -> None:
        """Write all of it into an empty store."""
        with engine.connect() as conn:
            write_helpers(conn, self.days)
            for market in MARKETS:
                write(conn, "stocks", market=market)
            for start, market in product(self.starts, MARKETS):
                self._write_nights(conn, market, start)
                conn.commit()
            self._write_backtest(conn)
            write(conn, "benchmarks, translations", market=BACKTEST_MARKET, texts=TEXTS)
            conn.commit()

    def _write_nights(self, conn: Connection, market: str, start: int) -> None:
        names = "predictions, evidence, bars, scores of rankings, log"
        if market == BACKTEST_MARKET:
            names += ", attention"
        if start // RETRAIN_EVERY in SPLIT_AT:
            names += ", restated bars"
        if start == self.starts[-1]:  # the rankings of all models would fill a disk
            names += ", rankings"
        stop = min(start + RETRAIN_EVERY, self.nights)
        run = run_name(market, self.days[start])
        write(conn, names, market=market, run=run, kind="nightly", first=start, stop=stop)

    def _write_backtest(self, conn: Connection) -> None:
        """Write a backtest of the last nights, and every pair of attention of the very last."""
        begin = max(self.nights - BACKTEST_NIGHTS, 0)
        end = {"market": BACKTEST_MARKET, "stop": self.nights}
        write(conn, "backtest", first=begin, **end)
        run = ""
        for fold, start in enumerate(range(begin, self.nights, RETRAIN_EVERY), start=1):
            run = f"backtest-{fold}"
            given = {"run": run, "kind": "backtest", "fold": fold, "market": BACKTEST_MARKET}
            given |= {"first": start, "stop": min(start + RETRAIN_EVERY, self.nights)}
            write(conn, "predictions, fold", **given)
        write(conn, "every pair of attention", run=run, first=self.nights - ATTENTION_NIGHTS, **end)
