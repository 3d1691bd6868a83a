"""A store of an older dtml keeps every row when it is upgraded, and its foreign keys and views."""

from datetime import UTC, datetime

import pandas as pd
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine
from test_db_predictions import STOCKS, TARGET, predictions, run
from test_db_schema import alembic, tables_and_views

from db import queries, repositories, schema
from db.engine import open_engine, reading, require_current, transaction, upgrade
from db.errors import StoreError
from db.views import VIEW_COLUMNS

NOW = datetime(2024, 1, 5, 2, 30, tzinfo=UTC)
LATER = {"benchmark", "benchmark_score", "benchmark_member", "attention_weight", "backtest", "backtest_fold"}
LATER |= {"backtest_score", "backtest_return", "backtest_portfolio", "price_fetch", "alert"}
LATER |= {"band", "rule_call", "calibration_bin", "band_count", "explanation"}
LATER |= {"translation_model", "translation_progress", "translation_score", "translation_text"}
OLD = sorted(set(schema.metadata.tables) - LATER)
NEWER = {"model", "inputs_hash", "receipt", "slope", "intercept", "calibrated", "lowest", "highest", "rising_share"}
NEWER |= {"always_up", "index_reversal", "index_below_mean20"}  # columns of tables and views that 0004 did not have
ASKED = tuple(
    f"select {', '.join(each for each in VIEW_COLUMNS[view] if each not in NEWER)} from {view} order by run_id, symbol"
    for view in ("latest_prediction", "prediction_history")
)


def fill(conn: Connection) -> None:
    """Two runs with predictions, one of them of a night, as a store at 0004 holds them."""
    stocks = pd.DataFrame({"symbol": STOCKS, "kind": "stock", "source_symbol": STOCKS, "name": None, "sector": "Tin"})
    repositories.save_instruments(conn, "toy", stocks)
    for name in ("first", "second"):
        repositories.save_run(conn, {column: value for column, value in run(name).items() if column not in NEWER})
        repositories.save_predictions(conn, "toy", predictions(name), known_at=NOW, made_at=NOW)
    night = {"market": "toy", "as_of": predictions()["as_of"][0].date(), "target": TARGET.date(), "source": "files"}
    night |= {"status": "complete", "run_id": "first", "started_at": NOW, "finished_at": NOW, "gaps": []}
    conn.execute(sa.insert(schema.night), night | dict.fromkeys(("fetched", "stored", "refused", "predictions"), 3))


def rows(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the tables of 0004, in its columns, and of the views on run."""
    with reading(engine) as conn:
        kept = {name: [each.name for each in schema.metadata.tables[name].c if each.name not in NEWER] for name in OLD}
        texts = {name: f"select {', '.join(columns)} from {name} order by 1, 2, 3" for name, columns in kept.items()}
        texts |= {text: text for text in ASKED}
        return {name: [tuple(each) for each in conn.execute(sa.text(text))] for name, text in texts.items()}


@pytest.fixture
def old(store_url: str) -> Engine:
    engine = open_engine(store_url)
    with transaction(engine) as conn:
        command.upgrade(alembic(conn), "0004")
        fill(conn)
    return engine


def test_a_filled_store_keeps_every_row(old: Engine) -> None:
    before = rows(old)
    assert len(before["run"]) == 2
    assert len(before["prediction"]) == len(before[ASKED[1]]) == 2 * len(STOCKS)
    assert len(before["night"]) == 1
    assert upgrade(old)
    assert not upgrade(old)
    require_current(old)
    assert rows(old) == before
    with reading(old) as conn:
        assert queries.run(conn, "first") == run() | {"slope": None, "intercept": None}
        assert queries.runs(conn)["model"].tolist() == ["dtml", "dtml"]


def test_an_upgraded_store_is_like_a_new_one(old: Engine) -> None:
    upgrade(old)
    with reading(old) as conn:
        context = MigrationContext.configure(conn, opts={"compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []
        if conn.dialect.name == "sqlite":
            assert conn.exec_driver_sql("pragma foreign_key_check").all() == []
    assert tables_and_views(old)[0] == set(schema.metadata.tables)


def test_foreign_keys_hold_after_the_upgrade(old: Engine) -> None:
    upgrade(old)
    for statement in (
        sa.delete(schema.run).where(schema.run.c.id == "first"),
        sa.update(schema.prediction).values(run_id="nothing").where(schema.prediction.c.run_id == "second"),
        sa.update(schema.night).values(run_id="nothing"),
    ):
        with pytest.raises(StoreError, match=r"(?i)foreign key"), transaction(old) as conn:
            conn.execute(statement)
    with transaction(old) as conn:
        assert repositories.save_run(conn, run("third")) == 1
        assert repositories.save_predictions(conn, "toy", predictions("third"), known_at=NOW, made_at=NOW) == 3


def test_a_filled_store_goes_back_and_up_again(old: Engine) -> None:
    before, made = rows(old), tables_and_views(old)
    upgrade(old)
    with transaction(old) as conn:
        command.downgrade(alembic(conn), "0004")
    assert (rows(old), tables_and_views(old)) == (before, made)
    assert upgrade(old)
    assert rows(old) == before


def test_a_run_without_weights_does_not_fit_the_older_schema(old: Engine) -> None:
    def go_back() -> None:
        with transaction(old) as conn:
            command.downgrade(alembic(conn), "0004")

    upgrade(old)
    with transaction(old) as conn:
        repositories.save_run(conn, run("trees", checkpoint_path=None, checkpoint_hash=None))
    before = rows(old)
    with pytest.raises(StoreError, match=r"(?i)not.null|null values"):
        go_back()
    assert rows(old) == before
    require_current(old)
