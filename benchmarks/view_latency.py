"""Time each documented view for one symbol or one night, over ten million predictions.

`python -m benchmarks.view_latency [--engine sqlite postgresql] [--predictions 10000000]
[--draws 200]`: fills a store of each engine with ten years of nights (20 minutes and 6 GB each),
then times queries, nights that are stored, and pages of the dashboard. Exit 1 when a limit is
missed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import Engine, text

from benchmarks.dashboard_load import dashboard_of
from benchmarks.stores import ENGINES, database_on, settle
from benchmarks.ten_year_store import (
    BACKTEST_MARKET,
    MARKETS,
    MODELS,
    RESTATED,
    STOCKS,
    TEXTS,
    TenYears,
    run_name,
)
from db.admin.copying import table_counts
from db.connection.user_sql import select
from db.engine import open_engine, reading, transaction, upgrade
from db.rows import nights as stored_nights
from db.save import save
from db.views import views as documented_views
from dtml.baselines.naive_rules import NAIVE_RULES

VIEW_LIMIT_MS = 50.0
NIGHT_LIMIT_MS = 100.0
PAGE_LIMIT_MS = 1000.0
STORED_NIGHTS = 10  # of each market
PAGES = ("/", "/market/market03", "/market/market03/stock/S007")
RANDOM = np.random.default_rng(7)
SYMBOL = "market = '{market}' and symbol = '{symbol}'"
NIGHT = "market = '{market}' and target = '{target}'"
OF_BACKTEST = f"market = '{BACKTEST_MARKET}'"
ATTENDED = f"{OF_BACKTEST} and target = '{{attended}}'"
# What is asked, its condition, and the views.
QUESTIONS = (
    (
        "a symbol",
        SYMBOL,
        "latest_prediction prediction_history price_latest rejected ranking_history symbol_score "
        "disagreement",
    ),
    (
        "a symbol of a backtest too",
        f"{OF_BACKTEST} and symbol = '{{symbol}}'",
        "prediction_history symbol_score attention",
    ),
    (
        "a restated symbol",
        "market = '{market}' and symbol = '{restated}'",
        "price_latest price_restatement",
    ),
    (
        "a night by target",
        NIGHT,
        "prediction_history daily_score ranking_history rank_score_log night_log calibration "
        "coverage disagreement",
    ),
    (
        "a night by as_of",
        "market = '{market}' and as_of = '{as_of}'",
        "prediction_history night_log fetch_log alert_log",
    ),
    (
        "a session",
        "market = '{market}' and session = '{as_of}'",
        "price_latest price_restatement rejected",
    ),
    ("a symbol at a level", f"{SYMBOL} and level = 0.8", "band_direction"),
    ("a night at a level", f"{NIGHT} and level = 0.8", "band_direction"),
    ("a market", "market = '{market}'", "latest_prediction run_log"),
    ("a market", OF_BACKTEST, "run_score benchmark_configuration backtest_summary"),
    ("a symbol of a night", f"{ATTENDED} and symbol = '{{symbol}}'", "attention"),
    ("a text", "id = {text}", "translation_job"),
    ("what waits", "model = '{model}' and status = 'queued'", "translation_job"),
    (
        "a model",
        "model = '{model}'",
        "translation_model_log translation_score_log translation_training",
    ),
)


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for each engine and whether the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictions", type=int, default=10_000_000)
    parser.add_argument("--draws", type=int, default=200, help="of each question")
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES)
    options = parser.parse_args(arguments)
    history = TenYears.of(options.predictions)
    verdicts = []
    for engine in options.engine:
        with database_on(engine) as url:
            verdicts.append(measure(url, history, options.draws))
    if not all(verdicts):
        sys.exit(1)


def measure(url: str, history: TenYears, draws: int) -> bool:
    """Fill the store at a URL, print times, and return whether all are within their limits."""
    engine = open_engine(url)
    upgrade(engine)
    start = time.perf_counter()
    history.fill(engine)
    seconds = time.perf_counter() - start
    settle(engine)
    with reading(engine) as conn:
        counts = table_counts(conn)
    rows = ", ".join(
        f"{counts[name]:,} {name}" for name in ("prediction", "outcome", "price", "score")
    )
    print(
        f"{engine.dialect.name}: {rows} rows, {_gigabytes(engine):.1f} GB, "
        f"filled in {seconds:.0f} s"
    )
    views = time_views(url, history, draws)
    night = _line("store a night", "400 stocks", list(store_nights(engine, history)))
    engine.dispose()
    pages = time_pages(url)
    for lines in (views, pd.DataFrame([night]), pages):
        print(lines.to_string(index=False, float_format="{:.1f}".format))
    # Nobody reads 400 x 400 pairs of stocks one by one.
    limited = views[views["for"] != "every pair of a night"]
    return all(
        [
            _verdict("the first page of the dashboard", pages["first ms"].iloc[0], PAGE_LIMIT_MS),
            _verdict("95 of 100 answers of a view", limited["p95 ms"].max(), VIEW_LIMIT_MS),
            _verdict("95 of 100 nights stored", night["p95 ms"], NIGHT_LIMIT_MS),
        ]
    )


def time_views(url: str, history: TenYears, draws: int) -> pd.DataFrame:
    """Return a line for each question and view, in a store that is opened read only."""
    asked = [
        (view, about, condition, draws)
        for about, condition, views in QUESTIONS
        for view in views.split()
    ]
    known = {view for view, *_ in asked}
    for name, view in documented_views().items():
        if name not in known:
            condition = "market = '{market}'" if "market" in view.meanings() else "1 = 1"
            asked.append((name, "a market", condition, draws))
    asked.append(("attention", "every pair of a night", ATTENDED, min(draws, 10)))
    engine = open_engine(url, read_only=True)
    lines = []
    for view, about, condition, count in asked:
        queries = [
            f"select * from {view} where {drawn(condition, history)}"  # noqa: S608
            for _ in range(count)
        ]
        # The first answers read their pages from the disk: only the very first is reported.
        cold_answers = [_timed(_ask, engine, sql) for sql in queries]
        warm_answers = [_timed(_ask, engine, sql) for sql in queries]
        lines.append(_line(view, about, [cold_answers[0], *warm_answers]))
    engine.dispose()
    return pd.DataFrame(lines)


def drawn(condition: str, history: TenYears) -> str:
    """Fill a condition with a random choice of each of its values."""
    choices = {
        "market": MARKETS,
        "symbol": STOCKS,
        "restated": RESTATED,
        "as_of": history.days[:-1].strftime("%Y-%m-%d"),
        "target": history.days[1:].strftime("%Y-%m-%d"),
        "attended": history.attended().strftime("%Y-%m-%d"),
        "model": MODELS,
        "text": range(1, TEXTS + 1),
    }
    values = {name: of[int(RANDOM.integers(len(of)))] for name, of in choices.items()}
    return condition.format(**values)


def store_nights(engine: Engine, history: TenYears) -> Iterator[tuple[float, int]]:
    """Store nights after the last one of each market; yield milliseconds and new predictions."""
    days = pd.bdate_range(history.days[-1], periods=STORED_NIGHTS + 1)
    for as_of, target in pairwise(days):
        for market in MARKETS:
            yield _timed(_store_night, engine, history, market, as_of, target)


def _store_night(
    engine: Engine, history: TenYears, market: str, as_of: pd.Timestamp, target: pd.Timestamp
) -> int:
    now = (as_of + pd.Timedelta(hours=22)).tz_localize("UTC").to_pydatetime()
    run_id = run_name(market, history.days[history.starts[-1]])
    night = pd.DataFrame(
        {
            "run_id": run_id,
            "as_of": as_of,
            "target": target,
            "symbol": STOCKS,
            "probability": RANDOM.beta(200, 200, len(STOCKS)),
        }
    ).assign(probability_std=0.01, calibrated=0.5, lowest=0.4, highest=0.6, rising_share=0.5)
    keys = night[["run_id", "target", "symbol"]]
    looks = [keys.assign(source=np.roll(STOCKS, step), weight=0.1) for step in (1, 2, 3)]
    rules = night[["as_of", "target"]].head(1).assign(**dict.fromkeys(NAIVE_RULES, True))
    with transaction(engine) as conn:
        stored_nights.start_night(
            conn, market, as_of.date(), target=target.date(), source="yahoo", started_at=now
        )
        new = save(conn, "prediction", night, market=market, known_at=now, made_at=now)
        save(conn, "attention_weight", pd.concat(looks, ignore_index=True), market=market)
        save(conn, "rule_direction", rules, market=market)
        stored_nights.finish_night(
            conn,
            market,
            as_of.date(),
            status="complete",
            finished_at=now,
            counts={"fetched": 4000, "stored": 400, "rejected": 0, "predictions": len(night)},
            gaps=[],
            run_id=run_id,
            known_at=now,
            inputs_hash="0" * 64,
        )
    return new


def time_pages(url: str) -> pd.DataFrame:
    """Return a line for each page of a dashboard that has just been started."""
    with dashboard_of(url) as (place, _):
        answers = {page: [_timed(_read, place, page) for _ in range(21)] for page in PAGES}
    return pd.DataFrame([_line(page, "a page", times) for page, times in answers.items()])


def _read(place: tuple[str, int], page: str) -> int:
    connection = HTTPConnection(*place)
    connection.request("GET", page)
    answer = connection.getresponse()
    assert answer.status == 200, page
    return len(answer.read())


def _ask(engine: Engine, sql: str) -> int:
    return len(select(engine, sql, is_trusted=True))


def _gigabytes(engine: Engine) -> float:
    size = "select pg_database_size(current_database())"
    if engine.dialect.name == "sqlite":
        size = "select page_count * page_size from pragma_page_count(), pragma_page_size()"
    with reading(engine) as conn:
        return float(conn.execute(text(size)).scalar_one()) / 1e9


def _timed(work: Callable[..., int], *arguments: Any) -> tuple[float, int]:
    """Return the milliseconds of a call, and the number that it returns."""
    start = time.perf_counter()
    count = work(*arguments)
    return 1000 * (time.perf_counter() - start), count


def _line(what: str, about: str, answers: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Return the time of the first answer, and the percentiles of all others."""
    times = np.array([milliseconds for milliseconds, _ in answers])
    p50, p95 = np.percentile(times[1:], [50, 95])
    return {
        "what": what,
        "for": about,
        "size": int(np.median([count for _, count in answers[1:]])),
        "first ms": times[0],
        "p50 ms": p50,
        "p95 ms": p95,
    }


def _verdict(what: str, worst: float, limit: float) -> bool:
    """Print whether the worst time is under its limit, and return it."""
    is_within = bool(worst < limit)
    print(f"{what} under {limit:.0f} ms: {'yes' if is_within else 'no'} ({worst:.1f} ms)")
    return is_within


if __name__ == "__main__":
    main(sys.argv[1:])
