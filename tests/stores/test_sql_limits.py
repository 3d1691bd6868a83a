"""SQL that a user typed, or that is hidden in a name: it reads the store, and
nothing else, and not for ever.
"""

import os
import sqlite3
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from db.connection.user_sql import Interruption, select
from db.engine import READ_LIMIT_S, open_engine, reading, transaction
from db.errors import StoreUsageError
from db.save import save
from tests.support.kinds import postgresql_alone, sqlite_alone
from tests.support.postgresql_databases import KEEPER

FOREVER = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
# A few steps of SQLite's machine, each of which takes some time within one function.
SLOW_STEPS = (
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 100) "
    "select sum(instr(hex(zeroblob(50000 + i)), hex(zeroblob(25000)) || '1')) from n"
)
# Each table expression doubles what SQLite prepares.
DOUBLING = "with a0 as (select 1 as x)" + "".join(
    f", a{i + 1} as (select x from a{i} union all select x from a{i})" for i in range(24)
)


@pytest.mark.parametrize("sql", [FOREVER, SLOW_STEPS], ids=["endless", "slow steps"])
def test_sql_of_a_user_that_does_not_end_is_ended(reader, sql, monkeypatch):
    if reader.dialect.name == "sqlite":
        monkeypatch.setattr("db.engine.READ_LIMIT_S", 0.3)
    else:  # set where the engine is opened
        sql = "with short as (select 1) select count(*) from pg_sleep(60)"
        monkeypatch.setattr("db.engine.READ_LIMIT_S", 1)
        reader = open_engine(reader.url.render_as_string(hide_password=False), read_only=True)
    with pytest.raises(StoreUsageError, match=r"interrupted|statement timeout"):
        select(reader, sql)
    assert len(select(reader, "select * from night_log")) == 0


def test_a_statement_that_nobody_waits_for_is_ended_at_once_and_the_next_is_not(reader):
    endless = [FOREVER, FOREVER.replace("max(i)", "i") + " where i < 0"]
    if reader.dialect.name == "postgresql":
        endless.append("select count(*) from pg_sleep(600)")
    for sql in endless:
        interruption = Interruption()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(select, reader, sql, interruption=interruption)
            time.sleep(0.2)
            assert not asking.done()
            interruption.request()
            with pytest.raises(
                StoreUsageError, match=r"interrupted|canceling statement .*user request"
            ):
                asking.result(timeout=READ_LIMIT_S / 2)
        interruption.request()  # nothing of it runs any more
        assert len(select(reader, "select * from night_log")) == 0
        with pytest.raises(StoreUsageError, match="its client has gone"):
            select(reader, "select 1 as one", interruption=interruption)


def test_an_interruption_that_comes_too_late_ends_no_statement_of_another(reader):
    for _ in range(20):
        interruption = Interruption()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(select, reader, "select 1 as one", interruption=interruption)
            interruption.request()
            with suppress(StoreUsageError):
                asking.result()
        assert select(reader, "select 2 as two")["two"].tolist() == [2]


OUTSIDE_SQLITE = [
    "vacuum into '{mark}'",
    "attach database '{mark}' as other",
    "attach database 'file:{mark}?mode=rwc' as other",
    "select load_extension('{mark}')",
    "select readfile('{secret}')",
    "select writefile('{mark}', 'x')",
    "select edit('x', 'touch {mark}')",
    "pragma journal_mode = delete",
    "pragma temp_store_directory = '{secret}'",
    "pragma writable_schema = on",
    "pragma case_sensitive_like = on",
    "pragma hard_heap_limit = 1000",
    "begin immediate",
    "select 'aab' regexp '(a+)+$'",
    "select 'a' like '%" + "a" * 2000 + "'",
    DOUBLING + " select count(*) from a24",
    "create virtual table temp.files using csv(filename='{secret}')",
    "create temp table mine as select 1",
    "select zeroblob(900000000)",
    "select 1; attach database '{mark}' as other",
]


@sqlite_alone
def test_sql_of_a_user_reaches_nothing_outside_a_file(reader, tmp_path):
    mark, secret = tmp_path / "reached", tmp_path / "secret"
    secret.write_text("a secret")
    for sql in OUTSIDE_SQLITE:
        with pytest.raises(StoreUsageError) as caught:
            select(reader, sql.format(mark=mark, secret=secret))
        assert not mark.exists(), sql
        assert "a secret" not in str(caught.value)


OUTSIDE_POSTGRESQL = [
    "copy (select 1) to program 'touch {mark}'",
    "(copy (select 1) to program 'touch {mark}')",
    "/* /* */ select */ copy (select 1) to program 'touch {mark}'",
    "-- select\rcopy (select 1) to program 'touch {mark}'",
    "copy (select 1) to '{mark}'",
    "copy night from program 'touch {mark}'",
    "copy night to stdout",
    "do $$ begin copy (select 1) to program 'touch {mark}'; end $$",
    "do $$ begin reset role; copy (select 1) to program 'touch {mark}'; end $$",
    "explain analyze select pg_read_file('{secret}')",
    "select pg_read_file('{secret}')",
    "select pg_read_binary_file('{secret}')",
    "select * from ts_stat($$select to_tsvector(pg_read_file('{secret}'))$$)",
    "select pg_ls_dir('/')",
    "select lo_import('{secret}')",
    "select lo_export(lo_from_bytea(0, 'x'), '{mark}')",
    "select pg_reload_conf()",
    "select set_config('role', 'postgres', true), pg_read_file('{secret}')",
    "select U&\"\\0073et_config\"('role', 'postgres', true)",
    "with x as (update pg_settings set setting = 'postgres' where name = 'role' returning 1) "
    "select * from x",
    "set role postgres",
    "set session authorization postgres",
    "reset role",
    "set statement_timeout = 0",
    "load '{mark}'",
    "call nothing()",
    "listen night",
    "select query_to_xml('select set' || '_config(''role'', ''postgres'', true)', true, true, ''),"
    " query_to_xml('select pg_read' || '_file(''{secret}'')', true, true, '')",
    "select query_to_xml('select set' || '_config(''session_authorization'', ''postgres'', true)', "
    "true, true, ''),"
    " query_to_xml('select lo_export(lo_from_bytea(0, ''x''), ''{mark}'')', true, true, '')",
    "select * from ts_stat('select to_tsvector(set' || '_config(''role'', ''postgres'', true))') "
    "as first,"
    " ts_stat('select to_tsvector(pg_read' || '_file(''{secret}''))') as second",
    "select 1; copy (select 1) to program 'touch {mark}'",
    "",
]


@pytest.mark.parametrize("who", ["postgres", KEEPER])
@postgresql_alone
def test_sql_of_a_user_reaches_nothing_outside_a_server(engine, who, tmp_path):
    mark = Path("/tmp") / f"reached-{tmp_path.name}-{os.getpid()}"  # where the server may write
    secret = Path(__file__)
    reader = as_role(engine, who)
    answered = []
    for sql in OUTSIDE_POSTGRESQL:
        with suppress(StoreUsageError):
            select(reader, sql.format(mark=mark, secret=secret))
            answered.append(sql)
    assert answered == []
    assert not mark.exists()


@pytest.mark.parametrize("power", ["postgres", "pg_read_server_files", "pg_execute_server_program"])
@postgresql_alone
def test_a_role_that_could_reach_outside_a_server_types_no_sql(engine, power, postgresql_admin):
    """Be it a superuser or only one who may become one; what this program
    itself asks is answered.
    """
    role = f"powerful_{uuid.uuid4().hex}"
    with postgresql_admin.connect() as conn:
        conn.execute(text(f"create role {role} login in role {power}, {KEEPER}"))
    for name in ("postgres", role) if power == "postgres" else (role,):
        reader = as_role(engine, name)
        with pytest.raises(StoreUsageError, match=rf"role {power},.*grant-reader"):
            select(reader, "select 1 as one")
        assert len(select(reader, "select * from night_log", is_trusted=True)) == 0
        reader.dispose()
    with postgresql_admin.connect() as conn:
        conn.execute(text(f"drop role {role}"))


def as_role(engine, name):
    """The same store, read only, as another role of its server."""
    return open_engine(
        engine.url.set(username=name).render_as_string(hide_password=False), read_only=True
    )


@postgresql_alone
def test_a_role_of_its_own_asks_as_itself(engine, postgresql_admin):
    role = f"asker_{uuid.uuid4().hex}"
    with postgresql_admin.connect() as conn:
        conn.execute(text(f"create role {role} login"))
    with engine.begin() as conn:
        conn.execute(text(f"grant select on all tables in schema public to {role}"))
    asker = as_role(engine, role)
    assert select(asker, "select current_user as name")["name"].tolist() == [role]
    assert select(asker, "select set_config('work_mem', '8MB', true) as kept")["kept"].tolist() == [
        "8MB"
    ]
    asker.dispose()
    with engine.begin() as conn:
        conn.execute(text(f"revoke select on all tables in schema public from {role}"))
    with postgresql_admin.connect() as conn:
        conn.execute(text(f"drop role {role}"))


def test_moments_are_asked_and_answered_in_utc_wherever_the_server_stands(engine, store_url):
    alert = {"market": "toy", "as_of": date(2024, 1, 4), "kind": "late", "message": "it is late"}
    with transaction(engine) as conn:
        assert save(conn, "alert", alert, raised_at=datetime(2024, 1, 5, 23, 30, tzinfo=UTC))
    url = make_url(store_url)
    if engine.dialect.name == "postgresql":
        url = url.update_query_dict({"options": "-c timezone=Asia/Seoul"})
    elsewhere = open_engine(url.render_as_string(hide_password=False), read_only=True)
    said = select(elsewhere, "select cast(raised_at as varchar) as moment from alert_log")[
        "moment"
    ].iloc[0]
    elsewhere.dispose()
    assert said.startswith("2024-01-05 23:30:00")


def test_sql_can_call_no_function_in_python(engine, reader):
    """Such a function would hold the interpreter lock, and with it all threads."""
    listed = "select name, narg, type from pragma_function_list order by 1, 2, 3"
    with closing(sqlite3.connect(":memory:")) as plain:
        of_sqlite = plain.execute(listed).fetchall()
    for opened in (engine, reader):
        if opened.dialect.name == "sqlite":
            with reading(opened) as conn:
                assert [tuple(row) for row in conn.exec_driver_sql(listed)] == of_sqlite
