"""What another program puts into the queue and cannot be translated fails
alone, with its reason; the others do not.
"""

import json
import re

import pytest
import torch

from db.engine import reading, transaction
from db.errors import StoreUsageError
from db.rows import translations
from db.rows.translations import MOST_CHARACTERS, queue_texts, take_texts
from db.tables import LONGEST_TEXT
from flows.translating.worker import work_off
from tests.support.kinds import sqlite_alone
from tests.support.recipe import SOURCES
from translation.decoding.beam_search import Search

GREEDY, CPU = Search(beams=1, alpha=0.0), torch.device("cpu")
INSERT = "insert into translation_text (model, text) values ('tiny', {})"
# Bytes that SQLite holds as text, or as bytes in a column of text, and PostgreSQL refuses.
NO_TEXT = {
    "a byte that no UTF-8 has": "cast(x'6261ff6e6f' as text)",
    "half a pair of UTF-16": "cast(x'eda080' as text)",
    "bytes": "x'ff00fe'",
}
# A check of the table refuses so long a text, but not one that hides its length behind a NUL.
LONG = f"'a' || char(0) || '{'bano lume. ' * 100_000}'"


def inserted(engine, values):
    """As an outside program does."""
    with transaction(engine) as conn:
        for value in values:
            conn.exec_driver_sql(INSERT.format(value))


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@sqlite_alone
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, r"not valid UTF-8 \('utf-8'") for value in NO_TEXT.values()),
        (LONG, "1,100,002 characters,.*at most 20,000 "),
    ],
    ids=[*NO_TEXT, "long"],
)
def test_what_is_no_text_fails_alone_with_its_reason_and_can_be_listed(
    engine, value, reason, translate, monkeypatch
):
    monkeypatch.setenv("DTML_DATABASE_URL", engine.url.render_as_string())
    inserted(engine, [f"'{SOURCES[0]}'", value, f"'{SOURCES[1]}'"])
    assert translate("jobs")[0] == 0
    assert work_off(engine, None, GREEDY, CPU) == {"done": 2, "failed": 1, "waiting": 0}
    code, said, _ = translate("jobs", "--json")
    found = json.loads(said)["texts"]
    assert (code, [each["status"] for each in found]) == (0, ["done", "failed", "done"])
    assert re.search(reason, found[1]["reason"])


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@sqlite_alone
def test_the_name_of_a_model_that_is_no_text_keeps_no_other_waiting(engine):
    with transaction(engine) as conn:
        conn.exec_driver_sql(
            "insert into translation_text (model, text) values (cast(x'ff' as text), 'bano')"
        )
    inserted(engine, [f"'{SOURCES[0]}'"])
    assert work_off(engine, None, GREEDY, CPU) == {"done": 1, "failed": 0, "waiting": 1}
    assert take_texts(engine, "worker", None, 9) == []


def test_texts_taken_at_once_are_so_many_characters_together(engine):
    inserted(engine, [f"'{'a' * LONGEST_TEXT}'"] * 7)
    taken = take_texts(engine, "worker", ["tiny"], 99)
    assert sum(len(each["text"]) for each in taken) == MOST_CHARACTERS
    assert len(take_texts(engine, "another", ["tiny"], 99)) == 2


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("b" * (LONGEST_TEXT + 1), "20,001 characters,.*at most 20,000 "),
        ("\ud800", "not valid UTF-8"),
    ],
    ids=["too long", "half a pair of UTF-16"],
)
def test_what_no_worker_would_translate_is_refused_when_it_is_queued(engine, wrong, reason):
    with (
        pytest.raises(StoreUsageError, match=rf"^text 2 of 3,.*no text .*:.*{reason}"),
        transaction(engine) as conn,
    ):
        queue_texts(conn, "tiny", ["bano", wrong, "lume"])
    with reading(engine) as conn:
        assert translations.queue_counts(conn).empty
