"""A view's file says what the view and each of its columns means; one that does not is named."""

import pytest

from db.questions import parse_question, questions
from db.views import TYPES, parse_view, views

GOOD = """-- Nights of each market: one row per
-- market.
--
-- market  text     Name of the market.
-- nights  integer  Nights of it.
--
-- A reason.
select market, count(*) as nights -- all of them
from night
group by market
"""


def test_a_view_s_file_gives_its_meaning_its_columns_and_its_statement() -> None:
    view = parse_view("nights", GOOD)
    assert view.meaning == "Nights of each market: one row per market."
    assert [(each.name, each.type, each.meaning) for each in view.columns] == [
        ("market", "text", "Name of the market."),
        ("nights", "integer", "Nights of it."),
    ]
    assert view.sql.splitlines()[:2] == [
        "create view nights as",
        "select market, count(*) as nights -- all of them",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("integer", "whole"),
        ("Nights of it.", "Nights of it"),
        ("-- nights  integer  Nights of it.", "-- nights  integer"),
        ("-- nights  ", "-- market  "),
        ("-- Nights of each market: one row per\n-- market.\n--\n", ""),
        ("-- A reason.\nselect", "-- select"),
        (GOOD[GOOD.index("--\n") : GOOD.index("select")], ""),
    ],
)
def test_a_view_s_file_of_another_form_is_refused_by_name(old: str, new: str) -> None:
    text = GOOD.replace(old, new)
    if new == "-- select":
        text = "\n".join(line for line in text.splitlines() if line.startswith("--"))
    with pytest.raises(ValueError, match=r"db/views/nights\.sql(:| explains| lacks)"):
        parse_view("nights", text)


def test_every_type_is_used_and_every_file_is_read() -> None:
    assert {column.type for view in views().values() for column in view.columns} == set(TYPES)
    assert list(views()) == sorted(views())


@pytest.mark.parametrize("lost", ["?", "--\n", "How.", "select 1", "-- Why?\n--\n-- How.\n"])
def test_a_question_without_title_note_or_statement_is_refused(lost: str) -> None:
    text = "-- Why?\n--\n-- How.\nselect 1\n"
    assert parse_question("01-why", text).note == "How."
    with pytest.raises(ValueError, match=r"db/questions/01-why\.sql lacks"):
        parse_question("01-why", text.replace(lost, ""))


def test_questions_come_in_the_order_of_their_files() -> None:
    assert questions()[0].title.startswith("What is predicted ")
