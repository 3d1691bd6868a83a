"""A reader of PostgreSQL reads the documented views; whatever else it tries, the server refuses."""

import base64
import hashlib
import hmac
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from made_stores import contents, fill
from sqlalchemy import Engine, create_engine, make_url, text

from db import schema
from db.engine import open_engine, require_current, transaction, upgrade
from db.errors import StoreError, StoreUsageError
from db.queries import select
from db.roles import grant_reader
from db.views import VIEW_SQL

NAME, SECRET = "analyst_of_tests", "a 'quoted' s3cret"


def as_role(url: str, name: str, password: str | None = None) -> Engine:
    """The same database as a user's own program opens it: with nothing of this program's care."""
    parsed = make_url(url).set(drivername="postgresql+psycopg", username=name, password=password)
    return create_engine(parsed, poolclass=sa.NullPool)


def run(engine: Engine, *statements: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for statement in statements:
            conn.execute(text(statement))


@pytest.fixture(scope="module")
def stores(postgresql_server: str) -> Iterator[dict[str, str]]:
    """URLs of two filled stores, in two schemas of a database to make others from."""
    made = make_url(postgresql_server).set(database="stores")
    own = made.update_query_dict({"options": '-c search_path="A\\ schema"'})
    urls = {"public": made, "schema of its own": own}
    server = as_role(postgresql_server, "postgres")
    run(server, "create database stores")
    run(as_role(made.render_as_string(hide_password=False), "postgres"), 'create schema "A schema"')
    for url in urls.values():
        engine = open_engine(url.render_as_string(hide_password=False))
        upgrade(engine)
        fill(engine)
        engine.dispose()
    readers = {name: url.set(database="readers").render_as_string(hide_password=False) for name, url in urls.items()}
    yield readers
    run(server, "drop database stores with (force)")


@pytest.fixture(params=["schema of its own", "public"])
def store(
    request: pytest.FixtureRequest, postgresql_server: str, stores: dict[str, str]
) -> Iterator[tuple[Engine, str]]:
    """A filled store in a database of its own, because rights on a database are everybody's; and its URL."""
    server = as_role(postgresql_server, "postgres")
    run(server, "drop database if exists readers", "create database readers template stores")
    engine = open_engine(stores[request.param])
    yield engine, stores[request.param]
    engine.dispose()
    run(server, "drop database readers with (force)", *(f'drop role if exists "{each}"' for each in (NAME, "owner")))


@pytest.fixture
def reader(store: tuple[Engine, str]) -> Engine:
    """The store as the reader opens it."""
    engine, url = store
    assert grant_reader(engine, NAME)
    return as_role(url, NAME)


def test_a_reader_reads_every_documented_view(reader: Engine) -> None:
    with reader.connect() as conn:
        counted = {view: conn.execute(text(f"select count(*) from {view}")).scalar_one() for view in VIEW_SQL}
    assert counted["prediction_history"] == counted["latest_prediction"] == 3
    assert set(counted) == set(VIEW_SQL)


@pytest.mark.parametrize("store", ["schema of its own"], indirect=True)
def test_a_reader_finds_the_views_without_naming_their_schema(store: tuple[Engine, str], reader: Engine) -> None:
    plain = make_url(store[1]).difference_update_query(["options"]).render_as_string(hide_password=False)
    with as_role(plain, NAME).connect() as conn:
        assert conn.execute(text("select count(*) from night_log")).scalar_one() == 1


def test_a_reader_asks_as_dtml_query_does(store: tuple[Engine, str], reader: Engine) -> None:
    named = make_url(store[1]).set(username=NAME).render_as_string(hide_password=False)
    own = open_engine(named, read_only=True)
    require_current(own)
    assert select(own, "select count(*) as n from prediction_history")["n"].tolist() == [3]
    with pytest.raises(StoreUsageError, match="permission denied for table prediction"):
        select(own, "select * from prediction")
    own.dispose()


def test_a_reader_reads_no_table(reader: Engine) -> None:
    for table in schema.metadata.tables:
        with pytest.raises(sa.exc.ProgrammingError, match=f"permission denied for table {table}"):
            run(reader, f"select 1 from {table}")


WRITES = [
    "insert into alert values ('x', '2024-01-01', 'late', '', now(), null)",
    "insert into alert_log values ('x', '2024-01-01', 'late', '', now(), null)",
    "update prediction set probability = 1",
    "update model set kind = 'paper'",
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
]


@pytest.mark.parametrize("store", ["public"], indirect=True)
def test_a_reader_that_lifts_the_ban_on_writing_still_writes_nothing(store: tuple[Engine, str], reader: Engine) -> None:
    before = contents(store[0])
    for sql in WRITES:
        refused = r"permission denied|must be owner|must be (super|able)|cannot (insert|update)"
        with pytest.raises(sa.exc.DBAPIError, match=refused):
            run(reader, "set default_transaction_read_only = off", "set transaction_read_only = off", sql)
    assert contents(store[0]) == before


def test_a_reader_is_read_only_unless_it_says_otherwise(reader: Engine) -> None:
    with pytest.raises(sa.exc.InternalError, match="read-only transaction"):
        run(reader, "select lo_create(0)")


def test_a_statement_of_a_reader_that_takes_too_long_is_ended(
    store: tuple[Engine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("db.roles.READ_LIMIT_S", 0.2)
    grant_reader(store[0], NAME)
    with pytest.raises(sa.exc.OperationalError, match="statement timeout"):
        run(as_role(store[1], NAME), "select pg_sleep(20)")


def test_a_grant_that_is_given_again_is_the_same(store: tuple[Engine, str]) -> None:
    mine = "relname !~ '^pg_' and grantee <> relowner"  # to write down an owner's rights changes nothing
    rights = text(f"select relname, a.* from pg_class, aclexplode(relacl) a where {mine} order by 1, 2, 3, 4")
    settings = text("select setconfig::text, setdatabase from pg_db_role_setting order by setdatabase")
    kept = []
    for is_new in (True, False):
        assert grant_reader(store[0], NAME) is is_new
        with store[0].connect() as conn:
            kept.append((conn.execute(rights).all(), conn.execute(settings).all()))
    assert kept[0] == kept[1]
    assert sorted({row.relname for row in kept[0][0] if row.relname in VIEW_SQL}) == sorted(VIEW_SQL)


def test_rights_from_before_are_taken_back(store: tuple[Engine, str]) -> None:
    with transaction(store[0]) as conn:
        conn.execute(text(f"create role {NAME} login"))
        conn.execute(text(f"grant all on prediction, night_log to {NAME}"))
        conn.execute(text(f"grant select (market), update (market) on night to {NAME}"))
        conn.execute(text("create schema another"))
        conn.execute(text("create table another.secret as select 1 as x"))
        conn.execute(text(f"grant usage, create on schema another to {NAME}"))
        conn.execute(text(f"grant select on another.secret to {NAME}"))
    assert not grant_reader(store[0], NAME)
    reader = as_role(store[1], NAME)
    for sql in ("select * from prediction", "select market from night", "select * from another.secret"):
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            run(reader, sql)


HARMFUL = {
    "superuser": (f"alter role {NAME} superuser", "is a superuser"),
    "makes roles": (f"alter role {NAME} createrole createdb", "allowed to make roles, allowed to make databases"),
    "member": (f"grant pg_read_all_data to {NAME}", "a member of pg_read_all_data"),
    "owner": (f"alter table alert owner to {NAME}", "the owner of alert"),
}


@pytest.mark.parametrize("store", ["public"], indirect=True)
@pytest.mark.parametrize("harmful", HARMFUL)
def test_a_role_with_rights_from_elsewhere_is_refused(store: tuple[Engine, str], harmful: str) -> None:
    grant, said = HARMFUL[harmful]
    run(store[0], f"create role {NAME}", grant)
    with pytest.raises(StoreUsageError, match=said):
        grant_reader(store[0], NAME)
    run(store[0], "alter table alert owner to postgres")


@pytest.mark.parametrize("store", ["public"], indirect=True)
def test_a_right_that_everybody_has_is_named_and_nothing_is_granted(store: tuple[Engine, str]) -> None:
    run(store[0], "grant insert on price to public")
    with pytest.raises(StoreUsageError, match="could still use the table price, a right that PUBLIC has"):
        grant_reader(store[0], NAME)
    with store[0].connect() as conn:
        assert conn.execute(text("select 1 from pg_roles where rolname = :name"), {"name": NAME}).first() is None


@pytest.mark.parametrize("store", ["public"], indirect=True)
def test_the_owner_of_the_tables_still_writes_in_bulk(store: tuple[Engine, str]) -> None:
    """Which takes a temporary table, a right that the public no longer has."""
    run(store[0], "create role owner login", *(f"alter table {each} owner to owner" for each in schema.metadata.tables))
    grant_reader(store[0], NAME)
    run(as_role(store[1], "owner"), "create temporary table mine (x integer)", "create table kept (x integer)")
    run(as_role(store[1], "owner"), "drop table kept")
    run(store[0], *(f"alter table {each} owner to postgres" for each in schema.metadata.tables))
    run(store[0], "drop owned by owner")


def test_a_password_is_set_and_the_server_gets_its_hash(store: tuple[Engine, str]) -> None:
    grant_reader(store[0], NAME, SECRET)
    with store[0].connect() as conn:
        kept = conn.execute(text("select rolpassword from pg_authid where rolname = :n"), {"n": NAME}).scalar_one()
    assert is_hash_of(kept, SECRET)
    grant_reader(store[0], NAME)
    with store[0].connect() as conn:
        again = conn.execute(text("select rolpassword from pg_authid where rolname = :n"), {"n": NAME}).scalar_one()
    assert again == kept, "without a password in the environment the one there stays"


def is_hash_of(kept: str, password: str) -> bool:
    """Whether a server that keeps this would let the password in (RFC 5802)."""
    method, rounds_and_salt, keys = kept.split("$")
    rounds, salt = rounds_and_salt.split(":")
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(rounds))
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return (method, base64.b64decode(keys.split(":")[1])) == ("SCRAM-SHA-256", server_key)


@pytest.mark.parametrize("store", ["public"], indirect=True)
def test_a_role_that_may_not_make_roles_is_told_so(store: tuple[Engine, str]) -> None:
    engine, url = store
    run(engine, "create role owner login", "grant select on alembic_version to owner")
    with pytest.raises(StoreError, match=r"permission denied.*role") as caught:
        grant_reader(open_engine(make_url(url).set(username="owner").render_as_string(hide_password=False)), NAME)
    assert "\n" not in str(caught.value)
    run(engine, "drop owned by owner")


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", ["", "1st", "a b", 'x"; drop table price; --', "pg_reader", "public", "ä", "x" * 64])
def test_a_name_that_is_no_plain_identifier_is_refused(engine: Engine, name: str) -> None:
    with pytest.raises(StoreUsageError, match="cannot name a reader"):
        grant_reader(engine, name)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_sqlite_has_no_roles_and_says_how_to_read(engine: Engine) -> None:
    with pytest.raises(StoreUsageError, match=r"no roles: `dtml query` .*mode=ro"):
        grant_reader(engine, NAME)
