"""A copy is the store, row by row and bit by bit, on either engine; or there is nothing."""

import tracemalloc

import pytest
import sqlalchemy as sa

from db import tables
from db.admin import copying
from db.admin.copying import copy_store, snapshot, write_snapshot
from db.engine import open_engine, reading, transaction, upgrade
from db.errors import StoreError
from db.save import save
from tests.support.prediction_rows import STOCKS, run
from tests.support.stores import MOMENT, add_predictions, contents, counts, fill


def copy(source, target):
    with snapshot(source) as conn:
        return copy_store(conn, target)


def test_a_copy_of_a_copy_is_the_store(filled, engine, tmp_path):
    copy(filled, engine)
    again = open_engine(f"sqlite:///{tmp_path}/again.sqlite")
    copy(engine, again)
    assert contents(again) == contents(filled)
    for table in tables.metadata.sorted_tables:
        asked = sa.text(
            f"select * from {table.name} order by {', '.join(c.name for c in table.primary_key)}"
        )
        with reading(filled) as one, reading(again) as other:
            assert one.execute(asked).all() == other.execute(asked).all(), (
                "text of JSON and moments, as it was"
            )


def test_a_copied_store_goes_on_numbering(filled, engine):
    copy(filled, engine)
    new = {"market": "toy", "symbol": "new", "kind": "stock", "source_symbol": "new"}
    with transaction(engine) as conn:
        conn.execute(sa.insert(tables.instrument), [new])
    assert counts(engine)["instrument"] == counts(filled)["instrument"] + 1


def test_a_copy_that_breaks_off_leaves_nothing(filled, engine):
    def break_off(done, table, _rows):
        if (done, table) == ("comparing", "prediction"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), snapshot(filled) as conn:
        copy_store(conn, engine, break_off)
    assert set(counts(engine).values()) == {0}


TAMPERED = {
    "update prediction set probability = 0.2500000000000001 where probability = 0.25": (
        "prediction differs"
    ),
    "delete from price_fetch": "price_fetch differs .*became 0",
    "update night set gaps = '[ ]'": "night differs",
    "insert into constituent select max(instrument_id), 2, null, null, 'a list' from "
    "constituent": "constituent differs",
}


@pytest.mark.soak
@pytest.mark.parametrize("tampered", TAMPERED)
def test_a_table_that_changed_on_the_way_is_named_and_nothing_is_kept(filled, engine, tampered):
    begun = []
    sa.event.listen(engine, "begin", begun.append)

    def tamper(done, _table, _rows):
        if done == "comparing" and begun:
            begun.pop().exec_driver_sql(tampered)  # the newest of them is the one that copies
            begun.clear()

    with pytest.raises(StoreError, match=TAMPERED[tampered]), snapshot(filled) as conn:
        copy_store(conn, engine, tamper)
    assert set(counts(engine).values()) == {0}


def test_a_number_that_the_other_engine_cannot_keep_is_refused(store_url, tmp_path):
    """SQLite has no NaN: a price that PostgreSQL was made to hold would be lost."""
    if not store_url.startswith("postgresql"):
        pytest.skip("SQLite itself cannot hold it")
    engine = open_engine(store_url)
    upgrade(engine)
    fill(engine)
    with transaction(engine) as conn:
        conn.exec_driver_sql("update price set volume = 'NaN' where volume = 3")
    with pytest.raises(StoreError, match="price differs"):
        write_snapshot(engine, tmp_path / "copy.sqlite")


def test_a_snapshot_is_of_one_moment_while_others_write(engine, tmp_path):
    fill(engine)
    before = counts(engine)

    def write(done, table, _rows):
        if (done, table) == ("copying", "instrument"):
            with transaction(engine) as conn:
                save(conn, "run", run("meanwhile", created_at=MOMENT))

    target = open_engine(f"sqlite:///{tmp_path}/copy.sqlite")
    with snapshot(engine) as conn:
        assert copy_store(conn, target, write) == before
    assert counts(target) == before
    assert counts(engine)["run"] == before["run"] + 1


@pytest.mark.soak
def test_many_rows_take_no_more_memory_than_a_chunk(filled, engine, monkeypatch):
    monkeypatch.setattr(copying, "ROWS", 100)
    add_predictions(filled, 20_000)
    tracemalloc.start()
    copied = copy(filled, engine)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert copied["prediction"] == 20_000 + len(STOCKS)
    assert peak < 2_000_000  # the rows themselves would be 6 MB and more
