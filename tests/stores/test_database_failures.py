"""Each way in which a database fails has words of its own, which say what to
do: damage is not a full disk.
"""

import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, make_url

from db.admin.copying import table_counts
from db.engine import open_engine, reading, require_current_schema, transaction
from db.errors import StoreError, StoreUsageError
from db.rows import translations
from tests.support.postgresql_databases import KEEPER
from tests.support.stores import contents, fill

PAGE = 4096
RESTORE = r"dtml db check.*dtml db restore"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, current_file: Path) -> bytes:
    """A filled SQLite store, all of it in its one file."""
    file = tmp_path_factory.mktemp("whole") / "store.sqlite"
    shutil.copy(current_file, file)
    engine = open_engine(f"sqlite:///{file}")
    fill(engine)
    engine.dispose()
    with sqlite3.connect(file) as conn:
        conn.execute("pragma journal_mode = delete")
    conn.close()
    return file.read_bytes()


def used(data: bytes, folder: Path) -> None:
    """Open a store with these bytes, read all of it and write to it."""
    for left in folder.glob("store.sqlite-*"):
        left.unlink()
    (folder / "store.sqlite").write_bytes(data)
    engine = open_engine(f"sqlite:///{folder / 'store.sqlite'}")
    try:
        require_current_schema(engine)
        contents(engine)
        with transaction(engine) as conn:
            conn.execute(sa.text("delete from price"))
            translations.queue_texts(conn, "en-de", ["x" * PAGE] * 17)
    finally:
        engine.dispose()


def garbled(data: bytes, first: int, last: int) -> bytes:
    return data[:first] + random.Random(first).randbytes(last - first) + data[last:]


DAMAGE = {
    "the first page": lambda data: garbled(data, 100, PAGE),
    "every other page": lambda data: garbled(data, PAGE, len(data)),
    "the second half cut off": lambda data: data[: len(data) // 2],
    "the second half cut off at a page": lambda data: data[: len(data) // PAGE // 2 * PAGE],
    "all but its first bytes cut off": lambda data: data[:50],
    "the header": lambda data: garbled(data, 16, 100),
    "the first words": lambda data: garbled(data, 0, 16),
    "zeros": lambda data: bytes(len(data)),
    "a format of the future": lambda data: data[:47] + b"\xff" + data[48:],
    "a version to write of the future": lambda data: data[:18] + b"\xff" + data[19:],
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_said_to_be_damaged_and_how_to_come_back(
    damage: str, whole: bytes, tmp_path: Path
) -> None:
    used(whole, tmp_path)
    with pytest.raises(StoreError, match=f"damaged.*{RESTORE}") as caught:
        used(DAMAGE[damage](whole), tmp_path)
    assert "full" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.soak
@pytest.mark.slow
def test_whatever_page_is_garbled_no_disk_is_said_to_be_full(whole: bytes, tmp_path: Path) -> None:
    said = []
    for page in range(1, len(whole) // PAGE):
        try:
            used(garbled(whole, page * PAGE, (page + 1) * PAGE), tmp_path)
        except StoreError as error:
            said.append(str(error))
    assert len(said) > 10
    assert [each for each in said if "full" in each or "dtml db restore" not in each] == []


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_numbers_used_up_by_damage_are_told_from_a_full_disk(engine: Engine) -> None:
    """SQLite itself says that the disk is full."""
    with transaction(engine) as conn:
        translations.queue_texts(conn, "en-de", ["x"])
        conn.exec_driver_sql("update sqlite_sequence set seq = 9223372036854775807")
    said = rf"disk is full.*GB.*free.*damaged.*{RESTORE}"
    with pytest.raises(StoreError, match=said), transaction(engine) as conn:
        translations.queue_texts(conn, "en-de", ["y"])


FILLING = """
import resource, sys
from db.rows import translations
from db.engine import open_engine, transaction
engine = open_engine(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
with transaction(engine) as conn:
    translations.queue_texts(conn, "en-de", ["x" * 10_000] * 997)
"""


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_disk_that_takes_no_more_writes_is_said_to_have_failed(
    engine: Engine, store_url: str
) -> None:
    """A limit of the process, which the file's own driver cannot tell from a broken disk."""
    done = subprocess.run(
        [sys.executable, "-c", FILLING, store_url], capture_output=True, text=True, check=False
    )
    assert re.search("disk I/O error .*failed .*full ", done.stderr.splitlines()[-1])
    assert "StoreError" in done.stderr.splitlines()[-1]
    with reading(engine) as conn:
        assert table_counts(conn)["translation_text"] == 0


@pytest.fixture
def files(engine: Engine, postgresql_admin: Engine) -> Iterator[tuple[str, Path]]:
    """The URL of a store of PostgreSQL no page of which was read, and the file
    of its table alembic_version.
    """
    copy = f"{engine.url.database}_files"
    engine.dispose()
    with postgresql_admin.connect() as conn:
        conn.exec_driver_sql(
            f"create database {copy} owner {KEEPER} template {engine.url.database} strategy "
            "file_copy"
        )
        folder = conn.exec_driver_sql("show data_directory").scalar_one()
    url = engine.url.set(database=copy)
    plain = sa.create_engine(url, poolclass=sa.NullPool)
    with plain.connect() as conn:
        path = conn.exec_driver_sql("select pg_relation_filepath('alembic_version')").scalar_one()
    yield url.render_as_string(hide_password=False), Path(folder, path)
    with postgresql_admin.connect() as conn:
        conn.exec_driver_sql(f"drop database {copy} with (force)")


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_damaged_page_of_a_server_is_said_to_be_damaged(files: tuple[str, Path]) -> None:
    url, file = files
    data = file.read_bytes()
    with file.open("r+b") as page:
        page.write(random.Random(7).randbytes(len(data)))
    with pytest.raises(StoreError, match=rf"invalid page.*server .*damaged.*{RESTORE}"):
        require_current_schema(open_engine(url))


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_file_that_a_server_misses_is_said_to_have_failed(files: tuple[str, Path]) -> None:
    url, file = files
    file.unlink()
    with pytest.raises(StoreError, match=rf"not open file.*server failed.*{RESTORE}"):
        require_current_schema(open_engine(url))


REFUSALS = {
    "no connection left": ("connection limit 0", "wait .*other connections"),
    "read only": ("set default_transaction_read_only = on", "is read-only"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_what_a_server_refuses_has_its_own_words(
    engine: Engine, refusal: str, postgresql_admin: Engine
) -> None:
    setting, said = REFUSALS[refusal]
    engine.dispose()
    with postgresql_admin.connect() as conn:
        conn.exec_driver_sql(f"alter database {engine.url.database} {setting}")
    with pytest.raises(StoreError, match=said), transaction(engine) as conn:
        conn.exec_driver_sql("delete from price")


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_right_that_lacks_and_a_database_that_is_not_there_have_words(
    engine: Engine, store_url: str
) -> None:
    with (
        pytest.raises(StoreError, match=r"permission denied.*lacks a right"),
        transaction(engine) as conn,
    ):
        conn.exec_driver_sql("select pg_read_file('/etc/hostname')")
    gone = make_url(store_url).set(database="nowhere").render_as_string(hide_password=False)
    with pytest.raises(StoreError, match=r"not exist .create it"):
        open_engine(gone)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "insert into alembic_version values ('9999')",
            "damaged,.*table alembic_version.*2 schemas",
        ),
        ("delete from alembic_version", "damaged,.*table alembic_version"),
    ],
)
def test_a_store_of_two_schemas_or_of_none_is_noticed(
    engine: Engine, store_url: str, change: str, said: str
) -> None:
    with transaction(engine) as conn:
        conn.exec_driver_sql(change)
    with pytest.raises(StoreError, match=f"{said}.*{RESTORE}") as caught:
        require_current_schema(open_engine(store_url, read_only=True))
    assert not isinstance(caught.value, StoreUsageError)
