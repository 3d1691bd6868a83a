"""Twenty questions have one answer, on either engine, for a reader too; and the page holds it."""

import re

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import create_engine, make_url, text

from db.admin.copying import copy_store, snapshot
from db.admin.roles import grant_reader
from db.connection.user_sql import select
from db.engine import open_engine
from db.questions import questions
from flows.commands.questions import ask
from tests.support.questions import MARKET, PAGE, filled_store, page, store_in
from tests.support.run_folder import made_once

NAME = "reader_of_questions"
WRITTEN_WITH = "2.4.6"  # the numpy that wrote the page
FIGURE = re.compile(r"\d*\.\d+")
OTHER_PLANS = (
    "-c enable_hashjoin=off -c enable_hashagg=off -c enable_mergejoin=off -c "
    "enable_incremental_sort=off"
)

every_question = pytest.mark.parametrize("question", questions(), ids=lambda each: each.title[:40])


@pytest.fixture(scope="module")
def store():
    """Filled once for all processes of a test run: it takes longer than all questions do."""
    return store_in(made_once("questions", filled_store))


@pytest.fixture(scope="module")
def on_sqlite(store):
    opened = open_engine(store, read_only=True)
    yield opened
    opened.dispose()


@pytest.fixture(scope="module")
def copied(store, postgresql_server):
    """The URL of the same store in a database of its own, because rights on a
    database are everybody's.
    """
    url = make_url(postgresql_server).set(drivername="postgresql+psycopg")
    server = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with server.connect() as conn:
        conn.execute(text("create database questions"))
    made = url.set(database="questions").update_query_dict({"options": "-c timezone=UTC"})
    target, source = (
        open_engine(made.render_as_string(hide_password=False)),
        open_engine(store, read_only=True),
    )
    with snapshot(source) as conn:
        copy_store(conn, target)
    assert grant_reader(target, NAME)
    for engine in (source, target):
        engine.dispose()
    yield made.render_as_string(hide_password=False)
    with server.connect() as conn:
        conn.execute(text("drop database questions with (force)"))
        conn.execute(text(f"drop role {NAME}"))


@pytest.fixture(scope="module")
def on_postgresql(copied):
    """As the reader, who may read the documented views and nothing else."""
    opened = open_engine(
        make_url(copied).set(username=NAME).render_as_string(hide_password=False), read_only=True
    )
    yield opened
    opened.dispose()


@pytest.fixture(scope="module")
def by_other_plans(copied):
    """As the owner, where rows come in another order unless the statement says which."""
    url = make_url(copied)
    url = url.update_query_dict({"options": f"{url.query['options']} {OTHER_PLANS}"})
    opened = open_engine(url.render_as_string(hide_password=False), read_only=True)
    yield opened
    opened.dispose()


@pytest.mark.one_case
@pytest.mark.soak
@every_question
def test_both_engines_give_the_same_rows_whoever_asks_and_whatever_the_plan(
    question, on_sqlite, on_postgresql, by_other_plans
):
    expected = ask(on_sqlite, question, MARKET)
    for engine in (on_postgresql, by_other_plans):
        pd.testing.assert_frame_equal(ask(engine, question, MARKET), expected, check_exact=True)


@pytest.mark.soak
@every_question
def test_a_market_is_a_value_whatever_its_name(question, on_sqlite, on_postgresql):
    """A market without a row has no answer; a name that ended its own text
    would have one, or an error.
    """
    for name in ("it's", "' or '1' = '1", "simulated'; --", "\\' or 1=1 --", "100 %s"):
        for engine in (on_sqlite, on_postgresql):
            assert ask(engine, question, name).empty
    assert MARKET in question.sql
    assert MARKET not in question.about("kdd17")


@pytest.mark.soak
def test_the_page_holds_the_answers_as_they_are(store):
    """With another numpy than the one that wrote the page, a figure may differ by one in its last
    digit: it adds in another order, and what lies between two figures is rounded to either.
    """
    found = PAGE.read_text(encoding="utf-8")
    wanted = page(store)
    written_by = "run `python -m tests.support.questions`, which writes it anew"
    if np.__version__ == WRITTEN_WITH:
        assert found == wanted, written_by
    assert FIGURE.sub("#", found) == FIGURE.sub("#", wanted), written_by
    for shown, answered in zip(FIGURE.findall(found), FIGURE.findall(wanted), strict=True):
        last_digit = 10.0 ** -len(answered.partition(".")[2])
        assert abs(float(shown) - float(answered)) < 1.5 * last_digit, written_by


@pytest.mark.soak
def test_the_page_shows_every_statement_as_it_can_be_pasted(on_sqlite):
    blocks = PAGE.read_text(encoding="utf-8").split("```sql\n")[1:]
    assert len(blocks) == len(questions())
    for question, block in zip(questions(), blocks, strict=True):
        pasted = select(on_sqlite, block.split("\n```")[0])
        assert len(pasted) == len(ask(on_sqlite, question, MARKET))


@pytest.mark.soak
def test_the_page_on_other_tools_asks_what_the_store_holds(on_sqlite):
    text_of = PAGE.with_name("CONNECT.md").read_text(encoding="utf-8")
    asked = re.findall(r"```sql\n(.*?)```", text_of, re.DOTALL) + re.findall(
        r'query\("(select .*?)"\)', text_of
    )
    # DuckDB's, which no test installs
    of_files = [each for each in asked if "read_parquet" in each]
    assert (len(asked), len(of_files)) == (3, 1)
    for statement in set(asked).difference(of_files):
        assert len(select(on_sqlite, statement).columns) >= 2
