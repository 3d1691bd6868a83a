"""Migrations make what db.tables and db.views say, on both engines, and every
column is explained.
"""

from importlib.metadata import version

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from db import tables
from db.engine import open_engine, prepare, reading, require_current_schema, transaction, upgrade
from db.errors import StoreError, StoreUsageError
from db.migrations import FOLDER, REVISION, REVISIONS, migrate
from db.migrations.columns import NEWEST, fingerprint, stored_columns
from db.views import views as documented_views
from tests.support.revisions import tables_and_views


def test_a_store_of_the_newest_schema_is_known_by_its_fingerprint(engine: Engine) -> None:
    with reading(engine) as conn:
        assert fingerprint(stored_columns(conn)) == NEWEST


def test_the_migrations_make_the_tables_of_the_schema(engine: Engine) -> None:
    with reading(engine) as conn:
        context = MigrationContext.configure(conn, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_facts_lie_in_the_order_of_their_keys(engine: Engine) -> None:
    inspector = sa.inspect(engine)
    for name, table in tables.metadata.tables.items():
        is_in_order = not table.dialect_options["sqlite"]["with_rowid"]
        options = {"sqlite_with_rowid": False} if is_in_order else {}
        assert inspector.get_table_options(name) == options
    assert not tables.price.dialect_options["sqlite"]["with_rowid"]


def test_the_revisions_follow_one_another() -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    walked = [each.revision for each in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(walked[::-1]) == REVISIONS


def test_the_migrations_make_every_table_and_view(engine: Engine) -> None:
    assert tables_and_views(engine) == (set(tables.metadata.tables), set(documented_views()))


@pytest.mark.parametrize("revision", ["0003", "9999", "1975ea83b712"])
def test_a_store_of_an_unknown_schema_is_left_alone_and_the_way_out_is_named(
    engine: Engine, revision: str
) -> None:
    with transaction(engine) as conn:
        conn.execute(sa.text(f"update alembic_version set version_num = '{revision}'"))
    before = tables_and_views(engine)
    said = rf"schema {revision}, .*{version('dtml-nightshift')} .*{REVISION}.*start a new store"
    for use in (require_current_schema, prepare, upgrade):
        with pytest.raises(StoreUsageError, match=said):
            use(engine)
    assert tables_and_views(engine) == before


def test_a_store_from_before_the_first_release_that_numbered_its_schema_so_is_refused(
    store_url: str,
) -> None:
    engine = open_engine(store_url)
    with transaction(engine) as conn:
        conn.execute(sa.text("create table alembic_version (version_num varchar(32) primary key)"))
        conn.execute(sa.text(f"insert into alembic_version values ('{REVISION}')"))
        tables.instrument.create(conn)
    for use in (require_current_schema, prepare, upgrade):
        with pytest.raises(StoreError, match=r"before 0\.1\.0 .*start a new one"):
            use(engine)


DAMAGE = {
    "drop table abstention_band": "column days of a table abstention_band",
    "alter table night drop column gaps": "column gaps of a table night",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_store_that_lacks_a_part_of_its_schema_is_left_alone(engine: Engine, damage: str) -> None:
    with transaction(engine) as conn:
        for view in documented_views():
            conn.exec_driver_sql(f"drop view {view}")
        conn.exec_driver_sql(damage)
    for use in (require_current_schema, prepare, upgrade):
        with pytest.raises(StoreError, match=rf"{DAMAGE[damage]} .*{REVISION}.*damaged: run"):
            use(engine)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_column_that_should_allow_missing_values_is_found(engine: Engine) -> None:
    with transaction(engine) as conn:
        conn.exec_driver_sql("alter table night alter column target set not null")
    with pytest.raises(StoreError, match=r"column target of a table night"):
        require_current_schema(engine)


def test_a_database_of_another_program_is_left_alone(store_url: str) -> None:
    engine = open_engine(store_url)
    with transaction(engine) as conn:
        conn.execute(sa.text("create table customer (id integer primary key)"))
    for use in (require_current_schema, prepare, upgrade):
        with pytest.raises(StoreUsageError, match="tables of another program"):
            use(engine)
    assert tables_and_views(engine) == ({"customer"}, set())


def test_an_empty_database_stays_so_when_its_tables_cannot_all_be_made(store_url: str) -> None:
    engine = open_engine(store_url)

    def break_off() -> None:
        with transaction(engine) as conn:
            migrate(conn, None)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        break_off()
    assert tables_and_views(engine) == (set(), set())


def test_the_migrations_make_the_documented_views(engine: Engine) -> None:
    """PostgreSQL rewrites the text of a view, so each engine is given them a second time."""
    with transaction(engine) as conn:
        migrated = views(conn)
        for name in documented_views():
            conn.exec_driver_sql(f"drop view {name}")
        for view in documented_views().values():
            conn.execute(sa.text(view.sql))
        assert views(conn) == migrated
        assert set(migrated) == set(documented_views())


def views(conn: Connection) -> dict[str, str]:
    """The text of every view, as the engine keeps it."""
    kept = "select name, sql from sqlite_master where type = 'view'"
    if conn.dialect.name == "postgresql":
        kept = (
            "select viewname, pg_get_viewdef(viewname::regclass) from pg_views where "
            "schemaname "
            "= 'public'"
        )
    return dict(conn.exec_driver_sql(kept).tuples().all())


def test_every_column_of_every_view_is_documented(engine: Engine) -> None:
    inspector = sa.inspect(engine)
    columns = {
        name: [each["name"] for each in inspector.get_columns(name)]
        for name in inspector.get_view_names()
    }
    assert columns == {name: list(view.meanings()) for name, view in documented_views().items()}


def test_every_table_and_column_says_what_it_means() -> None:
    for table in tables.metadata.tables.values():
        assert str(table.comment).endswith(".")
        for column in table.c:
            assert str(column.comment).endswith("."), column
            assert not column.nullable or "missing" in str(column.comment), column
