"""What a view reads for one night or one stock does not grow with the nights or
the stocks beside it.
"""

import sqlite3
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine, text

from db.engine import open_engine, transaction, upgrade
from db.rows import nights as stored_nights
from db.rows import prices
from db.save import save
from db.tables import BAR_VALUES
from tests.support.prediction_rows import NOW, run

FEW, MANY = 10, 80
LAST = pd.Timestamp("2024-06-28")
FIGURES = {"n": 3, "nights": 1, "rises": 1, "predicted_rises": 2, "acc": 0.5, "mcc": 0.0}


def store(file: Path, *, stocks: int, nights: int) -> sqlite3.Connection:
    """The market of `fill` in a file."""
    engine = open_engine(f"sqlite:///{file}")
    upgrade(engine)
    fill(engine, stocks=stocks, nights=nights)
    engine.dispose()
    return sqlite3.connect(file)


def fill(engine: Engine, *, stocks: int, nights: int) -> None:
    """A market of S0, S1, ..., each with as many nights up to LAST and two
    versions of every bar.
    """
    symbols = [f"S{number}" for number in range(stocks)]
    days = pd.bdate_range(end=LAST, periods=nights + 1)
    rows = pd.MultiIndex.from_product(
        [range(1, nights + 1), symbols], names=["night", "symbol"]
    ).to_frame(index=False)
    night = rows.pop("night")
    made = rows.assign(
        run_id="first",
        as_of=days[night - 1],
        target=days[night],
        probability=0.5,
        probability_std=0.0,
    )
    returns = rows.assign(session=made["target"], realised_return=0.01, rise=True, label=1)
    bars = returns[["symbol", "session"]].reindex(columns=["symbol", "session", *BAR_VALUES])
    refused = bars[["symbol", "session"]].assign(reason="null_price", value="close=nan")
    spans = pd.DataFrame({"target": days[1:]}).merge(
        pd.DataFrame({"span": ["night", "running"]}), how="cross"
    )
    scores = spans.assign(
        protocol="all", predictor="dtml", acc_low=np.nan, acc_high=np.nan, mcc_low=np.nan
    )
    named = pd.DataFrame({"symbol": symbols, "source_symbol": symbols}).assign(
        kind="stock", name=None, sector=None
    )
    with transaction(engine) as conn:
        save(conn, "instrument", named, market="toy")
        save(conn, "run", run())
        save(conn, "prediction", made, market="toy", known_at=NOW, made_at=NOW)
        save(conn, "outcome", returns, market="toy", known_at=NOW, recorded_at=NOW)
        for version in (1, 2):
            known_at = NOW + pd.Timedelta(days=version)
            prices.append_prices(
                conn, "toy", bars.assign(close=version), source="files", known_at=known_at
            )
        save(conn, "rejected_bar", refused, market="toy", source="files", first_known_at=NOW)
        save(conn, "score", scores.assign(mcc_high=np.nan, **FIGURES), market="toy", scored_at=NOW)
        looks = made.loc[made["symbol"] == "S0", ["run_id", "target", "symbol"]].assign(
            source="S1", weight=1.0
        )
        save(conn, "attention_weight", looks, market="toy")
        for seen, target in pairwise(days):
            stored_nights.start_night(
                conn, "toy", seen.date(), target=target.date(), source="files", started_at=NOW
            )


def steps(conn: sqlite3.Connection, sql: str) -> int:
    """The instructions that SQLite's machine takes for rows that must be there."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    assert conn.execute(sql).fetchall()  # the first query of a connection reads the schema as well
    conn.set_progress_handler(count, 1)
    conn.execute(sql).fetchall()
    conn.set_progress_handler(None, 0)
    return taken


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    return store(tmp_path_factory.mktemp("few") / "store.sqlite", stocks=FEW, nights=FEW)


@pytest.fixture(scope="module")
def more_nights(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    return store(tmp_path_factory.mktemp("nights") / "store.sqlite", stocks=FEW, nights=MANY)


@pytest.fixture(scope="module")
def more_stocks(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    return store(tmp_path_factory.mktemp("stocks") / "store.sqlite", stocks=MANY, nights=FEW)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "night"),
    [
        ("latest_prediction", "1 = 1"),
        ("latest_prediction", "symbol = 'S1'"),
        ("prediction_history", "target = '2024-06-28'"),
        ("prediction_history", "as_of = '2024-06-27'"),
        ("daily_score", "target = '2024-06-28'"),
        ("price_latest", "session = '2024-06-28'"),
        ("price_restatement", "session = '2024-06-28'"),
        ("rejected", "session = '2024-06-28'"),
        ("night_log", "as_of = '2024-06-27'"),
        ("attention", "target = '2024-06-28'"),
    ],
)
def test_one_night_takes_no_longer_after_many_nights(
    few: sqlite3.Connection, more_nights: sqlite3.Connection, view: str, night: str
) -> None:
    sql = f"select * from {view} where market = 'toy' and {night}"
    assert steps(more_nights, sql) < 1.5 * steps(few, sql)


@pytest.mark.slow
@pytest.mark.parametrize(
    "view", ["prediction_history", "price_latest", "price_restatement", "rejected", "attention"]
)
def test_one_stock_takes_no_longer_beside_many_stocks(
    few: sqlite3.Connection, more_stocks: sqlite3.Connection, view: str
) -> None:
    sql = f"select * from {view} where market = 'toy' and symbol = 'S0'"
    assert steps(more_stocks, sql) < 1.5 * steps(few, sql)


@pytest.mark.one_case
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("view", "indexes"),
    [
        ("prediction_history", {"ix_prediction_instrument_id_target", "pk_outcome"}),
        ("price_latest", {"pk_price"}),
        ("price_restatement", {"pk_price"}),
    ],
)
def test_postgresql_finds_one_stock_in_indexes_alone(
    engine: Engine, view: str, indexes: set[str]
) -> None:
    fill(engine, stocks=MANY, nights=MANY)
    sql = f"explain select * from {view} where market = 'toy' and symbol = 'S0'"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("vacuum (analyze) prediction, outcome, price"))
        # of so few rows, reading them all would be the quickest
        conn.execute(text("set enable_seqscan = off"))
        conn.execute(text("set enable_bitmapscan = off"))
        plan = "\n".join(conn.execute(text(sql)).scalars())
    for index in indexes:
        assert f"Index Only Scan using {index} " in plan, plan
