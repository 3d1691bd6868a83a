"""A reader of PostgreSQL reads the documented views; whatever else it tries, the server refuses."""

import pytest
import sqlalchemy as sa
from sqlalchemy import make_url, text

from db import tables
from db.admin.roles import grant_reader
from db.connection.locks import market_lock
from db.connection.user_sql import select
from db.engine import open_engine, require_current_schema, transaction
from db.errors import StoreUsageError
from db.views import views as documented_views
from tests.support.kinds import postgresql_alone
from tests.support.places import ROOT
from tests.support.roles import NAME, SECOND, as_role, run
from tests.support.stores import contents

SECRET = "a 'quoted' s3cret"
in_any_schema = pytest.mark.parametrize("store", ["public", "schema of its own"], indirect=True)


@in_any_schema
def test_a_reader_asks_as_dtml_query_does(store, analyst):
    named = make_url(store[1]).set(username=NAME).render_as_string(hide_password=False)
    own = open_engine(named, read_only=True)
    require_current_schema(own)
    assert select(own, "select count(*) as n from prediction_history")["n"].tolist() == [3]
    with pytest.raises(StoreUsageError, match=r"permission denied .*outcome"):
        select(own, "select * from outcome")
    own.dispose()


def test_the_commands_of_a_reader_are_those_that_the_page_names(analyst, command, monkeypatch):
    url = analyst.url.set(drivername="postgresql").render_as_string(hide_password=False)
    monkeypatch.setenv("DTML_DATABASE_URL", url)
    page = (ROOT / "db" / "README.md").read_text()
    for asked in (
        ["query", "select 1"],
        ["questions"],
        ["markets"],
        ["runs"],
        ["history", "A"],
        ["db", "dictionary"],
    ):
        assert command(*asked)[0] == 0, asked
        assert f"dtml {' '.join(asked[: 1 + (asked[0] == 'db')])}" in " ".join(page.split())
    for asked in (["status"], ["db", "check"]):
        code, said, complaint = command(*asked)
        assert (code, "permission denied" in said + complaint) == (1, True), asked


def test_a_reader_reads_what_studies_and_nights_found_and_no_other_table(analyst):
    with analyst.connect() as conn:
        for table in tables.READABLE:
            assert conn.execute(text(f"select count(*) from {table}")).scalar_one() >= 0
    for table in set(tables.metadata.tables) - set(tables.READABLE):
        with pytest.raises(sa.exc.ProgrammingError, match=rf"permission denied .*{table}"):
            run(analyst, f"select 1 from {table}")


@in_any_schema
def test_a_grant_that_is_given_again_is_the_same(store):
    # to write down an owner's rights changes nothing
    mine = "relname !~ '^pg_' and grantee <> relowner"
    rights = text(
        f"select relname, a.* from pg_class, aclexplode(relacl) a where {mine} order by 1, 2, 3, 4"
    )
    settings = text(
        "select setconfig::text, setdatabase from pg_db_role_setting order by setdatabase"
    )
    kept = []
    for is_new in (True, False):
        assert grant_reader(store[0], NAME) is is_new
        with store[0].connect() as conn:
            kept.append((conn.execute(rights).all(), conn.execute(settings).all()))
    assert kept[0] == kept[1]
    assert sorted(
        {row.relname for row in kept[0][0] if row.relname in documented_views()}
    ) == sorted(documented_views())


def test_rights_from_before_are_taken_back(store):
    with transaction(store[0]) as conn:
        conn.execute(text(f"create role {NAME} login"))
        conn.execute(text(f"grant all on outcome, night_log to {NAME}"))
        conn.execute(text(f"grant select (market), update (market) on alert to {NAME}"))
        conn.execute(text("create schema another"))
        conn.execute(text("create table another.secret as select 1 as x"))
        conn.execute(text(f"grant usage, create on schema another to {NAME}"))
        conn.execute(text(f"grant select on another.secret to {NAME}"))
    assert not grant_reader(store[0], NAME)
    analyst = as_role(store[1], NAME)
    for sql in (
        "select * from outcome",
        "select market from alert",
        "select * from another.secret",
    ):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            run(analyst, sql)


HARMFUL = {
    "superuser": (f"alter role {NAME} superuser", "be a superuser"),
    "makes roles": (
        f"alter role {NAME} createrole createdb",
        "make databases,.*make roles",
    ),
    "member": (f"grant pg_read_all_data to {NAME}", "act as pg_read_all_data"),
    "owner": (f"alter table alert owner to {NAME}", "change its own table alert"),
}


@pytest.mark.parametrize("harmful", HARMFUL)
def test_a_role_with_rights_from_elsewhere_is_refused(store, harmful):
    grant, said = HARMFUL[harmful]
    run(store[0], f"create role {NAME}", grant)
    with pytest.raises(StoreUsageError, match=said):
        grant_reader(store[0], NAME)
    run(store[0], "alter table alert owner to postgres")


def test_a_right_that_everybody_has_is_named_and_nothing_is_granted(store):
    run(store[0], "grant insert on price to public")
    with pytest.raises(StoreUsageError, match=r"still use .*price,.*PUBLIC"):
        grant_reader(store[0], NAME)
    with store[0].connect() as conn:
        assert (
            conn.execute(
                text("select 1 from pg_roles where rolname = :name"), {"name": NAME}
            ).first()
            is None
        )


FUNCTION = "create function raised() returns integer language sql security definer as 'select 1'"


def test_a_function_that_lends_its_owners_rights_to_everybody_is_named(store):
    run(store[0], FUNCTION)
    with pytest.raises(StoreUsageError, match=r"still call raised\(\),.*PUBLIC"):
        grant_reader(store[0], NAME)
    run(store[0], "revoke execute on function raised() from public")
    assert grant_reader(store[0], NAME)


def test_who_has_something_in_the_database_keeps_what_the_public_loses(store):
    """A role that writes and owns nothing, another program's owner; a second
    reader is given nothing of it.
    """
    grants = (
        "grant insert on alert to owner",
        f"create role {SECOND} login",
        "create table theirs (x integer)",
    )
    run(store[0], "create role owner login", *grants, f"alter table theirs owner to {SECOND}")
    grant_reader(store[0], NAME)
    for role in ("owner", SECOND):
        own = as_role(store[1], role)
        run(own, "create temporary table mine (x integer)", "select lo_unlink(lo_create(0))")
        with market_lock(own, "toy"), transaction(own):
            pass
    run(store[0], "drop table theirs", f"drop owned by {SECOND}")
    for granted in (SECOND, NAME):
        grant_reader(store[0], granted)
        for role in (NAME, SECOND):
            with pytest.raises(sa.exc.ProgrammingError, match="permission denied for function"):
                run(as_role(store[1], role), "select pg_advisory_lock(1)")
    run(store[0], f"drop owned by owner, {SECOND}", f"drop role {SECOND}")


def test_the_owner_of_the_tables_still_writes_in_bulk(store):
    """Which takes a temporary table, a right that the public no longer has."""
    run(
        store[0],
        "create role owner login",
        *(f"alter table {each} owner to owner" for each in tables.metadata.tables),
    )
    grant_reader(store[0], NAME)
    run(
        as_role(store[1], "owner"),
        "create temporary table mine (x integer)",
        "create table kept (x integer)",
    )
    run(as_role(store[1], "owner"), "drop table kept")
    run(store[0], *(f"alter table {each} owner to postgres" for each in tables.metadata.tables))
    run(store[0], "drop owned by owner")


def test_a_password_is_set_and_the_server_gets_its_hash(store):
    grant_reader(store[0], NAME, SECRET)
    with store[0].connect() as conn:
        kept = conn.execute(
            text("select rolpassword from pg_authid where rolname = :n"), {"n": NAME}
        ).scalar_one()
    assert kept.startswith("SCRAM-SHA-256$")
    assert SECRET not in kept
    grant_reader(store[0], NAME)
    with store[0].connect() as conn:
        again = conn.execute(
            text("select rolpassword from pg_authid where rolname = :n"), {"n": NAME}
        ).scalar_one()
    assert again == kept, "without a password in the environment the one there stays"


@postgresql_alone
@pytest.mark.parametrize(
    "name", ["", "1st", "a b", 'x"; drop table price; --', "pg_reader", "public", "ä", "x" * 64]
)
def test_a_name_that_is_no_plain_identifier_is_refused(engine, name):
    with pytest.raises(StoreUsageError, match="not a valid name"):
        grant_reader(engine, name)


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
def test_a_reader_that_lifts_the_ban_on_writing_still_writes_nothing(store, analyst):
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


def test_a_reader_calls_no_function_of_the_server_that_writes_or_locks(analyst):
    """By the server's own list, so that a function that a later one adds is among them."""
    mine = (
        "has_function_privilege(oid, 'EXECUTE') and (proname ~ '^lo(_|read|write)' or "
        "proname ~ "
        "'advisory')"
    )
    with analyst.connect() as conn:
        assert conn.execute(text(f"select proname from pg_proc where {mine}")).scalars().all() == []


def test_a_reader_opens_no_other_database_even_one_made_later(store, analyst, postgresql_server):
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


def test_no_reader_stops_a_night(store, analyst):
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


def test_a_session_of_a_reader_has_limits(store, analyst):
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
