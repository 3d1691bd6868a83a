"""Migrations make what db.tables and db.views say, on both engines, and every
column is explained.
"""

from importlib.metadata import version

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from db import tables
from db.admin.checks import check_store
from db.engine import open_engine, prepare, reading, require_current_schema, transaction, upgrade
from db.errors import StoreError, StoreUsageError
from db.migrations import REVISION, migrate
from db.migrations.columns import NEWEST, fingerprint, stored_columns
from db.views import views as documented_views
from tests.support.revisions import CHANGES, NEXT, become_next, next_views, tables_and_views
from tests.support.stores import contents, fill


def test_a_store_of_the_newest_schema_is_known_by_its_fingerprint(engine):
    with reading(engine) as conn:
        assert fingerprint(stored_columns(conn)) == NEWEST


def test_the_migrations_make_the_tables_of_the_schema(engine):
    with reading(engine) as conn:
        context = MigrationContext.configure(conn, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []


@pytest.mark.parametrize("revision", ["0003", "9999", "1975ea83b712"])
def test_a_store_of_an_unknown_schema_is_left_alone_and_the_way_out_is_named(engine, revision):
    with transaction(engine) as conn:
        conn.execute(sa.text(f"update alembic_version set version_num = '{revision}'"))
    before = tables_and_views(engine)
    said = rf"schema {revision}, .*{version('dtml-nightshift')} .*{REVISION}.*start a new store"
    for use in (require_current_schema, prepare, upgrade):
        with pytest.raises(StoreUsageError, match=said):
            use(engine)
    assert tables_and_views(engine) == before


DAMAGE = {
    "drop table abstention_band": "column days of a table abstention_band",
    "alter table night drop column gaps": "column gaps of a table night",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_store_that_lacks_a_part_of_its_schema_is_left_alone(engine, damage):
    with transaction(engine) as conn:
        for view in documented_views():
            conn.exec_driver_sql(f"drop view {view}")
        conn.exec_driver_sql(damage)
    for use in (require_current_schema, prepare, upgrade):
        with pytest.raises(StoreError, match=rf"{DAMAGE[damage]} .*{REVISION}.*damaged: run"):
            use(engine)


def test_a_database_of_another_program_is_left_alone(store_url):
    engine = open_engine(store_url)
    with transaction(engine) as conn:
        conn.execute(sa.text("create table customer (id integer primary key)"))
    for use in (require_current_schema, prepare, upgrade):
        with pytest.raises(StoreUsageError, match="tables of another program"):
            use(engine)
    assert tables_and_views(engine) == ({"customer"}, set())


def test_an_empty_database_stays_so_when_its_tables_cannot_all_be_made(store_url):
    engine = open_engine(store_url)

    def break_off():
        with transaction(engine) as conn:
            migrate(conn, None)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        break_off()
    assert tables_and_views(engine) == (set(), set())


def test_the_migrations_make_the_documented_views(engine):
    """PostgreSQL rewrites the text of a view, so each engine is given them a second time."""
    with transaction(engine) as conn:
        migrated = views(conn)
        for name in documented_views():
            conn.exec_driver_sql(f"drop view {name}")
        for view in documented_views().values():
            conn.execute(sa.text(view.sql))
        assert views(conn) == migrated
        assert set(migrated) == set(documented_views())


def views(conn):
    """The text of every view, as the engine keeps it."""
    kept = "select name, sql from sqlite_master where type = 'view'"
    if conn.dialect.name == "postgresql":
        kept = (
            "select viewname, pg_get_viewdef(viewname::regclass) from pg_views where "
            "schemaname "
            "= 'public'"
        )
    return dict(conn.exec_driver_sql(kept).tuples().all())


def test_every_column_of_every_view_is_documented(engine):
    inspector = sa.inspect(engine)
    columns = {
        name: [each["name"] for each in inspector.get_columns(name)]
        for name in inspector.get_view_names()
    }
    assert columns == {name: list(view.meanings()) for name, view in documented_views().items()}


def test_every_table_and_column_says_what_it_means():
    for table in tables.metadata.tables.values():
        assert str(table.comment).endswith(".")
        for column in table.c:
            assert str(column.comment).endswith("."), column
            assert not column.nullable or "missing" in str(column.comment), column


@pytest.fixture
def old(engine, tmp_path, monkeypatch):
    """A store with rows in every table, older than the program is from now on."""
    fill(engine)
    become_next(monkeypatch, tmp_path)
    return engine


def seen(engine):
    """Every row of every view, in an order of its own."""
    with reading(engine) as conn:
        return {
            name: sorted(
                str(row)
                for row in conn.execute(sa.text(f"select {', '.join(view.meanings())} from {name}"))
            )
            for name, view in documented_views().items()
            if name != "alert_log"  # another one from then on
        }


def test_an_older_store_asks_for_an_upgrade_which_keeps_every_row_and_brings_new_views(
    old, monkeypatch
):
    for use in (require_current_schema, prepare):
        with pytest.raises(
            StoreUsageError,
            match=rf"schema {REVISION}, too old .*\({NEXT}\):.*`dtml db upgrade`",
        ):
            use(old)
    tables, views = tables_and_views(old)
    rows, shown = contents(old), seen(old)
    monkeypatch.setattr("db.views.views", next_views)
    assert upgrade(old)
    assert not upgrade(old)
    prepare(old)
    assert tables_and_views(old) == (tables | {"made_up"}, views | {"alert_count"})
    changed = contents(old)
    assert "Tin" in str(rows.pop("instrument"))
    assert "Tin" not in str(moved := changed.pop("instrument"))
    assert "Zinc" in str(moved)
    assert changed == rows
    assert {view: str(held).replace("Zinc", "Tin") for view, held in seen(old).items()} == {
        view: str(held) for view, held in shown.items()
    }
    with reading(old) as conn:
        counted, added = (
            conn.execute(sa.text(f"select * from {name}")) for name in ("alert_log", "alert_count")
        )
        assert list(counted.keys()) == list(added.keys()) == ["market", "kind", "n"]
        assert sorted(counted.all()) == sorted(added.all())
    assert {finding.state for finding in check_store(old)} == {"ok"}


def test_an_upgrade_that_fails_half_way_changes_nothing(engine, tmp_path, monkeypatch):
    fill(engine)
    before, made = contents(engine), tables_and_views(engine)
    become_next(monkeypatch, tmp_path, f"{CHANGES}\n    raise InterruptedError")
    with pytest.raises(InterruptedError):
        upgrade(engine)
    assert (contents(engine), tables_and_views(engine)) == (before, made)
    with pytest.raises(StoreUsageError, match="run `dtml db upgrade`"):
        require_current_schema(engine)
