"""A market of one's own is known by its name once it was fetched: the store
keeps the file that describes it.
"""

import json
from datetime import UTC, datetime

import pytest

from db.engine import reading, transaction
from db.read import read_row
from db.save import save
from dtml.errors import UsageError
from flows.markets.files import market_of_store, read_market
from flows.service.status import named_markets
from tests.support.nights import AS_OF, small_market

pytestmark = pytest.mark.slow


@pytest.fixture
def mine(tmp_path, engine, store_url, command, monkeypatch):
    """The file of a market that was fetched into the store of the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DTML_DATABASE_URL", store_url)
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    file = tmp_path / "mine.toml"
    file.write_text(small_market())
    code, _, complaint = command("fetch", "--market-file", "mine.toml", "--as-of", str(AS_OF))
    assert code == 0, complaint
    return file


def test_a_market_is_read_where_its_file_lay_and_where_that_is_gone_as_it_was(mine, engine):
    before = read_market("mine")
    mine.write_text(small_market().replace('title = "', 'title = "New '))
    assert read_market("mine").title == f"New {before.title}"
    mine.unlink()
    assert read_market("mine") == before
    with reading(engine) as conn:
        kept = read_row(conn, "market_file", columns="path, text", market="mine")
    assert kept == {"path": str(mine), "text": small_market()}
    assert named_markets(engine, (), ()) == {"mine": before}


@pytest.mark.one_case
@pytest.mark.parametrize("names", ['code = "own.py"', 'source = "own.py"'])
@pytest.mark.parametrize(
    "place", ["tools/mine.toml", "{folder}/tools/mine.toml", "{folder}/gone.toml"]
)
def test_no_code_runs_that_only_a_store_names(
    mine,
    engine,
    command,
    tmp_path,
    monkeypatch,
    place,
    names,
):
    """The store may be somebody else's, whose files lie beside it, and name other files."""
    tools, ran = tmp_path / "tools", tmp_path / "ran"
    tools.mkdir()
    (tools / "own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    absolute = names.replace("own.py", str(tools / "own.py"))
    lines = [line for line in small_market().splitlines() if not line.startswith("source")]
    text = "\n".join([absolute, *lines])
    (tools / "mine.toml").write_text(text)
    path = place.format(folder=tmp_path)
    with transaction(engine) as conn:
        save(
            conn,
            "market_file",
            {"market": "mine", "path": path, "text": text, "saved_at": datetime.now(UTC)},
        )
    for verb in (["fetch", "mine"], ["train", "mine"], ["nightly", "mine"], ["serve", "mine"]):
        code, _, complaint = command(*verb)
        assert code == 2
        assert "--market-file" in complaint
    assert command("status")[0] == command("markets")[0] == 0
    known = market_of_store(engine, "mine")
    assert known is not None
    assert (known.code, known.source) == (None, "yahoo")
    assert not ran.exists()
    read_market("mine", tools / "mine.toml")
    if path == str(tools / "mine.toml"):  # given once, it is read by the market's name too
        known = read_market("mine")
        assert known == market_of_store(engine, "mine")
        assert str(tools / "own.py") in (str(known.code), known.source)
    with monkeypatch.context() as other:
        other.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
        with pytest.raises(UsageError, match="--market-file"):
            read_market("mine")


def test_a_fetched_market_is_listed_reads_nothing_twice_and_no_other_name_is_known(mine, command):
    assert "mine" in [each["market"] for each in json.loads(command("markets", "--json")[1])]
    again = ("fetch", "mine", "--as-of", str(AS_OF))
    code, said, _ = command(*again)
    assert (code, "0 symbols requested" in said, "so none were read" in said) == (0, True, True)
    with pytest.raises(UsageError, match="unknown market 'mien'"):
        read_market("mien")
    mine.write_text("title = 1")
    code, _, complaint = command(*again)
    assert code == 2
    assert f"{mine}: title: expected text" in " ".join(complaint.split()), complaint
