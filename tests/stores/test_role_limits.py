"""What a reader of PostgreSQL tries: to write, to hold what nights wait for, to
get out of its limits.
"""

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, make_url, text

from db.admin.roles import grant_reader
from db.connection.locks import market_lock
from db.engine import transaction
from db.views import views as documented_views
from tests.support.roles import NAME, as_role, run
from tests.support.stores import contents

pytestmark = pytest.mark.slow

WRITES = [
    "insert into alert values ('x', '2024-01-01', 'late', '', now(), null)",
    "insert into alert_log values ('x', '2024-01-01', 'late', '', now(), null)",
    "update prediction set probability = 1",
    "update run_log set kind = 'benchmark'",
    "delete from price",
    "truncate price",
    "drop view night_log",
    "drop table price",
    "alter table price add column x integer",
    "create table mine (x integer)",
    "create table public.mine (x integer)",
    "create view mine as select 1",
    "create function mine() returns integer language sql as 'select 1'",
    "create temporary table mine (x integer)",
    "create schema mine",
    "create role mine",
    "comment on table price is 'x'",
    "copy price from '/etc/hostname'",
    "copy (select 1) to program 'true'",
    "select pg_read_file('/etc/hostname')",
    "select setval('instrument_id_seq', 1)",
    "select nextval('instrument_id_seq')",
    "set role postgres",
    "set session authorization postgres",
    "select lo_creat(-1)",
    "select lo_create(0)",
    "select lo_from_bytea(0, 'x')",
    "select lo_import('/etc/hostname')",
    "select lo_put(1, 0, 'x')",
    "select lo_truncate(lo_open(1, 131072), 0)",
    "select lowrite(0, 'x')",
    "select lo_unlink(1)",
    "select pg_advisory_lock(1)",
    "select pg_advisory_lock_shared(1)",
    "select pg_advisory_xact_lock(1, 2)",
    "select pg_try_advisory_lock(1)",
    "select pg_try_advisory_xact_lock_shared(1, 2)",
    "do $$ begin perform pg_advisory_lock(n) from generate_series(1, 1000000) as n; end $$",
    "select query_to_xml('select pg_advisory_lock(1)', true, true, '')",
    "select pg_logical_emit_message(false, 'x', 'y')",
    "select pg_export_snapshot()",
    "select pg_switch_wal()",
    "select pg_create_physical_replication_slot('mine')",
    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres' and pid <> "
    "pg_backend_pid()",
    "select pg_reload_conf()",
    "select 1 from night_log for update",
    "select 1 from alembic_version for key share",
    "do $$ begin lock table night in row exclusive mode; end $$",
    "do $$ begin lock table night_log in row share mode; end $$",
    "do $$ begin lock table alembic_version in share mode; end $$",
    "do $$ begin lock table pg_class in share mode; end $$",
    "create publication mine",
    "create statistics mine on market, as_of from night",
    "alter system set work_mem = '1GB'",
    "alter database readers set work_mem = '1GB'",
    f"alter role {NAME} connection limit -1",
    f"alter role {NAME} set temp_file_limit = -1",
    f"alter role {NAME} in database postgres set session_preload_libraries = ''",
    "set temp_file_limit = -1",
    f"grant {NAME} to postgres",
    "alter role postgres set work_mem = '1GB'",
    "alter role postgres password 'x'",
]


@pytest.mark.soak
@pytest.mark.parametrize("store", ["public"], indirect=True)
def test_a_reader_that_lifts_the_ban_on_writing_still_writes_nothing(
    store: tuple[Engine, str], analyst: Engine
) -> None:
    before = contents(store[0])
    for sql in WRITES:
        refused = r"permission denied|must be owner|must (be|have|not) |cannot (insert|update)"
        with pytest.raises(sa.exc.DBAPIError, match=refused):
            run(
                analyst,
                "set default_transaction_read_only = off",
                "set transaction_read_only = off",
                sql,
            )
    assert contents(store[0]) == before


@pytest.mark.soak
def test_a_reader_is_read_only_unless_it_says_otherwise(analyst: Engine) -> None:
    with pytest.raises(sa.exc.InternalError, match="read-only transaction"):
        run(analyst, "create temporary table mine (x integer)")


def test_a_reader_calls_no_function_of_the_server_that_writes_or_locks(analyst: Engine) -> None:
    """By the server's own list, so that a function that a later one adds is among them."""
    mine = (
        "has_function_privilege(oid, 'EXECUTE') and (proname ~ '^lo(_|read|write)' or "
        "proname ~ "
        "'advisory')"
    )
    with analyst.connect() as conn:
        assert conn.execute(text(f"select proname from pg_proc where {mine}")).scalars().all() == []


@pytest.mark.parametrize("store", ["public"], indirect=True)
def test_a_reader_opens_no_other_database_even_one_made_later(
    store: tuple[Engine, str], analyst: Engine, postgresql_server: str
) -> None:
    """There it had no limits: PUBLIC makes temporary tables and large objects in any database."""
    run(
        as_role(postgresql_server, "postgres"),
        "drop database if exists later",
        "create database later",
    )
    excuses = (
        "reset all",
        *(f"in database {each} reset all" for each in ("postgres", "template1", "later")),
    )
    run(
        analyst,
        "set default_transaction_read_only = off",
        *(f"alter role {NAME} {each}" for each in excuses),
    )
    for name in ("postgres", "template1", "later"):
        for options in (
            {},
            {"options": "-c session_preload_libraries="},
            {"options": "-c role=postgres"},
        ):
            url = (
                make_url(store[1])
                .set(database=name)
                .difference_update_query(["options"])
                .update_query_dict(options)
            )
            with pytest.raises(
                sa.exc.OperationalError, match=r"one database alone|permission denied"
            ):
                run(as_role(url.render_as_string(hide_password=False), NAME), "select 1")
    run(analyst, "select 1")
    run(as_role(postgresql_server, "postgres"), "drop database later")


@pytest.mark.parametrize("store", ["public"], indirect=True)
def test_no_reader_stops_a_night(store: tuple[Engine, str], analyst: Engine) -> None:
    """With all it can hold: the keys of the nights, which every role can see,
    and the views, in a transaction.
    """
    keys = "select classid, objid, objsubid from pg_locks where locktype = 'advisory'"
    with market_lock(store[0], "toy"), transaction(store[0]), analyst.connect() as conn:
        held = conn.execute(text(keys)).all()
    assert sorted(key.objsubid for key in held) == [1, 2]
    for high, low, words in held:
        key = f"{high}, {low}" if words == 2 else str(high << 32 | low)
        for lock in ("pg_advisory_lock", "pg_try_advisory_lock_shared"):
            with pytest.raises(sa.exc.ProgrammingError, match="permission denied for function"):
                run(analyst, f"select {lock}({key})")
    with analyst.connect() as conn:
        for view in documented_views():
            conn.execute(text(f"lock table {view} in access share mode"))
        with market_lock(store[0], "toy"), transaction(store[0]) as own:
            own.execute(text("update night set reason = 'x'"))


@pytest.mark.parametrize("store", ["public"], indirect=True)
def test_a_session_of_a_reader_has_limits(store: tuple[Engine, str], analyst: Engine) -> None:
    """The first can be lifted; `WRITES` tries to lift the second and the third."""
    limits = {"statement_timeout": "30s", "temp_file_limit": "1GB"}
    with analyst.connect() as conn:
        assert {name: conn.execute(text(f"show {name}")).scalar_one() for name in limits} == limits
    connections = text("select rolconnlimit from pg_roles where rolname = :name")
    with store[0].connect() as conn:
        assert conn.execute(connections, {"name": NAME}).scalar_one() == 20
    run(store[0], f"alter role {NAME} connection limit 3")
    grant_reader(store[0], NAME)
    with store[0].connect() as conn:
        assert conn.execute(connections, {"name": NAME}).scalar_one() == 3
