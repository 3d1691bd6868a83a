"""A market of one's own is known by its name once it was fetched: the store
keeps the file that describes it.
"""

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine

from db.engine import reading
from db.rows import markets
from dtml.errors import UsageError
from flows.markets.files import read_market
from flows.service.status import named_markets
from tests.support.commands import Command
from tests.support.nights import AS_OF, small_market

pytestmark = pytest.mark.slow


@pytest.fixture
def mine(
    tmp_path: Path,
    engine: Engine,
    store_url: str,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The file of a market that was fetched into the store of the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    file = tmp_path / "mine.toml"
    file.write_text(small_market())
    code, _, complaint = command("fetch", "--market-file", "mine.toml", "--as-of", str(AS_OF))
    assert code == 0, complaint
    return file


def test_a_market_is_read_where_its_file_lay_and_where_that_is_gone_as_it_was(
    mine: Path, engine: Engine
) -> None:
    before = read_market("mine")
    mine.write_text(small_market().replace('title = "', 'title = "New '))
    assert read_market("mine").title == f"New {before.title}"
    mine.unlink()
    assert read_market("mine") == before
    with reading(engine) as conn:
        assert markets.file_of(conn, "mine") == (str(mine), small_market())
    assert named_markets(engine, (), ()) == {"mine": before}


def test_later_commands_need_its_name_alone(mine: Path, command: Command) -> None:
    mine.unlink()
    code, said, complaint = command("fetch", "mine", "--as-of", str(AS_OF), "--json")
    assert (code, json.loads(said)["asked"]) == (0, 0), complaint


def test_a_name_that_neither_the_package_nor_the_store_knows_is_refused(
    mine: Path, command: Command
) -> None:
    with pytest.raises(UsageError, match="unknown market 'mien'"):
        read_market("mien")
    mine.write_text("title = 1")
    code, _, complaint = command("fetch", "mine", "--as-of", str(AS_OF))
    assert (code, f"{mine}: calendar: missing" in " ".join(complaint.split())) == (2, True), (
        complaint
    )


def test_markets_lists_it_and_a_fetch_with_nothing_due_says_that_it_read_nothing(
    mine: Path, command: Command
) -> None:
    assert "mine" in [each["market"] for each in json.loads(command("markets", "--json")[1])]
    code, said, _ = command("fetch", "mine", "--as-of", str(AS_OF))
    assert code == 0
    assert "0 symbols requested" in said
    assert "so none were read" in said
