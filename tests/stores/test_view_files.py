"""A view's file says what the view and each of its columns means."""

from db.questions import questions
from db.tables import metadata
from db.views import TYPES, data_dictionary, parse_view, views

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


def test_every_type_is_used_and_every_file_is_read() -> None:
    assert {column.type for view in views().values() for column in view.columns} == set(TYPES)
    assert all(column.meaning.endswith(".") for view in views().values() for column in view.columns)


def test_questions_come_in_the_order_of_their_files() -> None:
    assert questions()[0].title.startswith("What is predicted ")
    assert all(each.title.endswith("?") and each.note and each.sql for each in questions())


def test_the_dictionary_says_what_every_view_table_and_column_means() -> None:
    described = [(view.name, view.meaning, view.meanings()) for view in views().values()]
    described += [
        (table.name, table.comment, {column.name: column.comment for column in table.columns})
        for table in metadata.tables.values()
    ]
    printed = data_dictionary()
    for name, meaning, columns in described:
        section = printed.split(f"**`{name}`** (")[1].split("\n**")[0]
        assert f"): {meaning}" in section
        for column, about in columns.items():
            assert f"| `{column}` | {about} |" in section, (name, column)
