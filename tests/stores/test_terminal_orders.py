"""A store may be somebody else's: no text of it gives orders to the terminal that shows it."""

import json
from pathlib import Path

import pytest

from db.engine import open_engine, prepare
from flows.log_lines import TextLines
from flows.settings import ORDERS
from tests.support.commands import Command

pytestmark = pytest.mark.slow

NAME = "\x1b]0;taken\x07\x9b31m\u202eDER\r"


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """SQL of a name with orders, for a store in the environment."""
    url = f"sqlite:///{tmp_path}/store.sqlite"
    prepare(open_engine(url))
    monkeypatch.setenv("DTML_DATABASE_URL", url)
    return " || ".join(f"char({ord(character)})" for character in NAME)


def test_what_people_read_shows_orders_and_what_programs_read_has_them(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = f"select {name} as name, 1 as 'heading {NAME}'"
    for forms in ([], ["--csv"], ["--json"]):
        with monkeypatch.context() as terminal:
            terminal.setattr("sys.stdout.isatty", lambda: True)
            _, said, _ = command("query", *forms, sql)
        assert ORDERS.sub("", said.replace("\r\n", "\n")) == said
        assert "\\u001b]0;taken" in said
        assert "\\u202eDER" in said
    assert json.loads(said)[0]["name"] == NAME
    assert NAME in command("query", "--csv", sql)[1]


def test_errors_and_log_lines_show_orders(name: str, command: Command) -> None:
    code, _, complaint = command("query", f"select * from '{NAME}'")
    assert code == 2
    for line in (complaint.rstrip("\n"), TextLines().line("warning", NAME)):
        assert "\\u001b]0;taken" in line
        assert not ORDERS.search(line)
