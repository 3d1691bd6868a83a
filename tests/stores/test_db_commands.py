"""`dtml db` as its user meets it: each command ends in what was done, or in one
line that says why not.
"""

import json
import re

import pytest
from sqlalchemy import make_url

from db.engine import open_engine, reading, transaction
from tests.support.benchmark_rows import ranker
from tests.support.kinds import postgresql_alone
from tests.support.revisions import become_next
from tests.support.roles import NAME
from tests.support.stores import FIRST, keep_weights, url_of


@pytest.mark.soak
def test_weights_that_are_damaged_fail_the_check(filled, dtml, tmp_path):
    keep_weights(tmp_path / "data").write_bytes(b"other")
    code, said, _ = dtml(url_of(filled), "check", "--json")
    failed = [each for each in json.loads(said) if each["state"] == "failed"]
    # both are kept there
    lost = [(name, FIRST) for name in ("first", ranker()["id"])]
    assert code == 1
    (found,) = (each["found"] for each in failed)
    assert [(each["run_id"], each["path"]) for each in found] == lost
    assert all("changed or damaged" in each["why"] for each in found)


def test_what_cannot_be_copied_is_refused_in_one_line(filled, dtml, tmp_path, monkeypatch):
    own, target = str(filled.url.database), f"sqlite:///{tmp_path}/target.sqlite"
    code, said, complaint = dtml(url_of(filled), "copy", own)
    assert (code, said, complaint.count("\n")) == (2, "", 1)
    assert "is not empty" in complaint
    become_next(monkeypatch, tmp_path)
    code, _, complaint = dtml(target, "copy", own)
    assert code == 2
    assert f"`DTML_DATABASE_URL=sqlite:///{own} dtml db upgrade`" in complaint
    assert not (tmp_path / "target.sqlite").exists()


@postgresql_alone
def test_a_reader_gets_its_password_from_the_environment_and_it_is_never_shown(
    engine, store_url, dtml, monkeypatch
):
    monkeypatch.setenv("DTML_READER_PASSWORD", "s3cret-w0rd")
    superuser = make_url(store_url).set(username="postgres").render_as_string(hide_password=False)
    code, said, complaint = dtml(superuser, "grant-reader", NAME)
    assert (code, complaint) == (0, "")
    assert re.search(f"role {NAME} .*created .*views .*studies", said)
    assert "s3cret" not in said
    reader = make_url(store_url).set(username=NAME).render_as_string(hide_password=False)
    with reading(open_engine(reader)) as conn:
        assert conn.exec_driver_sql("select count(*) from night_log").scalar_one() == 0
    with transaction(open_engine(superuser)) as conn:
        conn.exec_driver_sql(f"drop owned by {NAME}")
        conn.exec_driver_sql(f"drop role {NAME}")
