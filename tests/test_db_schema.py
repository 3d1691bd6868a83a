"""Migrations make what db.schema and db.views say, forwards and back, and every column is explained."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

import db
from db import schema
from db.engine import open_engine, prepare, reading, require_current, transaction, upgrade
from db.errors import StoreUsageError
from db.views import VIEW_COLUMNS, VIEW_SQL

FACTS = {"membership", "price", "refused_bar", "prediction", "outcome", "score", "night"}
FACTS |= {"benchmark_score", "benchmark_member", "attention_weight"}
FACTS |= {"backtest_fold", "backtest_score", "backtest_return", "backtest_portfolio"}
FACTS |= {"price_fetch", "alert", "band", "rule_call", "calibration_bin", "band_count", "explanation"}
FACTS |= {"translation_model", "translation_progress"}


def alembic(conn: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(db.__file__).parent / "migrations"))
    config.attributes["connection"] = conn
    return config


def tables_and_views(engine: Engine) -> tuple[set[str], set[str]]:
    inspector = sa.inspect(engine)
    return set(inspector.get_table_names()) - {"alembic_version"}, set(inspector.get_view_names())


def test_the_migrations_make_the_tables_of_the_schema(engine: Engine) -> None:
    with reading(engine) as conn:
        context = MigrationContext.configure(conn, opts={"compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []


def test_the_migrations_make_the_checks_of_the_schema(tmp_path: Path) -> None:
    """Alembic does not compare these, so a second store is made without it."""
    migrated, direct = (open_engine(f"sqlite:///{tmp_path}/{name}.sqlite") for name in ("migrated", "direct"))
    upgrade(migrated)
    schema.metadata.create_all(direct)
    for table in schema.metadata.tables:
        checks = [
            sorted((each["name"], each["sqltext"]) for each in sa.inspect(engine).get_check_constraints(table))
            for engine in (migrated, direct)
        ]
        assert checks[0] == checks[1]
        options = [sa.inspect(engine).get_table_options(table) for engine in (migrated, direct)]
        assert options[0] == options[1] == ({"sqlite_with_rowid": False} if table in FACTS else {})


def test_the_schema_names_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic()).get_current_head() == schema.REVISION


def test_the_schema_goes_up_down_and_up_again(engine: Engine) -> None:
    made = tables_and_views(engine)
    with transaction(engine) as conn:
        command.downgrade(alembic(conn), "base")
    assert tables_and_views(engine) == (set(), set())
    prepare(engine)
    assert tables_and_views(engine) == made == (set(schema.metadata.tables), set(VIEW_SQL))


def test_a_store_between_two_versions_asks_for_an_upgrade_and_gets_it(engine: Engine) -> None:
    with transaction(engine) as conn:
        command.downgrade(alembic(conn), "0001")
    with pytest.raises(StoreUsageError, match=r"has schema 0001, too old .*: run dtml db upgrade"):
        require_current(engine)
    with pytest.raises(StoreUsageError, match="too old"):
        prepare(engine)
    assert upgrade(engine)
    require_current(engine)


def test_a_store_of_a_newer_dtml_is_left_alone(engine: Engine) -> None:
    with transaction(engine) as conn:
        conn.execute(sa.text("update alembic_version set version_num = '9999'"))
    for use in (require_current, prepare, upgrade):
        with pytest.raises(StoreUsageError, match="schema 9999, unknown to this dtml"):
            use(engine)


def test_a_database_of_another_program_is_left_alone(store_url: str) -> None:
    engine = open_engine(store_url)
    with transaction(engine) as conn:
        conn.execute(sa.text("create table customer (id integer primary key)"))
    for use in (require_current, prepare, upgrade):
        with pytest.raises(StoreUsageError, match="tables that are not dtml's"):
            use(engine)
    assert tables_and_views(engine) == ({"customer"}, set())


def test_an_upgrade_that_fails_half_way_changes_nothing(store_url: str) -> None:
    engine = open_engine(store_url)

    def break_off() -> None:
        with transaction(engine) as conn:
            command.upgrade(alembic(conn), "0002")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        break_off()
    assert tables_and_views(engine) == (set(), set())


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # PostgreSQL rewrites the text of a view
def test_the_migrations_make_the_documented_views(engine: Engine) -> None:
    with reading(engine) as conn:
        made = dict(conn.execute(sa.text("select name, sql from sqlite_master where type = 'view'")).tuples().all())
    assert {name: sql.casefold() for name, sql in made.items()} == {
        name: sql.strip().casefold() for name, sql in VIEW_SQL.items()
    }


def test_every_column_of_every_view_is_documented(engine: Engine) -> None:
    inspector = sa.inspect(engine)
    columns = {name: [each["name"] for each in inspector.get_columns(name)] for name in inspector.get_view_names()}
    assert columns == {name: list(meanings) for name, meanings in VIEW_COLUMNS.items()}
    assert all(meaning.endswith(".") for meanings in VIEW_COLUMNS.values() for meaning in meanings.values())


def test_every_table_and_column_says_what_it_means() -> None:
    for table in schema.metadata.tables.values():
        assert str(table.comment).endswith(".")
        for column in table.c:
            assert str(column.comment).endswith("."), column
            assert not column.nullable or "missing" in str(column.comment), column
