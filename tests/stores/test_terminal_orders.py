"""A store may be somebody else's: no text of it gives orders to the terminal that shows it."""

import json
import logging
from datetime import date

import pandas as pd
import pytest

from db.engine import open_engine, prepare
from flows.log_lines import Lines
from flows.nightly.paper import Orders
from flows.settings import ORDERS
from tests.support.commands import options_of_commands
from tests.support.log_lines import record

NAME = "\x1b]0;taken\x07\x9b31m\u202eDER\r"


@pytest.fixture
def name(tmp_path, monkeypatch):
    """SQL of a name with orders, for a store in the environment."""
    url = f"sqlite:///{tmp_path}/store.sqlite"
    prepare(open_engine(url))
    monkeypatch.setenv("DTML_DATABASE_URL", url)
    return " || ".join(f"char({ord(character)})" for character in NAME)


def test_what_people_read_shows_orders_and_what_programs_read_has_them(name, command, monkeypatch):
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


def test_csv_of_every_command_shows_orders_on_a_terminal_alone(name, command, monkeypatch):
    order = {"symbol": NAME, "side": "buy", "shares": 1.0, "price": 2.0, "value": 2.0, "cost": 0.0}
    found = Orders(target=date(2026, 11, 23), rows=pd.DataFrame([order]), cash=1.0)
    monkeypatch.setattr("flows.commands.ranking.next_orders", lambda *_: found)
    asked = {
        "query": ("query", f"select {name} as name", "--csv"),
        "orders": ("orders", "simulated", "--capital", "9", "--csv"),
    }
    assert {verb for verb, options in options_of_commands().items() if "--csv" in options} == {
        *asked
    }
    for words in asked.values():
        with monkeypatch.context() as terminal:
            terminal.setattr("sys.stdout.isatty", lambda: True)
            _, said, _ = command(*words)
        assert ORDERS.sub("", said) == said
        assert "\\u001b]0;taken" in said
        assert "\\u202eDER" in said
        assert NAME in command(*words)[1]


def test_errors_and_log_lines_show_orders(name, command):
    code, _, complaint = command("query", f"select * from '{NAME}'")
    assert code == 2
    for line in (complaint.rstrip("\n"), Lines().format(record(logging.WARNING, NAME))):
        assert "\\u001b]0;taken" in line
        assert not ORDERS.search(line)
