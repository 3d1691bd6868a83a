"""The command as its user meets it: through Prefect and yfinance where it
counts, one line for every mistake.
"""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from db.admin.copying import table_counts
from db.engine import open_engine, reading
from dtml.sources.simulated import SimulatedSource
from tests.support.commands import Command, as_served
from tests.support.nights import small_market
from tests.support.prefect_server import give_tables

pytestmark = pytest.mark.slow

DTML = Path(sys.executable).with_name("dtml")
AS_OF = "2024-07-02"
# The command in a process in which an import of torch or Prefect fails.
WITHOUT_HEAVY_PACKAGES = """
import sys
sys.modules["torch"] = sys.modules["prefect.context"] = None
from flows.cli import main
main()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, with nothing of the machine's environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("DTML_DATABASE_URL", "DTML_DATA", "DTML_REPORTS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "small.toml").write_text(small_market())
    return tmp_path


@pytest.fixture
def dtml(home: Path, command: Command) -> Command:
    """The command in that folder."""
    return command


def run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DTML, *arguments],
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


def nights_of(dtml: Command) -> list[dict[str, Any]]:
    return json.loads(dtml("query", "select * from night order by as_of", "--json")[1])


def rows(url: str | None = None) -> dict[str, int]:
    with reading(open_engine(url, read_only=True)) as conn:
        return table_counts(conn)


def test_nights_run_through_prefect_and_a_second_run_adds_no_row_and_says_so(dtml: Command) -> None:
    command = ("nightly", "--market-file", "small.toml", "--as-of", AS_OF, "--nights", "2")
    first = run_process(*command, "--json")
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert document["new"]
    assert document["night"]["status"] == "complete"
    assert {row["target"] for row in document["predictions"]} == {"2024-07-03"}
    assert {row["predictor"] for row in document["scores"]} >= {"dtml", "always_up"}
    assert Path(document["report"]).read_text().startswith("<!doctype html>")
    before = rows()
    code, said, complaint = dtml(*command)
    assert code == 0, complaint
    assert "already complete: no row" in said
    assert rows() == before
    again = subprocess.run(
        [sys.executable, "-c", WITHOUT_HEAVY_PACKAGES, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert again.stdout == said

    code, said, _ = dtml("history", "L01", "--json")
    assert code == 0
    assert [row["target"] for row in json.loads(said)] == ["2024-07-02", "2024-07-03"]
    code, said, _ = dtml("runs", "small", "--json")
    assert json.loads(said)[0]["seeds"] == [0, 1]
    code, said, _ = dtml("score", "--market-file", "small.toml", "--as-of", AS_OF)
    assert (code, "every stock rises" in said) == (0, True)
    code, said, _ = dtml("query", "select count(*) as n from latest_prediction", "--csv")
    assert said == "n\n30\n"
    code, _, said = dtml("query", "delete from prediction")
    assert code == 2
    assert rows() == before


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_each_step_is_a_command_and_together_they_are_a_night(dtml: Command) -> None:
    market = ("--market-file", "small.toml", "--as-of", AS_OF)
    code, said, _ = dtml("fetch", *market, "--json")
    assert (code, json.loads(said)["asked"]) == (0, 31)
    code, said, _ = dtml("fetch", *market, "--json")
    assert (code, json.loads(said)["asked"]) == (0, 0)
    assert dtml("train", *market)[0] == 0
    code, said, _ = dtml("predict", *market, "--json")
    assert (code, len(json.loads(said)["predictions"])) == (0, 30)
    assert [night["status"] for night in nights_of(dtml)] == ["complete"]


def yahoo_market(home: Path, stocks: list[str]) -> Path:
    listed = json.dumps(stocks)
    text = f"[constituents]\nas_of = 2024-01-02\nsymbols = {listed}\n[checks]\nmax_missing = 0.3"
    file = home / "yahooed.toml"
    file.write_text(small_market(source="yahoo", more=text))
    return file


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_without_a_network_the_night_ends_refused_and_nothing_is_lost(
    dtml: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = yahoo_market(home, ["L01", "L02"])
    nowhere = {
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in nowhere.items():
        monkeypatch.setenv(name, value)
    market = ("--market-file", str(file), "--as-of", AS_OF)
    code, _, complaint = dtml("nightly", *market)
    assert code == 1
    assert "unreachable" in complaint
    assert len([line for line in complaint.splitlines() if line.startswith("error")]) == 1
    assert "Traceback" not in complaint
    (night,) = nights_of(dtml)
    assert night["status"] == "refused"
    assert "SIMX" in night["reason"]
    code, _, complaint = dtml("fetch", *market)
    assert (code, "index SIMX is missing" in complaint) == (1, True)


MISTAKES = {
    "unknown market": (("nightly", "nasdaq"), "unknown market 'nasdaq'"),
    "no market": (("nightly",), "give a market"),
    "two markets": (("nightly", "kdd17", "--market-file", "small.toml"), "give one market"),
    "day that is no session": (
        ("nightly", "simulated", "--as-of", "2024-07-04"),
        "a session of XNYS",
    ),
    "day that is no date": (("nightly", "simulated", "--as-of", "July"), "July"),
    "files without prices": (("nightly", "kdd17"), "--prices"),
    "missing file": (("nightly", "kdd17", "--prices", "none.parquet"), "none.parquet"),
    "broken market file": (("nightly", "--market-file", "broken.toml"), "broken.toml"),
    "unknown market of a history": (("history", "L01", "--market", "nowhere"), "nowhere"),
    "unknown symbol": (("history", "NVDA"), "NVDA"),
    "sql that does not run": (("query", "selec 1"), "selec"),
    "nothing stored": (("score", "simulated"), "dtml fetch simulated"),
}


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(
    mistake: str, dtml: Command, home: Path
) -> None:
    open_engine().dispose()
    assert dtml("db", "upgrade")[0] == 0
    (home / "broken.toml").write_text("title = ")
    arguments, words = MISTAKES[mistake]
    code, said, complaint = dtml(*arguments)
    assert code == 2, complaint
    assert words in complaint
    assert "Traceback" not in complaint
    assert said == ""
    if complaint.startswith("error"):
        assert len(complaint.strip().splitlines()) == 1


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_a_damaged_checkpoint_refuses_the_night_and_says_how_to_go_on(
    dtml: Command, home: Path
) -> None:
    market = ("--market-file", "small.toml")
    assert dtml("fetch", *market, "--as-of", AS_OF)[0] == 0
    assert dtml("train", *market, "--as-of", AS_OF)[0] == 0
    (checkpoint,) = (home / "data" / "models").glob("*.safetensors")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1] + b"\0")
    code, _, complaint = dtml("predict", *market, "--as-of", AS_OF)
    assert code == 1
    assert "was changed or damaged" in complaint
    assert nights_of(dtml)[0]["status"] == "refused"


def test_a_file_that_ends_on_a_weekend_has_its_night_on_the_session_before(
    dtml: Command, home: Path
) -> None:
    bars = SimulatedSource().bars(date(2024, 6, 28))
    bars = bars[bars["session"] >= pd.Timestamp(2024, 1, 2)].drop(columns=["split", "dividend"])
    saturday = bars[bars["session"] == pd.Timestamp(2024, 6, 28)].assign(
        session=pd.Timestamp(2024, 6, 29)
    )
    pd.concat([bars, saturday]).to_csv(home / "prices.csv", index=False)
    files = ("--market-file", "small.toml", "--source", "files", "--prices", "prices.csv")
    code, said, complaint = dtml("fetch", *files, "--json")
    assert (code, json.loads(said)["as_of"]) == (0, "2024-06-28"), complaint


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_several_nights_say_what_each_of_them_rejected(dtml: Command, home: Path) -> None:
    bars = SimulatedSource().bars(date(2024, 7, 2))
    bars = bars[bars["session"] >= pd.Timestamp(2023, 6, 1)]
    bars.loc[
        (bars["symbol"] == "L01") & (bars["session"] == pd.Timestamp(2024, 6, 3)), "close"
    ] = -1.0
    bars.drop(columns=["split", "dividend"]).to_csv(home / "prices.csv", index=False)
    command = (
        "nightly",
        "--market-file",
        "small.toml",
        "--source",
        "files",
        "--prices",
        "prices.csv",
        "--nights",
        "2",
    )
    code, said, complaint = dtml(*command)
    assert code == 0, complaint
    assert "night of 2024-07-01: " in said
    assert " 1 rejected; " in said
    assert "2024-06-03" in said
    assert "non_positive_price" in said
    document = json.loads(dtml(*command, "--json")[1])
    assert [(night["as_of"], night["rejected"]) for night in document["nights"]] == [
        ("2024-07-01", 1),
        (AS_OF, 0),
    ]


@pytest.mark.by_quarters
@pytest.mark.soak
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_an_interrupt_ends_at_once_and_the_same_command_goes_on(
    dtml: Command, home: Path, number: int, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "small.toml").write_text(small_market().replace("epochs = 2", "epochs = 400"))
    give_tables(home / "data" / "prefect")
    command = [DTML, "nightly", "--market-file", "small.toml", "--as-of", AS_OF]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 550
    while not list(home.glob("data/training/*/*-cpu.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, number)
    _, complaint = process.communicate(timeout=550)
    assert process.returncode == 128 + number
    assert "the same command again" in complaint
    assert "Traceback" not in complaint
    assert list(home.glob("data/training/*/*-cpu.safetensors"))
    (home / "small.toml").write_text(small_market())
    with as_served(prefect_api, monkeypatch):
        code, _, complaint = dtml("nightly", "--market-file", "small.toml", "--as-of", AS_OF)
    assert code == 0, complaint
    assert [night["status"] for night in nights_of(dtml)] == ["complete"]


def test_help_answers_without_importing_anything_heavy() -> None:
    code = (
        "import sys, flows.cli; "
        "print(sorted({'torch','prefect','pandas','sqlalchemy','yfinance'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
