"""A small store that is sound and has rows in every table, some with values
that are awkward to copy.
"""

import hashlib
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from db import tables
from db.admin.copying import table_counts
from db.connection.bulk import insert_frame
from db.engine import location, open_engine, reading, transaction, upgrade
from db.rows import (
    backtests,
    fetches,
    markets,
    nights,
    prices,
    rankings,
    translations,
)
from db.save import save
from tests.support.backtest_rows import COUNTS, attention, backtest, fold, portfolios, returns
from tests.support.backtest_rows import NAME as BACKTEST
from tests.support.backtest_rows import scores as backtest_scores
from tests.support.benchmark_rows import (
    benchmark,
    rank_scores,
    ranker,
    ranking,
    ranking_differences,
    ranking_portfolios,
    ranking_scores,
    seeds_of_models,
)
from tests.support.benchmark_rows import scores as benchmark_scores
from tests.support.night_rows import store_night
from tests.support.prediction_rows import AS_OF, STOCKS, TARGET, predictions, run, scores
from tests.support.run_folder import made_once
from tests.support.translation_rows import model, progress, score

FIRST = "models/first.safetensors"
WEIGHTS = b"weights of the first run"
MOMENT = datetime(2024, 1, 5, 2, 30, 0, 7, tzinfo=UTC)
GAP = {"symbol": "Ünïcode", "reason": "no bar: 'quoted', \"twice\", \\ and\ttab"}
# Text in an order that a language would not give it, and with all that COPY, CSV and SQL give a
# meaning.
TEXTS = [
    "Zebra",
    "apple",
    "Äpfel",
    "a\tb",
    "a\nb",
    "back\\slash",
    "\\N",
    "it's",
    '"q"',
    "100 %s :x",
    "日本",
    "{}",
]
# The smallest and the largest number, one that no short decimal gives, and one that is whole.
NUMBERS = [5e-324, 1.7976931348623157e308, 0.1 + 0.2, 3.0]


def fill(engine: Engine) -> None:
    """Rows in every table; on SQLite copied from a store that is filled once for a test run."""
    if engine.dialect.name == "postgresql":
        _fill(engine)
        return
    kept = made_once("filled", _filled_store) / "store.sqlite"
    with (
        closing(sqlite3.connect(kept)) as made,
        closing(sqlite3.connect(str(engine.url.database))) as own,
    ):
        made.backup(own)


def _filled_store(folder: Path) -> None:
    engine = open_engine(f"sqlite:///{folder}/store.sqlite")
    upgrade(engine)
    _fill(engine)
    engine.dispose()


def _fill(engine: Engine) -> None:
    with transaction(engine) as conn:
        _fill_market(conn)
        _fill_backtests_and_benchmarks(conn)
        save(
            conn,
            "score",
            scores(1.0).assign(n=3, nights=1, rises=1, predicted_rises=2),
            market="toy",
            scored_at=MOMENT,
        )
        store_night(
            conn,
            "toy",
            AS_OF.date(),
            target=TARGET.date(),
            at=MOMENT,
            status="complete_with_gaps",
            run_id="first",
            counts={"fetched": 7, "stored": 5, "rejected": 2, "predictions": len(STOCKS)},
            gaps=[GAP],
            known_at=MOMENT,
        )
        counts = dict.fromkeys(("asked", "fetched", "stored", "rejected"), 2)
        fetched = {"market": "toy", "known_at": MOMENT, "as_of": AS_OF.date(), "source": "files"}
        save(conn, "price_fetch", fetched | counts | {"restated": ["A"], "failures": []})
        stage = ("toy", AS_OF.date(), "fetch")
        nights.start_stage(conn, *stage, started_at=MOMENT)
        nights.finish_stage(conn, *stage, status="done", seconds=NUMBERS[2])
        drift = {
            "measure": ["z_open", "coverage"],
            "value": NUMBERS[2],
            "expected": 0.5,
            "evidence": 3.5,
            "needed": 3.0,
        }
        save(
            conn,
            "night_drift",
            pd.DataFrame(drift).assign(drifted=[True, False]),
            market="toy",
            as_of=AS_OF.date(),
        )
        _fill_evidence(conn)
        _fill_translations(conn)
        save(
            conn,
            "alert",
            {
                "market": "toy",
                "as_of": AS_OF.date(),
                "kind": "late",
                "message": TEXTS[3],
                "raised_at": MOMENT,
            },
        )


def _fill_market(conn: Connection) -> None:
    named = [*STOCKS, GAP["symbol"], *TEXTS]
    stocks = pd.DataFrame(
        {"symbol": named, "kind": "stock", "source_symbol": named, "name": None, "sector": "Tin"}
    )
    save(conn, "instrument", stocks, market="toy")
    stays = pd.DataFrame(
        {"symbol": STOCKS, "valid_from": pd.NaT, "valid_to": TARGET, "source": "a list"}
    )
    markets.save_constituents(conn, "toy", stays)
    save(
        conn,
        "market_file",
        {
            "market": "toy",
            "path": "/markets/toy.toml",
            "text": 'title = "Toy"\n',
            "saved_at": MOMENT,
        },
    )
    bars = pd.DataFrame(
        {"symbol": "A", "session": pd.date_range("2024-01-02", periods=4), "volume": NUMBERS}
    )
    bars = bars.assign(**dict.fromkeys(("open", "high", "low", "close"), NUMBERS))
    bars = bars.assign(adj_close=np.nan, dividend=0.0, split=np.nan)
    prices.append_prices(conn, "toy", bars, source="files", known_at=MOMENT)
    rejected = pd.DataFrame({"symbol": "A", "session": TARGET, "reason": TEXTS, "value": TEXTS})
    save(conn, "rejected_bar", rejected, market="toy", source="files", first_known_at=MOMENT)
    doubtful = pd.DataFrame({"symbol": "A", "reason": TEXTS, "value": TEXTS})
    prices.record_warnings(conn, "toy", ["A"], doubtful, known_at=MOMENT)
    differing = pd.DataFrame(
        {
            "symbol": "A",
            "session": TARGET,
            "field": ["close", "bar", "volume"],
            "first_value": [NUMBERS[0], 1.0, np.nan],
            "second_value": [NUMBERS[1], np.nan, NUMBERS[2]],
            "difference": [NUMBERS[2], np.nan, np.nan],
        }
    )
    counts = dict.fromkeys(("symbols", "bars", "differing"), 2)
    compared = {"market": "toy", "known_at": MOMENT, "as_of": AS_OF.date(), "source": "files"}
    unanswered = [{"symbol": TEXTS[2], "status": "no_data", "detail": TEXTS[3]}]
    words = {"failures": unanswered, "failure": TEXTS[5]}
    fetches.save_comparison(conn, compared | counts | words, differing)
    happened = pd.DataFrame(
        {"symbol": STOCKS, "session": TARGET, "realised_return": [-0.01, 0.0, 0.02]}
    )
    happened = happened.assign(rise=happened["realised_return"] > 0, label=[-1, 0, 1])
    save(conn, "outcome", happened, market="toy", known_at=MOMENT, recorded_at=MOMENT)


def _fill_backtests_and_benchmarks(conn: Connection) -> None:
    """The run of the night has a checkpoint, the other none: the store need not
    know where weights lie.
    """
    kept = {"checkpoint_path": FIRST, "checkpoint_hash": hashlib.sha256(WEIGHTS).hexdigest()}
    save(conn, "run", run(**kept, config={"window": 3, "words": TEXTS}))
    save(conn, "run", run("trees", kind="benchmark", checkpoint_path=None, checkpoint_hash=None))
    save(conn, "prediction", predictions(), market="toy", known_at=MOMENT, made_at=MOMENT)
    backtests.save_benchmark(conn, benchmark(), benchmark_scores(), seeds_of_models())
    rankings.save_ranking(
        conn, ranking(), ranking_scores(), ranking_differences(), ranking_portfolios()
    )
    save(conn, "ranker", ranker(**kept))
    order = pd.DataFrame(
        {"symbol": STOCKS, "score": NUMBERS[:3], "place": [1, 2, 3], "probability": [0.6, 0.5, 0.4]}
    )
    order = order.assign(
        ranker_id=ranker()["id"], predictor="ridge", as_of=AS_OF, target=TARGET, chosen=True
    )
    save(conn, "stock_rank", order, market="toy", known_at=MOMENT, made_at=MOMENT)
    save(conn, "rank_score", rank_scores(), market="toy", scored_at=MOMENT)
    evidence = {
        "predictor": "ridge",
        "replaced": "blend",
        "nights": 25,
        "gain": 0.0125,
        "stake": 61.5,
        "needed": 60.0,
    }
    save(conn, "champion", {"market": "toy", "since": TARGET, "decided_at": MOMENT} | evidence)
    held = pd.DataFrame({"symbol": STOCKS[:2], "weight": [0.1 + 0.2, 0.5]})
    save(
        conn,
        "target_position",
        held.assign(target=TARGET, kept=[True, False]),
        market="toy",
        decided_at=MOMENT,
    )
    earned = {
        "session": TARGET,
        "gross": NUMBERS[2],
        "turnover": 0.3,
        "cost": 0.001,
        "net": -0.1,
        "equity": 0.9,
    }
    names = pd.DataFrame({"portfolio": ["account", "account, no costs", "equal parts", "index"]})
    save(conn, "paper_return", names.assign(**earned), market="toy") + save(
        conn, "paper_position", held.assign(session=TARGET), market="toy"
    )
    save(conn, "backtest", backtest())
    save(conn, "backtest_fold", fold(), backtest_id=BACKTEST)
    figures = {
        "scores": backtest_scores(),
        "returns": returns(),
        "portfolios": portfolios(),
        "counts": COUNTS,
    }
    backtests.finish_backtest(conn, BACKTEST, finished_at=MOMENT, seconds=97.5, **figures)
    save(conn, "attention_weight", attention(), market="toy")


def _fill_evidence(conn: Connection) -> None:
    """What the night of `first` can be judged by."""
    band = {"level": [0.8], "threshold": [0.1 + 0.5], "days": 7, "n": 21, "is_default": False}
    save(conn, "abstention_band", pd.DataFrame(band), run_id="first")
    night = pd.DataFrame({"run_id": ["first"], "target": TARGET})
    save(conn, "calibration_bin", night.assign(bin=25, n=3, probability_sum=NUMBERS[2], rises=1))
    save(
        conn,
        "abstention_count",
        night.assign(level=0.8, n=3, covered=2, decided=2, decided_correct=1),
    )
    rules = {"always_up": True, "index_reversal": False, "index_below_mean20": None}
    save(
        conn,
        "rule_direction",
        pd.DataFrame({"target": [TARGET], "as_of": AS_OF} | rules),
        market="toy",
    )


def _fill_translations(conn: Connection) -> None:
    """Texts of every status, one of them queued by a user's own SQL."""
    translations.save_model(conn, model(config={"layers": 6, "words": TEXTS}))
    save(conn, "translation_progress", [progress(100), progress(200, validation_bleu=NUMBERS[2])])
    translations.save_score(conn, score())
    translations.save_score(conn, score(against="other", difference=NUMBERS[2], p=NUMBERS[0]))
    done, failed, taken, *_queued = translations.queue_texts(conn, "en-de", TEXTS)
    held = {"status": "taken", "taken_by": "a worker", "taken_until": MOMENT, "attempts": 1}
    texts = tables.translation_text
    conn.execute(sa.update(texts).where(texts.c.id.in_([done, failed, taken])).values(held))
    written = {
        "id": done,
        "translation": TEXTS[4],
        "score": -NUMBERS[2],
        "attention": [[NUMBERS[0], NUMBERS[2]]],
    }
    translations.finish_texts(conn, "a worker", [written])
    translations.fail_texts(conn, "a worker", [failed], TEXTS[3])
    conn.exec_driver_sql("insert into translation_text (model, text) values ('en-fr', 'A dog.')")


def keep_weights(folder: Path) -> Path:
    """The checkpoint of the run of `fill`, in its place below a data folder."""
    file = folder / FIRST
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(WEIGHTS)
    return file


def add_predictions(engine: Engine, count: int) -> None:
    """That many more predictions of the run of `fill`, of its stocks and later sessions."""
    with transaction(engine) as conn:
        ids = conn.execute(
            sa.select(tables.instrument.c.id).where(tables.instrument.c.symbol.in_(STOCKS))
        ).scalars()
        targets = pd.bdate_range("2024-01-08", periods=-(-count // len(STOCKS)))
        keys = pd.MultiIndex.from_product([targets, list(ids)], names=["target", "instrument_id"])
        frame = keys.to_frame(index=False).head(count)
        frame["probability"] = np.random.default_rng(17).random(count)
        frame = frame.assign(
            run_id="first", as_of=AS_OF, probability_std=np.nan, known_at=MOMENT, made_at=MOMENT
        )
        insert_frame(conn, tables.prediction, frame)


def contents(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, as Python values, in the order of its key,
    strings by their characters.
    """
    found = {}
    with reading(engine) as conn:
        for table in tables.metadata.sorted_tables:
            rows = [tuple(each) for each in conn.execute(sa.select(table))]
            found[table.name] = sorted(rows, key=lambda row: [repr(value) for value in row])
    assert all(found.values()), f"a table of {location(engine)} has no row"
    return found


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def rows(url: str) -> int:
    with reading(open_engine(url)) as conn:
        return sum(table_counts(conn).values())
