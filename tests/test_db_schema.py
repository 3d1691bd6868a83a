"""Migrations make what db.tables and db.views say, on both engines, and every column is explained."""

from hashlib import sha256
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from made_revisions import tables_and_views
from sqlalchemy import Connection, Engine

from db import tables
from db.engine import MIGRATIONS, open_engine, prepare, reading, require_current, transaction, upgrade
from db.errors import StoreError, StoreUsageError
from db.migrations import REVISION
from db.views.views import VIEW_COLUMNS, VIEW_SQL

FACTS = {"membership", "price", "refused_bar", "prediction", "outcome", "score", "night"}
FACTS |= {"benchmark_score", "benchmark_member", "attention_weight"}
FACTS |= {"backtest_fold", "backtest_score", "backtest_return", "backtest_portfolio"}
FACTS |= {"price_fetch", "alert", "band", "rule_call", "calibration_bin", "band_count", "explanation"}
FACTS |= {"translation_model", "translation_progress"}
FIRST = {  # SHA-256
    "0001_postgresql.sql": "865bda0615656371134ab17a52384219bc5d87c041f907c3ab5e7ee776bb5b30",
    "0001_sqlite.sql": "7aac0a8f039d9025d4d84d6cd383993c80c89da8db569b3d846906a1217e02c8",
}


def alembic(conn: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = conn
    return config


def test_the_migrations_make_the_tables_of_the_schema(engine: Engine) -> None:
    with reading(engine) as conn:
        context = MigrationContext.configure(conn, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []


def test_the_migrations_make_the_checks_of_the_schema(engine: Engine, tmp_path: Path) -> None:
    """Alembic does not compare these, so the tables are made a second time without it, in a place of their own."""
    if engine.dialect.name == "sqlite":
        direct, place = open_engine(f"sqlite:///{tmp_path}/direct.sqlite"), None
    else:
        with transaction(engine) as conn:
            conn.exec_driver_sql("create schema direct")
        direct, place = engine.execution_options(schema_translate_map={None: "direct"}), "direct"
    tables.metadata.create_all(direct)
    for table in tables.metadata.tables:
        migrated, made = (
            sorted((each["name"], each["sqltext"]) for each in sa.inspect(one).get_check_constraints(table, where))
            for one, where in ((engine, None), (direct, place))
        )
        assert migrated == made


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_facts_lie_in_the_order_of_their_keys(engine: Engine) -> None:
    for table in tables.metadata.tables:
        options = sa.inspect(engine).get_table_options(table)
        assert options == ({"sqlite_with_rowid": False} if table in FACTS else {})


def test_the_schema_names_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic()).get_current_head() == REVISION


def test_the_first_revision_stays_as_it_was() -> None:
    found = {file.name: sha256(file.read_bytes()).hexdigest() for file in MIGRATIONS.glob("versions/0001_*.sql")}
    assert found == FIRST, "stores were made by it: undo, and write a new revision (CONTRIBUTING.md, a view)"


def test_the_migrations_make_every_table_and_view(engine: Engine) -> None:
    assert tables_and_views(engine) == (set(tables.metadata.tables), set(VIEW_SQL))


@pytest.mark.parametrize("revision", ["0012", "9999"])
def test_a_store_of_a_newer_dtml_or_of_none_that_was_released_is_left_alone(engine: Engine, revision: str) -> None:
    with transaction(engine) as conn:
        conn.execute(sa.text(f"update alembic_version set version_num = '{revision}'"))
    said = rf"schema {revision}, unknown to this dtml .*: update dtml\. Or it was made before 0\.1\.0: start a new"
    for use in (require_current, prepare, upgrade):
        with pytest.raises(StoreUsageError, match=said):
            use(engine)


def test_a_store_that_lacks_a_table_of_its_schema_is_left_alone(store_url: str) -> None:
    """The first schema of all had the number of the first one that was released."""
    engine = open_engine(store_url)
    with transaction(engine) as conn:
        conn.execute(sa.text("create table alembic_version (version_num varchar(32) primary key)"))
        conn.execute(sa.text("insert into alembic_version values ('0001')"))
        for table in (tables.instrument, tables.membership, tables.price, tables.refused_bar):
            table.create(conn)
    for use in (require_current, prepare, upgrade):
        with pytest.raises(StoreError, match=r"0001 without its table alert\. Perhaps .* before 0\.1\.0: .* damaged: "):
            use(engine)


def test_a_database_of_another_program_is_left_alone(store_url: str) -> None:
    engine = open_engine(store_url)
    with transaction(engine) as conn:
        conn.execute(sa.text("create table customer (id integer primary key)"))
    for use in (require_current, prepare, upgrade):
        with pytest.raises(StoreUsageError, match="tables that are not dtml's"):
            use(engine)
    assert tables_and_views(engine) == ({"customer"}, set())


def test_an_empty_database_stays_so_when_its_tables_cannot_all_be_made(store_url: str) -> None:
    engine = open_engine(store_url)

    def break_off() -> None:
        with transaction(engine) as conn:
            command.upgrade(alembic(conn), "head")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        break_off()
    assert tables_and_views(engine) == (set(), set())


def test_the_migrations_make_the_documented_views(engine: Engine) -> None:
    """PostgreSQL rewrites the text of a view, so each engine is given them a second time."""
    with transaction(engine) as conn:
        migrated = views(conn)
        for name in reversed(VIEW_SQL):
            conn.exec_driver_sql(f"drop view {name}")
        for sql in VIEW_SQL.values():
            conn.execute(sa.text(sql.strip()))
        assert views(conn) == migrated
        assert set(migrated) == set(VIEW_SQL)


def views(conn: Connection) -> dict[str, str]:
    """The text of every view, as the engine keeps it."""
    kept = "select name, sql from sqlite_master where type = 'view'"
    if conn.dialect.name == "postgresql":
        kept = "select viewname, pg_get_viewdef(viewname::regclass) from pg_views where schemaname = 'public'"
    return dict(conn.exec_driver_sql(kept).tuples().all())


def test_every_column_of_every_view_is_documented(engine: Engine) -> None:
    inspector = sa.inspect(engine)
    columns = {name: [each["name"] for each in inspector.get_columns(name)] for name in inspector.get_view_names()}
    assert columns == {name: list(meanings) for name, meanings in VIEW_COLUMNS.items()}
    assert all(meaning.endswith(".") for meanings in VIEW_COLUMNS.values() for meaning in meanings.values())


def test_every_table_and_column_says_what_it_means() -> None:
    for table in tables.metadata.tables.values():
        assert str(table.comment).endswith(".")
        for column in table.c:
            assert str(column.comment).endswith("."), column
            assert not column.nullable or "missing" in str(column.comment), column
