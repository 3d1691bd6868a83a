"""Time each documented view for one symbol or one night, over ten million predictions.

`python -m benchmarks.view_latency`: fills a store of each engine with ten years of nights (20
minutes and 6 GB each), then times queries, pages and nights that are stored; `--predictions
1000000` makes it a tenth, `--engine sqlite` does one engine. Exit 1 when a limit is missed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Engine, text

from benchmarks.pages import time_pages
from benchmarks.store_loading import postgresql
from benchmarks.ten_year_rows import STOCKS, moment, run_name
from benchmarks.ten_year_store import BACKTEST_MARKET, MARKETS, RESTATED, TenYears
from benchmarks.translation_rows import MODELS, TEXTS, write_translations
from db.admin.copying import table_counts
from db.connection.user_sql import select
from db.engine import open_engine, reading, transaction, upgrade
from db.read import read
from db.rows import nights as stored_nights
from db.save import save
from db.views import views as documented_views
from dtml.baselines.naive_rules import NAIVE_RULES

DRAWS = 200
VIEW_LIMIT_MS = 50.0
NIGHT_LIMIT_MS = 100.0
PAGE_LIMIT_MS = 1000.0
STORED_NIGHTS = 10  # of each market
RANDOM = np.random.default_rng(7)

# Returns a random condition of SQL on the rows of a history.
Draw = Callable[[TenYears], str]


@dataclass(frozen=True)
class Question:
    """A query that a user would type: its view, what it is about, and a draw of its condition."""

    view: str
    about: str
    condition: Draw


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for each engine and whether both limits hold."""
    options = _arguments(arguments)
    history = TenYears.of(options.predictions)
    verdicts = []
    if options.engine in ("sqlite", "both"):
        with tempfile.TemporaryDirectory() as folder:
            verdicts.append(measure(f"sqlite:///{folder}/store.sqlite", history))
    if options.engine in ("postgresql", "both"):
        with postgresql() as server:
            verdicts.append(measure(server.render_as_string(hide_password=False), history))
    if not all(verdicts):
        sys.exit(1)


def measure(url: str, history: TenYears) -> bool:
    """Fill the store at a URL, and print the times of queries and writes.

    Returns whether all are within their limits.
    """
    engine = open_engine(url)
    upgrade(engine)
    start = time.perf_counter()
    history.fill(engine)
    with transaction(engine) as conn:
        write_translations(conn)
    seconds = time.perf_counter() - start
    _settle(engine)
    with reading(engine) as conn:
        counts = table_counts(conn)
    rows = ", ".join(
        f"{counts[name]:,} {name}" for name in ("prediction", "outcome", "price", "score")
    )
    print(
        f"{engine.dialect.name}: {rows} rows, {_gigabytes(engine):.1f} GB, "
        f"filled in {seconds:.0f} s"
    )
    views = time_views(url, history, [*QUESTIONS, *_other_questions()])
    unlimited = time_views(url, history, [EVERY_PAIR], draws=10)
    nights = time_nights(engine, history)
    engine.dispose()
    lines = pd.concat([views, nights, unlimited])
    print(lines.to_string(index=False, float_format="{:.1f}".format))
    pages = time_pages(url, history)
    print(pages.to_string(index=False, float_format="{:.0f}".format))
    verdicts = [
        _verdict("the first page of `dtml dashboard`", pages["first ms"].iloc[0], PAGE_LIMIT_MS),
        _verdict(
            "95 of 100 views for one symbol or one night", views["p95 ms"].max(), VIEW_LIMIT_MS
        ),
        _verdict("95 of 100 nights of 400 stocks stored", nights["p95 ms"].iloc[0], NIGHT_LIMIT_MS),
    ]
    return all(verdicts)


def time_views(
    url: str, history: TenYears, questions: Sequence[Question], draws: int = DRAWS
) -> pd.DataFrame:
    """Return a line for each question, asked many times.

    The store is opened read only, as `dtml query` opens it.
    """
    engine = open_engine(url, read_only=True)
    lines = []
    for question in questions:
        queries = [
            f"select * from {question.view} where {question.condition(history)}"  # noqa: S608
            for _ in range(draws)
        ]
        # The first answers read their pages from the disk: only the very first is reported.
        cold_answers = [_timed(_ask, engine, sql) for sql in queries]
        warm_answers = [_timed(_ask, engine, sql) for sql in queries]
        lines.append(_line(question.view, question.about, [cold_answers[0], *warm_answers]))
    engine.dispose()
    return pd.DataFrame(lines)


def time_nights(engine: Engine, history: TenYears) -> pd.DataFrame:
    """Time the storing of a night in one transaction, and the reading of a night back."""
    writes = [_timed(_store_night, engine, *night) for night in _new_nights(engine, history)]
    days = history.days[1:]
    reads = [_timed(_read_night, engine, _one(MARKETS), _one(days)) for _ in range(DRAWS + 1)]
    lines = [
        _line("prediction", "store a night", writes),
        _line("prediction", "read a night", reads),
    ]
    return pd.DataFrame(lines)


def _new_nights(
    engine: Engine, history: TenYears
) -> Iterator[tuple[str, str, pd.DataFrame, pd.DataFrame]]:
    """Yield nights after the last one of each market, each started as the product starts it.

    A night is its market, its model, its predictions and its attention.
    """
    days = pd.bdate_range(history.days[-1], periods=STORED_NIGHTS + 1)
    for as_of, target in pairwise(days):
        for market in MARKETS:
            with transaction(engine) as conn:
                stored_nights.start_night(
                    conn,
                    market,
                    as_of.date(),
                    target=target.date(),
                    source="yahoo",
                    started_at=moment(as_of).to_pydatetime(),
                )
            chances = RANDOM.beta(200, 200, len(STOCKS))
            run_id = run_name(market, history.days[history.starts[-1]])
            night = pd.DataFrame(
                {
                    "run_id": run_id,
                    "as_of": as_of,
                    "target": target,
                    "symbol": STOCKS,
                    "probability": chances,
                    "probability_std": chances / 50,
                    "calibrated": chances,
                    "lowest": chances,
                    "highest": chances,
                    "rising_share": 0.5,
                }
            )
            keys = night[["run_id", "target", "symbol"]]
            looks = [keys.assign(source=np.roll(STOCKS, step), weight=0.1) for step in (1, 2, 3)]
            yield market, run_id, night, pd.concat(looks, ignore_index=True)


def _ask(engine: Engine, sql: str) -> int:
    return len(select(engine, sql, is_trusted=True))


def _store_night(
    engine: Engine, market: str, run_id: str, night: pd.DataFrame, looks: pd.DataFrame
) -> int:
    """Store what a night predicted, and finish it; return how many predictions were new."""
    as_of = night["as_of"].iloc[0]
    now = moment(as_of).to_pydatetime()
    counts = {"fetched": 4000, "stored": 400, "rejected": 0, "predictions": len(night)}
    rules = night[["as_of", "target"]].head(1).assign(**dict.fromkeys(NAIVE_RULES, True))
    with transaction(engine) as conn:
        new = save(conn, "prediction", night, market=market, known_at=now, made_at=now)
        save(conn, "attention_weight", looks, market=market)
        save(conn, "rule_direction", rules, market=market)
        stored_nights.finish_night(
            conn,
            market,
            as_of.date(),
            status="complete",
            finished_at=now,
            counts=counts,
            gaps=[],
            run_id=run_id,
            known_at=now,
            inputs_hash="0" * 64,
        )
    return new


def _read_night(engine: Engine, market: str, target: pd.Timestamp) -> int:
    with reading(engine) as conn:
        return len(
            read(
                conn,
                "prediction",
                market=market,
                target=target.date(),
                order="target, symbol, made_at",
            )
        )


def _settle(engine: Engine) -> None:
    """Vacuum PostgreSQL's tables, as autovacuum does after a while; SQLite needs no such care."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.execute(text("vacuum (analyze)"))


def _gigabytes(engine: Engine) -> float:
    size = "select pg_database_size(current_database())"
    if engine.dialect.name == "sqlite":
        size = "select page_count * page_size from pragma_page_count(), pragma_page_size()"
    with reading(engine) as conn:
        return float(conn.execute(text(size)).scalar_one()) / 1e9


def _timed(work: Callable[..., int], *arguments: Any) -> tuple[float, int]:
    """Return the milliseconds of a call, and the number of rows that it returns."""
    start = time.perf_counter()
    rows = work(*arguments)
    return 1000 * (time.perf_counter() - start), rows


def _line(what: str, about: str, answers: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Return the time of the first answer, and the percentiles of all others."""
    times = np.array([milliseconds for milliseconds, _ in answers])
    rows = np.array([row_count for _, row_count in answers])
    p50, p95 = np.percentile(times[1:], [50, 95])
    return {
        "what": what,
        "for": about,
        "rows": int(np.median(rows[1:])),
        "first ms": times[0],
        "p50 ms": p50,
        "p95 ms": p95,
    }


def _verdict(what: str, worst: float, limit: float) -> bool:
    """Print whether the worst time is under its limit, and return it."""
    is_within = bool(worst < limit)
    print(f"{what} under {limit:.0f} ms: {'yes' if is_within else 'no'} ({worst:.1f} ms)")
    return is_within


def _one(choices: Sequence[Any] | pd.DatetimeIndex) -> Any:
    """Return a random choice."""
    return choices[int(RANDOM.integers(len(choices)))]


def _stock(markets: Sequence[str] = MARKETS, symbols: Sequence[str] = STOCKS) -> Draw:
    return lambda _history: f"market = '{_one(markets)}' and symbol = '{_one(symbols)}'"


def _day(column: str) -> Draw:
    # The first day is no target, and the last one no as_of.
    days_of_column = slice(1, None) if column == "target" else slice(-1)

    def condition(history: TenYears) -> str:
        market = _one(MARKETS)
        day = _one(history.days[days_of_column])
        return f"market = '{market}' and {column} = '{day:%Y-%m-%d}'"

    return condition


def _attended(history: TenYears) -> str:
    target = _one(history.attended())
    return f"market = '{BACKTEST_MARKET}' and target = '{target:%Y-%m-%d}'"


def _other_questions() -> list[Question]:
    """Return a question to each view that QUESTIONS leaves out."""
    known_views = {question.view for question in QUESTIONS}
    questions = []
    for name, view in documented_views().items():
        if name not in known_views:
            condition = _market if "market" in view.meanings() else _whole
            questions.append(Question(view=name, about="a market", condition=condition))
    return questions


def _market(_history: TenYears) -> str:
    return f"market = '{_one(MARKETS)}'"


def _whole(_history: TenYears) -> str:
    return "1 = 1"


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictions", type=int, default=10_000_000)
    parser.add_argument("--engine", choices=["sqlite", "postgresql", "both"], default="both")
    return parser.parse_args(arguments)


QUESTIONS = (
    Question("latest_prediction", "a symbol", _stock()),
    Question("latest_prediction", "the newest night", _market),
    Question("prediction_history", "a symbol", _stock()),
    Question("prediction_history", "a symbol of a backtest too", _stock([BACKTEST_MARKET])),
    Question("prediction_history", "a night by target", _day("target")),
    Question("prediction_history", "a night by as_of", _day("as_of")),
    Question("daily_score", "a night", _day("target")),
    Question("price_latest", "a symbol", _stock()),
    Question("price_latest", "a restated symbol", _stock(symbols=RESTATED)),
    Question("price_latest", "a session", _day("session")),
    Question("price_restatement", "a restated symbol", _stock(symbols=RESTATED)),
    Question("price_restatement", "a session", _day("session")),
    Question("rejected", "a symbol", _stock()),
    Question("rejected", "a session", _day("session")),
    Question("ranking_history", "a symbol", _stock()),
    Question("ranking_history", "a night", _day("target")),
    Question("rank_score_log", "a night", _day("target")),
    Question("night_log", "a night by as_of", _day("as_of")),
    Question("night_log", "a night by target", _day("target")),
    Question("run_score", "a market", lambda _history: f"market = '{BACKTEST_MARKET}'"),
    Question(
        "benchmark_configuration", "a market", lambda _history: f"market = '{BACKTEST_MARKET}'"
    ),
    Question("backtest_summary", "a market", lambda _history: f"market = '{BACKTEST_MARKET}'"),
    Question("attention", "a symbol", _stock([BACKTEST_MARKET])),
    Question(
        "attention",
        "a symbol of a night",
        lambda history: f"{_attended(history)} and symbol = '{_one(STOCKS)}'",
    ),
    Question("symbol_score", "a symbol", _stock()),
    Question("symbol_score", "a symbol of a backtest too", _stock([BACKTEST_MARKET])),
    Question("calibration", "a night", _day("target")),
    Question("coverage", "a night", _day("target")),
    Question("disagreement", "a symbol", _stock()),
    Question("disagreement", "a night", _day("target")),
    Question(
        "band_direction",
        "a symbol at a level",
        lambda history: f"{_stock()(history)} and level = 0.8",
    ),
    Question(
        "band_direction",
        "a night at a level",
        lambda history: f"{_day('target')(history)} and level = 0.8",
    ),
    Question("fetch_log", "a night", _day("as_of")),
    Question("alert_log", "a night", _day("as_of")),
    Question("run_log", "a market", _market),
    Question(
        "translation_job", "a text", lambda _history: f"id = {int(RANDOM.integers(TEXTS)) + 1}"
    ),
    Question(
        "translation_job",
        "what waits",
        lambda _history: f"model = '{_one(MODELS)}' and status = 'queued'",
    ),
    *(
        Question(view, "a model", lambda _history: f"model = '{_one(MODELS)}'")
        for view in ("translation_model_log", "translation_score_log", "translation_training")
    ),
)
# 400 stocks look at 400 each: fetching so many rows takes longer than the limit, and nobody reads
# them one by one.
EVERY_PAIR = Question("attention", "every pair of a night", _attended)


if __name__ == "__main__":
    main(sys.argv[1:])
