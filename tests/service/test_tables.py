"""Laws of the tables on the console: nothing in them is broken."""

import io
from functools import partial

import pytest
from rich.console import Console
from sqlalchemy import Engine

from db.views import views
from flows import console, text_tables
from flows.commands import history, questions
from flows.commands.query import query
from flows.text_tables import Column, print_table
from tests.support.stores import fill


def broken_cells(columns: list[Column], lines: list[str]) -> list[str]:
    """The lines of cells that stand on no line of the console whole."""
    return [
        part
        for each in columns
        for cell in each.cells
        for part in (cell.split() if each.is_prose else cell.split("\n"))
        if not any(part in line for line in lines)
    ]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("width", [80, 200])
def test_every_view_and_every_list_fits_the_console(
    engine: Engine, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine)
    monkeypatch.setattr(history, "_own_markets", list)  # the store's has no whole file
    printed: list[Column] = []

    def recorded(columns: list[Column], title: str | None = None) -> None:
        printed.extend(columns)
        print_table(columns, title)

    for module in (console, text_tables):
        monkeypatch.setattr(module, "print_table", recorded)
    asked = [
        partial(query, f"select * from {name} limit 2", as_json=False, as_csv=False)
        for name in views()
    ]
    asked += [
        partial(history.list_runs, None),
        history.list_markets,
        partial(history.history, "A", None, 30),
        partial(questions.show_questions, None),
    ]
    for command in asked:
        printed.clear()
        written = io.StringIO()
        for module in (console, text_tables):
            monkeypatch.setattr(module, "out", Console(file=written, width=width))
        command()
        assert printed
        assert broken_cells(printed, written.getvalue().splitlines()) == []
