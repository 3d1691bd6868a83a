"""Opening a store: every mistake is one line, a reader cannot write, two
writers wait for each other.
"""

import os
import sqlite3
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import make_url

from db import tables
from db.admin.copying import table_counts
from db.connection.user_sql import select
from db.engine import (
    database_url,
    is_read_only,
    location,
    open_engine,
    prepare,
    reading,
    require_current_schema,
    transaction,
    upgrade,
)
from db.errors import StoreError, StoreUsageError
from tests.support.kinds import postgresql_alone
from tests.support.postgresql_databases import drop_database, url_of
from tests.support.stores import counts

WRITERS, ROUNDS = 3, 7


def stock(symbol):
    return {"market": "toy", "symbol": symbol, "kind": "stock", "source_symbol": symbol}


def count(engine):
    return counts(engine)["instrument"]


def test_the_default_store_is_a_file_in_the_folder_of_the_data(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("DTML_DATABASE_URL", "DTML_DATA"):
        monkeypatch.delenv(name, raising=False)
    assert database_url().database == str(tmp_path / "data" / "dtml.sqlite")
    monkeypatch.setenv("DTML_DATA", "what? 50 % of #1")
    prepare(open_engine())
    reader = open_engine(read_only=True)
    require_current_schema(reader)
    assert location(reader) == str(tmp_path / "what? 50 % of #1" / "dtml.sqlite")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("no url at all", "malformed"),
        ("postgresql://quant:secret@host:port/x", "malformed"),
        ("mysql://quant:secret@host/x", "'mysql' is not supported"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_a_bad_url_is_one_line_without_its_password(url, said):
    with pytest.raises(StoreUsageError, match=said) as caught:
        open_engine(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://quant:s3cr%40et@127.0.0.1:1/x",
        "postgresql://quant@127.0.0.1:1/x?password=s3cr%40et",
        "postgresql://quant:s3cr%40et@127.0.0.1:1/x?options=-c%20no_such_setting%3Ds3cr%40et",
    ],
)
def test_a_server_that_cannot_be_reached_is_one_line_without_its_password(url):
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1.*start the server") as caught:
        open_engine(url)
    assert "s3cr" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


@postgresql_alone
def test_a_server_that_repeats_the_password_is_not_quoted(store_url):
    url = make_url(store_url).set(password="s3cr@et").render_as_string(hide_password=False)
    with pytest.raises(StoreUsageError, match=r"invalid input .*\*\*\*") as caught:
        select(open_engine(url, read_only=True), "select 's3cr@et'::int")
    assert "s3cr" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("buy low, sell high\n" * 97)
    with pytest.raises(StoreError, match=r"notes\.txt:.*not a database"):
        open_engine(f"sqlite:///{text}")
    assert text.read_text().startswith("buy low")


def test_a_store_that_is_not_there_is_not_made_by_reading(tmp_path):
    with pytest.raises(StoreUsageError, match="no store at"):
        open_engine(f"sqlite:///{tmp_path}/store.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_cannot_write(engine, reader):
    assert is_read_only(reader)
    assert not is_read_only(engine)
    with pytest.raises(StoreError, match=r"(?i)read-?only"), transaction(reader) as conn:
        conn.execute(sa.insert(tables.instrument), [stock("A")])
    assert count(engine) == 0


WRITES = (
    "delete from instrument",
    "drop view night_log",
    "select 1; delete from instrument",
    "create table mine (x int)",
    "with gone as (delete from instrument returning 1) select * from gone",
    "do $$ begin perform set_config('transaction_read_only', 'off', true); delete from "
    "instrument; end $$",
    "do $$ begin set transaction read write; delete from instrument; end $$",
    "set transaction read write",
    "rollback; begin read write; delete from instrument; commit",
)


def test_sql_of_a_user_writes_nothing_and_lifts_no_ban(engine, reader):
    with transaction(engine) as conn:
        conn.execute(sa.insert(tables.instrument), [stock("A")])
    for sql in WRITES:
        with pytest.raises(StoreUsageError) as refused:
            select(reader, sql)
        assert "damaged" not in str(refused.value)  # the store is well
        assert count(engine) == 1
    assert len(select(reader, "select * from night_log")) == 0


def test_two_writers_lose_nothing(engine):
    """Each reads, then writes what it read plus one: a lost update would show in the sum."""

    def write():
        for _ in range(ROUNDS):
            with transaction(engine) as conn:
                stored = table_counts(conn)["instrument"]
                conn.execute(sa.insert(tables.instrument), [stock(f"S{stored}")])

    writers = [threading.Thread(target=write) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert count(engine) == WRITERS * ROUNDS


@pytest.mark.soak
def test_a_writer_that_waits_too_long_is_told_why(store_url, monkeypatch):
    monkeypatch.setattr("db.engine.LOCK_WAIT_S", 1)
    first, second = open_engine(store_url), open_engine(store_url)
    with (
        transaction(first),
        pytest.raises(StoreError, match=r"another program held it .*; wait"),
        transaction(second),
    ):
        pytest.fail("two writers at once")


def make_store(url):
    engine = open_engine(url)
    prepare(engine)
    with transaction(engine) as conn:
        conn.execute(sa.insert(tables.instrument), [stock(f"S{os.getpid()}")])


@pytest.mark.soak
def test_processes_that_make_the_same_store_at_once_all_succeed(store_url, forks):
    processes = [forks.Process(target=make_store, args=(store_url,)) for _ in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * WRITERS
    assert count(open_engine(store_url)) == WRITERS


ADVICE = {
    517: "held it for 30 s; wait",  # SQLITE_BUSY_SNAPSHOT, as an extended code
    7: "enough memory: request less",
    8: "folder are writable",
    9: "limited to 30 s",
    778: "disk failed .*db restore",  # SQLITE_IOERR_WRITE
    11: "damaged: .*db check.*db restore",
    13: "free some space",
    14: "its folder exists",
    18: "no value of more than 1,000,000 bytes",
    26: "another kind of file, correct the path",
    "08006": "connection was lost",
    "23503": "nothing was changed",
    "25006": "connect to the primary",
    "40001": "try again",
    "42501": "grant-reader",
    "53100": "free some space",
    "53200": "server ran out of memory",
    "53300": "other connections end",
    "53400": "limit of the role",
    "55P03": "held it for 30 s; wait",
    "57014": "limited to 30 s",
    "57P01": "server closed the connection",
    "58030": "disk of the server failed .*db restore",
    "XX001": "server are damaged .*db restore",
}


@pytest.mark.parametrize("code", ADVICE)
def test_a_failure_says_what_its_user_can_do(tmp_path, code):
    error = sqlite3.OperationalError("it failed")
    if isinstance(code, str):
        error = pytest.importorskip("psycopg.errors").lookup(code)("it failed")
    else:
        vars(error)["sqlite_errorcode"] = code
    engine = open_engine(f"sqlite:///{tmp_path}/store.sqlite")
    with pytest.raises(StoreError, match=rf"it failed \(.*{ADVICE[code]}"), reading(engine):
        raise sa.exc.DBAPIError(None, None, error)


def test_a_full_disk_is_one_line_and_nothing_is_half_written(tmp_path):
    engine = open_engine(f"sqlite:///{tmp_path}/store.sqlite")
    prepare(engine)

    def limit(connection, _record):
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages + 3}")

    engine.dispose()
    sa.event.listen(engine, "connect", limit)
    with (
        pytest.raises(StoreError, match=r"disk is full .free"),
        transaction(engine) as conn,
    ):
        conn.execute(sa.insert(tables.instrument), [stock(f"S{each}" * 97) for each in range(997)])
    assert count(engine) == 0


@postgresql_alone  # a file has no connection to lose
def test_a_connection_that_the_server_dropped_is_one_line_and_then_replaced(engine):
    kill = sa.text("select pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(StoreError, match="terminat") as caught, transaction(engine) as conn:
        conn.execute(kill)
    assert "\n" not in str(caught.value)
    assert count(engine) == 0


@pytest.mark.parametrize("open_connection", [reading, transaction])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_store_that_is_gone_or_another_file_is_not_written_to(
    tmp_path,
    open_connection,
    is_replaced,
):
    """The connection of the pool would go on with the old file, and lose what it writes."""
    file, elsewhere = tmp_path / "store.sqlite", tmp_path / "elsewhere.sqlite"
    engine = open_engine(f"sqlite:///{file}")
    upgrade(engine)
    with open_connection(engine):
        file.rename(elsewhere)
    if is_replaced:
        file.write_bytes(elsewhere.read_bytes())
    with pytest.raises(StoreError, match=str(file)), open_connection(engine):
        pass
    assert file.exists() == is_replaced


ODD = {
    "datestyle": "'SQL, DMY'",
    "timezone": "'Asia/Seoul'",
    "client_encoding": "'LATIN1'",
    "statement_timeout": "'1s'",
    "idle_session_timeout": "'1s'",
    "idle_in_transaction_session_timeout": "'1s'",
}


@postgresql_alone
def test_settings_of_a_database_change_nothing_for_a_writer(store_url):
    database = make_url(store_url).database
    engine = open_engine(store_url)
    with transaction(engine) as conn:
        for name, value in ODD.items():
            conn.execute(sa.text(f"alter database {database} set {name} = {value}"))
    engine.dispose()  # what follows has connections of its own
    with reading(engine) as conn:
        told = [conn.execute(sa.text(f"show {name}")).scalar_one() for name in ODD]
        assert told[0].startswith("ISO")
        assert told[1:] == ["UTC", "UTF8", "0", "0", "0"]
        moment, title = conn.execute(sa.text("select now(), '\ucf54\uc2a4\ud53c'")).one()
        assert moment.utcoffset().total_seconds() == 0
        assert title == "\ucf54\uc2a4\ud53c"
    engine.dispose()


def test_a_database_that_cannot_hold_every_character_is_refused_at_once(postgresql_admin):
    name = "of_latin1"
    with postgresql_admin.connect() as conn:
        conn.execute(
            sa.text(
                f"create database {name} encoding 'LATIN1' template template0 "
                "lc_collate 'C' lc_ctype 'C'"
            )
        )
    url = url_of(postgresql_admin, name)
    try:
        with pytest.raises(StoreUsageError, match=f"{name}.*LATIN1"):
            open_engine(url)
        reader = open_engine(url, read_only=True)
        assert is_read_only(reader)
        reader.dispose()
    finally:
        drop_database(postgresql_admin, name)


def test_sql_of_a_user_needs_a_reader(engine):
    with pytest.raises(StoreUsageError, match="read_only"):
        select(engine, "select 1 as one")
