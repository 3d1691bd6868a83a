"""A password and a token that the environment holds come out nowhere: not said,
not in a file, not in the store.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from filelock import FileLock
from sqlalchemy import Engine, create_engine, make_url

from db import tables as schema
from db.engine import location, open_engine
from db.errors import StoreUsageError
from flows.service.prefect_server import LOGIN
from flows.service.schedules import DELAY, LOCK, write_serving
from tests.support.nights import small_market
from tests.support.prefect_server import plain_environment, prefect_server
from tests.support.webhook import TOKEN, Webhook, webhook

pytestmark = pytest.mark.soak

DTML = Path(sys.executable).with_name("dtml")
# of the password, each of which would give some of it away
PARTS = (
    "zebr4cut",
    "mang0pit",
    "quil1ton",
)
PASSWORD = "{}/{}@{} %:".format(*PARTS)
PLANTED = (*PARTS, TOKEN)
NIGHT = ("nightly", "--market-file", "small.toml", "--as-of")


@dataclass
class Scene:
    """A folder in which commands ran, what they said, the store as its
    administrator sees it, the Prefect server, and the webhook.
    """

    folder: Path
    url: str
    prefect: dict[str, str]
    admin: Engine
    hook: Webhook
    said: dict[str, subprocess.CompletedProcess[str]]

    def run(self, name, *arguments, url=None):
        environment = (
            plain_environment()
            | self.prefect
            | {
                "DTML_DATABASE_URL": url or self.url,
                "DTML_ALERTS": self.hook.url,
                "DTML_DATA": str(self.folder / "data"),
                "DTML_REPORTS": str(self.folder / "reports"),
            }
        )
        self.said[name] = subprocess.run(
            [DTML, *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )


def plant(server):
    """A role that needs its password, with a schema of its own; the
    administrator's engine and the role's URL.
    """
    url = make_url(server)
    admin = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    lines = (
        "local all planted scram-sha-256",
        "local all all trust",
        "host all all 127.0.0.1/32 trust",
    )
    rules = ", ".join(f"({number}, '{line}')" for number, line in enumerate(lines))
    with admin.connect() as conn:
        conn.exec_driver_sql(f"create role planted login password '{PASSWORD.replace('%', '%%')}'")
        conn.exec_driver_sql("create schema planted authorization planted")
        file = conn.exec_driver_sql("show hba_file").scalar_one()
        conn.exec_driver_sql(
            f"copy (select rule from (values {rules}) as r(i, rule) order by i) to '{file}'"
        )
        conn.exec_driver_sql("select pg_reload_conf()")
    own = url.set(username="planted", password=PASSWORD).update_query_dict(
        {"options": "-c search_path=planted"}
    )
    return admin, own


@pytest.fixture(scope="module")
def scene(postgresql_server, tmp_path_factory):
    """One Prefect server, whose database is in the folder, has the runs of all nights."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "small.toml").write_text(small_market())
    admin, own = plant(postgresql_server)
    with webhook() as hook, prefect_server(folder / "data" / "prefect") as api:
        hook.answer = 500
        prefect = {"PREFECT_API_URL": api, LOGIN: os.environ[LOGIN]}
        scene = Scene(folder, own.render_as_string(hide_password=False), prefect, admin, hook, {})
        scene.run("night", "--debug", *NIGHT, "2024-07-02")
        with admin.connect() as conn:
            conn.exec_driver_sql("alter table planted.prediction owner to postgres")
        scene.run("refused night", "--debug", *NIGHT, "2024-07-03")
        served = folder / "data" / "prefect"
        write_serving(served, ["small"], DELAY, None)  # else its nights of 2024 are history
        with FileLock(served / LOCK):
            scene.run("status", "--debug", "status", "--check")
        scene.run("query", "query", f"select '{PASSWORD}'::int")
        wrong = own.set(password=f"{PASSWORD}x")
        scene.run(
            "wrong password", "--debug", "runs", url=wrong.render_as_string(hide_password=False)
        )
        as_typed = own.render_as_string(hide_password=False).replace(
            quote(PASSWORD, safe=" "), PASSWORD
        )
        scene.run("raw password", "--debug", "runs", url=as_typed)
        yield scene
    with admin.connect() as conn:
        conn.exec_driver_sql("drop schema planted cascade")
        conn.exec_driver_sql("drop role planted")
    admin.dispose()


def test_the_commands_went_where_a_secret_could_come_out(scene):
    codes = {name: ended.returncode for name, ended in scene.said.items()}
    ended = {"night": 0, "refused night": 1, "status": 1, "query": 2}
    assert codes == ended | {"wrong password": 1, "raw password": 2}
    said = {name: ended.stderr for name, ended in scene.said.items()}
    assert re.search("permission denied .*prediction", said["refused night"])
    assert "not accepted by JSON" in said["refused night"]
    assert "password authentication failed" in said["wrong password"]
    assert "malformed database URL" in said["raw password"]
    assert "invalid input syntax" in said["query"]
    assert scene.hook.tried > 0


def test_no_command_says_a_secret(scene):
    said = {name: ended.stdout + ended.stderr for name, ended in scene.said.items()}
    assert [(name, part) for name, text in said.items() for part in PLANTED if part in text] == []


def test_no_file_holds_a_secret(scene):
    files = [file for file in scene.folder.rglob("*") if file.is_file()]
    assert {"prefect.db", "2024-07-02.html"} <= {file.name for file in files}
    held = [
        (file, part) for file in files for part in PLANTED if part.encode() in file.read_bytes()
    ]
    assert held == []


def test_no_row_holds_a_secret(scene):
    tables = [each.name for each in schema.metadata.sorted_tables]
    rows = {}
    with scene.admin.connect() as conn:
        for table in tables:
            found = conn.exec_driver_sql(f"select t::text from planted.{table} t").scalars()
            rows[table] = "\n".join(found)
    assert rows["night"].count("refused") == 1
    assert rows["alert"]
    assert [(table, part) for table, text in rows.items() for part in PLANTED if part in text] == []


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://quant:{}@127.0.0.1:9/x",
        "postgresql://quant:{}@127.0.0.1/x?host=127.0.0.1&port=9",
        "postgresql://127.0.0.1:9/x?user=quant&password={}",
        "postgresql://quant@127.0.0.1:9/x?sslmode=disable&password={}",
        "postgresql://quant@127.0.0.1:9/x?passfile=/tmp/{}",
        "postgres+psycopg://quant:{}@127.0.0.1:9/x",
        "mysql://quant:{}@127.0.0.1:9/x",
    ],
)
@pytest.mark.parametrize("written", [PASSWORD, quote(PASSWORD), quote(PASSWORD, safe="")])
def test_no_way_to_write_a_password_shows_it(url, written):
    pytest.importorskip("psycopg")
    try:
        said = location(open_engine(url.format(written)))
    except Exception as error:  # noqa: BLE001 - whatever is raised may be shown
        causes = [error, error.__cause__, error.__context__]
        said = " ".join(str(each) for each in causes)
    assert [part for part in PARTS if part in said] == []


def test_a_password_that_could_be_read_as_a_host_is_a_mistake_that_says_how_to_write_it():
    with pytest.raises(StoreUsageError, match="password's @ as %40") as caught:
        open_engine(f"postgresql://quant:{PASSWORD}@127.0.0.1:9/x")
    assert caught.value.__cause__ is None
