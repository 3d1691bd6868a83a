"""The command as its user meets it: through Prefect and yfinance where it
counts, one line for every mistake.
"""

import csv
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from datetime import date
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
import yaml
from rich.console import Console

from db.admin.copying import table_counts
from db.engine import open_engine, reading
from db.errors import StoreUsageError
from db.views import views
from flows import console, text_tables
from flows.commands import history, questions
from flows.commands.query import query
from flows.settings import NEEDED
from flows.signals import GO_ON
from flows.text_tables import print_table
from tests.support.commands import as_served, whole_command
from tests.support.nights import small_market
from tests.support.places import ROOT
from tests.support.prefect_server import give_tables
from tests.support.stores import GAP, MOMENT, fill
from translation.environment import VARIABLES
from translation.errors import TranslationError

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
def home(tmp_path, monkeypatch):
    """An empty folder that is the current one, with nothing of the machine's environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("DTML_DATABASE_URL", "DTML_DATA", "DTML_REPORTS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "small.toml").write_text(small_market())
    return tmp_path


@pytest.fixture
def dtml(home, command):
    """The command in that folder."""
    return command


def run_process(*arguments):
    return subprocess.run(
        [DTML, *arguments],
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


def nights_of(dtml):
    return json.loads(dtml("query", "select * from night order by as_of", "--json")[1])


def rows(url=None):
    with reading(open_engine(url, read_only=True)) as conn:
        return table_counts(conn)


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_nights_run_through_prefect_and_a_second_run_adds_no_row_and_says_so(dtml):
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


@pytest.mark.soak
@pytest.mark.usefixtures("served")
def test_without_a_network_the_night_ends_refused_and_nothing_is_lost(dtml, home, monkeypatch):
    constituents = '[constituents]\nas_of = 2024-01-02\nsymbols = ["L01", "L02"]\n'
    file = home / "yahooed.toml"
    file.write_text(small_market(source="yahoo", more=constituents))
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
def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(mistake, dtml, home):
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


@pytest.mark.by_quarters
@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_at_once_and_the_same_command_goes_on(
    dtml, home, number, prefect_api, monkeypatch
):
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


def all_commands(group=None, path=()):
    """Every command by its path."""
    group = whole_command() if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize(
    ("path", "command"),
    list(all_commands()),
    ids=lambda each: " ".join(each) if type(each) is tuple else "",
)
def test_every_command_has_an_example_that_parses(path, command):
    examples = [
        line.split("Example: ")[1] for line in command.help.splitlines() if "Example: " in line
    ]
    assert examples
    for example in examples:
        variable, *rest = shlex.split(example)  # one of the environment may come first
        words = rest[1:] if "=" in variable else rest
        assert tuple(words[: len(path)]) == path
        command.make_context(" ".join(path), words[len(path) :], resilient_parsing=False)


def test_an_interrupt_before_anything_is_done_says_how_to_go_on_and_a_second_one_breaks_nothing(
    command,
):
    def interrupted():
        raise KeyboardInterrupt

    (impatient := typer.Typer()).command()(interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        code, _, complaint = command(of=impatient)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, complaint.strip().splitlines()[-1]) == (130, GO_ON)


@pytest.mark.soak
def test_a_shell_completes_markets():
    typed = "dtml nightly k"
    place = str(len(typed.split()) - 1)
    asked = {"_DTML_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": place}
    code = "import sys; sys.argv = ['dtml']; from flows.cli import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.split() == ["kdd17", "kospi100", "kospi200"], said.stderr


ASKED = {"as_json": False, "as_csv": False}


@pytest.fixture
def store(engine):
    """The store that a command finds, with rows in every table."""
    fill(engine)
    return engine


def test_a_parquet_file_has_days_moments_and_numbers_on_either_engine(store, tmp_path):
    asked = """
        select h.symbol, h.target, h.made_at, h.probability, h.probability_std, h.correct, n.gaps
        from prediction_history h
        join night_log n on n.target = h.target
        order by h.symbol
    """
    file = tmp_path / "new folder" / "directions.parquet"
    query(asked, **ASKED, parquet=file)
    kept = pq.read_table(file)
    assert {
        field.name: str(field.type) for field in kept.schema if field.name not in ("symbol", "gaps")
    } == {
        "target": "date32[day]",
        "made_at": "timestamp[us, tz=UTC]",
        "probability": "double",
        "probability_std": "double",
        "correct": "int64",
    }
    rows = kept.to_pylist()
    assert [row["symbol"] for row in rows] == ["A", "B", "C"]
    assert [row["probability"] for row in rows] == [0.25, 0.5, 0.75]
    assert [row["probability_std"] for row in rows] == [0.125, None, 0.0]
    assert {(row["target"], row["made_at"]) for row in rows} == {(date(2024, 1, 5), MOMENT)}
    assert json.loads(rows[0]["gaps"]) == [GAP]


@pytest.mark.on_postgresql
def test_csv_and_json_hold_values_of_any_type_on_either_engine(store, capsys):
    is_sqlite = store.dialect.name == "sqlite"
    more = "x'00ff' as b" if is_sqlite else "'\\x00ff'::bytea as b, interval '3 days' as i"
    sql = f"select gaps, {more} from night_log where gaps is not null"
    query(sql, as_json=False, as_csv=True)
    row, *_ = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (json.loads(row["gaps"]), row["b"]) == ([GAP], "00ff")
    query(sql, as_json=True, as_csv=False)
    row, *_ = json.loads(capsys.readouterr().out)
    assert (row["b"], row.get("i", "3 days, 0:00:00")) == ("00ff", "3 days, 0:00:00")


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_sql_comes_from_standard_input_for_a_dash(store, monkeypatch, capsys):
    sql = b"select symbol\nfrom latest_prediction\norder by symbol\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(sql)))
    query("-", as_json=True, as_csv=False)
    assert json.loads(capsys.readouterr().out) == [
        {"symbol": "A"},
        {"symbol": "B"},
        {"symbol": "C"},
    ]
    with pytest.raises(StoreUsageError):  # all of it was read
        query("-", **ASKED)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with pytest.raises(TranslationError, match="input is not UTF-8"):
        query("-", **ASKED)


def test_served_runs_and_workers_have_what_a_command_sets():
    assert all(NEEDED.fullmatch(name) for name in VARIABLES)
    file = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    assert file["definitions"]["pool"]["job_variables"]["env"] == VARIABLES


@pytest.mark.soak
def test_a_command_starts_no_temporary_server_of_prefect():
    """One would run what any page of a browser sends."""
    names = ("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "PREFECT_SERVER_EPHEMERAL_ENABLED")
    program = (
        "from flows.settings import prepare_prefect; prepare_prefect(quiet=True); "
        "from prefect.settings import get_current_settings; "
        "print(get_current_settings().server.ephemeral.enabled)"
    )
    others = {name: value for name, value in os.environ.items() if name not in names}
    asked = [sys.executable, "-c", program]
    ended = subprocess.run(asked, cwd=ROOT, env=others, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False"]


@pytest.mark.soak
def test_what_a_terminal_cannot_show_ends_no_command(tmp_path):
    title = "\ucf54\uc2a4\ud53c \u2013 \u20ac \U0001f4c8"
    (tmp_path / "my.toml").write_text(small_market(title=title), encoding="utf-8")
    told = {**os.environ, "PYTHONIOENCODING": "euc_kr", "DTML_DATA": str(tmp_path / "data")}
    for command in (
        ["fetch", "--market-file", "my.toml", "--as-of", "2024-07-01"],
        ["markets"],
        ["query", f"select '{title}' as title", "--csv"],
        ["query", f"select '{title}' as title"],
    ):
        done = subprocess.run(
            [DTML, *command], cwd=tmp_path, env=told, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert b"\\U0001f4c8" in done.stdout or command[0] == "fetch"


def broken_cells(columns, lines):
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
def test_every_view_and_every_list_fits_the_console(engine, width, monkeypatch):
    fill(engine)
    monkeypatch.setattr(history, "_own_markets", list)  # the store's has no whole file
    printed = []

    def recorded(columns, title=None):
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
