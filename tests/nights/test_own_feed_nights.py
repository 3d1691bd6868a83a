"""A feed of a user's own in its process and in nights: what it may, how it fails, what is kept."""

import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import text

from db import where
from db.engine import reading
from db.read import read_row, read_value
from dtml.errors import UsageError
from dtml.markets import load_market_file
from dtml.markets.definition import FeedAccess
from dtml.prices.sessions import next_session
from dtml.sources.own_feed import source as own_feed
from dtml.sources.own_feed.code import FeedCode, FeedError
from dtml.sources.own_feed.source import OwnFeed
from flows.markets import opened
from flows.markets.opened import CheckedFeed, RunRequest
from flows.nightly.context import MarketContext
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import NightRefusedError, directly, run_night
from flows.replay import Archive, replay_of
from flows.service import flows as scheduled
from flows.upkeep import doctor
from tests.support.commands import Command
from tests.support.nights import AS_OF, BARS, small_market

pytestmark = pytest.mark.slow

TARGET = next_session("XNYS", AS_OF)
SECRET = "s3cret/k3y of ours"
HONEST = '''"""The bars of a file that a vendor fills."""

from pathlib import Path

import pandas as pd

BARS = pd.read_parquet(Path(__file__).with_name("bars.parquet"))


def fetch(first, last):
    return BARS[BARS["session"] <= pd.Timestamp(last)]
'''
LYING = HONEST.replace("    return BARS", "    known = BARS").rstrip() + (
    '\n    newest = known.groupby("symbol")["close"].transform("last")\n'
    '    return known.assign(close=known["close"] / newest)\n'
)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    BARS.to_parquet(tmp_path / "bars.parquet")
    file = tmp_path / "mine.py"
    file.write_text(HONEST)
    return file


def feed_of(context: MarketContext, file: Path, *environment: str) -> OwnFeed:
    market = replace(context.market, feed=FeedAccess(environment=environment))
    return OwnFeed(market, FeedCode.of(str(file), market))


def with_feed(context: MarketContext, file: Path) -> MarketContext:
    """The market of the nights with a feed, as a new command opens it."""
    return replace(context, source=CheckedFeed(feed_of(context, file), context.engine))


def rows(context: MarketContext, query: str) -> list[tuple[object, ...]]:
    with reading(context.engine) as conn:
        return [tuple(row) for row in conn.execute(text(query))]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The feeds that were checked."""
    checked: list[str] = []
    admit = opened.admit

    def counted(feed: OwnFeed, first: dict[str, date], last: date) -> object:
        checked.append(feed.code)
        return admit(feed, first, last)

    monkeypatch.setattr(opened, "admit", counted)
    return checked


def test_a_night_with_an_own_feed_is_stored_with_its_code_and_replays_byte_for_byte(
    context: MarketContext, archive: Archive, mine: Path, checks: list[str]
) -> None:
    run_night(with_feed(context, mine), AS_OF)
    assert rows(context, "select distinct source from price") == [("mine.py",)]
    assert rows(context, "select source, code from price_fetch") == [("mine.py", HONEST)]
    assert rows(context, "select source, status from night") == [("mine.py", "complete")]
    run_night(with_feed(context, mine), TARGET)
    assert checks == [HONEST]  # the same code is not checked again
    mine.unlink()
    replayed = replay_of(archive, archive.night(AS_OF))
    assert replayed.reasons == []


@pytest.mark.soak
def test_changed_code_is_checked_again_and_a_lying_feed_refuses_the_night_by_name(
    context: MarketContext, mine: Path, checks: list[str]
) -> None:
    fetch_bars(with_feed(context, mine), AS_OF)
    stored = rows(context, "select count(*) from price")
    mine.write_text(LYING)
    with pytest.raises(NightRefusedError, match=r"mine\.py .*restates silently"):
        run_night(with_feed(context, mine), TARGET)
    assert checks == [HONEST, LYING]
    assert rows(context, "select count(*) from price") == stored
    with reading(context.engine) as conn:
        row = read_row(conn, "night_log", market=context.name, as_of=TARGET)
        assert (
            read_value(
                conn,
                "price_fetch",
                "code",
                market=context.name,
                source="mine.py",
                code=where.stored,
                order="-known_at",
            )
            == HONEST
        )
    assert row is not None
    assert row["status"] == "refused"
    assert re.match(r"mine\.py .*silently: close of ", str(row["reason"]))
    mine.write_text(HONEST)
    fetch_bars(with_feed(context, mine), TARGET)
    assert checks == [HONEST, LYING]  # the code that fetched last


@pytest.mark.soak
def test_a_feed_that_cannot_be_reached_is_checked_once_it_can(
    context: MarketContext, mine: Path, checks: list[str]
) -> None:
    closed = "    raise ConnectionError('no route')\n"
    mine.write_text(HONEST.replace("    return BARS", f"{closed}    return BARS"))
    failures = fetch_bars(with_feed(context, mine), AS_OF).failures
    assert set(failures["status"]) == {"unreachable"}
    assert failures["detail"].iloc[0].startswith("the feed is not")
    assert failures["detail"].iloc[0].endswith(" line 11: ConnectionError: no route")
    assert rows(context, "select code from price_fetch") == [(None,)]
    mine.write_text(HONEST)
    assert fetch_bars(with_feed(context, mine), AS_OF).failures.empty
    assert len(checks) == 2


BAD = {
    "while True:\n        pass": "more than 4 s: ",
    "1 / 0": "mine.py, line 11: ZeroDivisionError: ",
    "import numpy\n    numpy.ones((10**5, 10**6))": "may use 4 GiB: ",
    "import os\n    os.kill(os.getpid(), 9)": "was killed by SIGKILL",
    "raise SystemExit": "with exit status 1",
    "import os\n    os.environ['DTML_DATA']": "line 12: KeyError: 'DTML_DATA'",
    "Path(__file__).with_name('kept').write_text('')": "in its working folder",
    "return None": "mine.py: fetch returned nothing: ",
    "return BARS.assign(session=3)": "column session holds numbers",
    "return BARS": "to 2024-07-01, it gave ",
}


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.one_case("pass")
@pytest.mark.parametrize("bad", BAD, ids=[each.splitlines()[-1].strip() for each in BAD])
def test_what_fails_ends_its_fetch_with_one_line_and_stores_nothing(
    context: MarketContext, mine: Path, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine.write_text(HONEST.replace("    return BARS[", f"    {bad}\n    return BARS["))
    if "while True" in bad:
        monkeypatch.setenv("DTML_FEED_SECONDS", "4")
    with pytest.raises(FeedError) as error:
        fetch_bars(with_feed(context, mine), AS_OF)
    assert BAD[bad] in str(error.value)
    assert "\n" not in str(error.value)
    assert rows(context, "select count(*) from price") == [(0,)]
    assert not mine.with_name("kept").exists()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.soak
def test_a_feed_that_hangs_fails_its_run_of_the_service_and_not_the_service(
    context: MarketContext, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = "    import time\n    time.sleep(99)\n"
    mine.write_text(HONEST.replace("    return BARS", f"{sleep}    return BARS"))
    monkeypatch.setenv("DTML_FEED_SECONDS", "3")
    monkeypatch.setattr(scheduled, "_due", lambda: datetime(2024, 7, 1, 22, 30, tzinfo=UTC))
    monkeypatch.setattr(scheduled, "as_task", directly)
    monkeypatch.setattr(scheduled, "open_context", lambda _request: with_feed(context, mine))
    state = scheduled.scheduled_night.fn(RunRequest(context.name), None, (10_000,))
    assert state.is_failed()
    assert "more than 3 s" in str(state.message)


LEAK = """
import os
from urllib.error import URLError
from urllib.parse import quote

KEY = os.environ["VENDOR_KEY"]
print(KEY)


def fetch(first, last):
    print(KEY, flush=True)
    os.write(2, KEY.encode())
    raise {error}(f"no answer from http://vendor.example?key={{quote(KEY, safe='')}}&again={{KEY}}")
"""


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.one_case
@pytest.mark.parametrize("error", ["ValueError", "URLError"])
def test_a_secret_of_a_feed_comes_out_nowhere(
    context: MarketContext,
    mine: Path,
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine.write_text(LEAK.format(error=error))
    monkeypatch.setenv("VENDOR_KEY", SECRET)
    feed = CheckedFeed(feed_of(context, mine, "VENDOR_KEY"), context.engine)
    with caplog.at_level(logging.DEBUG), pytest.raises(NightRefusedError) as refused:
        run_night(replace(context, source=feed), AS_OF)
    told = "http://vendor.example?key=***&again=***"
    stored = rows(context, "select failures from price_fetch")
    assert told in f"{refused.value}{stored}"
    said = capfd.readouterr()
    store = Path(str(context.engine.url.database)).read_bytes().decode(errors="replace")
    for place in (said.out, said.err, caplog.text, str(refused.value), store):
        assert "s3cret" not in place


def test_a_variable_that_is_not_set_is_named_before_anything_runs(
    context: MarketContext, mine: Path
) -> None:
    mine.write_text("1 / 0")
    with pytest.raises(UsageError, match=r"mine\.py needs VENDOR_KEY"):
        feed_of(context, mine, "VENDOR_KEY").symbols()


def test_a_feed_sees_the_variables_that_are_named_and_no_others(
    context: MarketContext, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_KEY", SECRET)
    monkeypatch.setenv("OTHER_KEY", "of another program")
    mine.write_text(
        "import os\nNAMES = [name for name in os.environ if not name.startswith('COVERAGE')]\n\n\n"
        "def symbols():\n    return NAMES\n\n\ndef fetch(first, last): ...\n"
    )
    known = {"PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR", "LC_CTYPE"}
    known |= {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED"}
    names = set(feed_of(context, mine, "VENDOR_KEY").symbols() or ())
    assert "VENDOR_KEY" in names
    assert names <= known | {"VENDOR_KEY"}


CLASS = """
import pandas as pd


class SOURCE:
    def __init__(self, market):
        self.names = {stock.symbol: stock.source_symbol for stock in market.constituents}

    def symbols(self):
        return sorted(self.names)

    def last_session(self):
        return pd.Timestamp(2024, 7, 1).date()

    def fetch(self, first, last):
        raise LookupError(self.names)
"""


@pytest.mark.soak
def test_a_class_is_given_the_market_of_the_file(tmp_path: Path) -> None:
    more = '[constituents]\nas_of = 2024-01-02\nsuffix = ".N"\nsymbols = ["L01", "L02"]'
    file = tmp_path / "home.toml"
    file.write_text(small_market(source="mine.py", more=more))
    (tmp_path / "mine.py").write_text(CLASS)
    market = load_market_file(file)
    feed = OwnFeed(market, FeedCode.of(market.source, market))
    assert (feed.symbols(), feed.last_session()) == (["L01", "L02"], AS_OF)
    assert feed.code == CLASS
    with pytest.raises(FeedError, match=r"mine\.py, line 16: .*'L01\.N'"):
        feed.fetch({"L01": AS_OF}, AS_OF)


def test_an_installed_feed_is_named_by_its_entry_point_and_kept_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vendorpackage.py").write_text(CLASS.replace("SOURCE", "Vendor"))
    told = tmp_path / "vendorpackage-1.5.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: vendorpackage\nVersion: 1.5\n")
    (told / "entry_points.txt").write_text("[dtml.sources]\nvendor = vendorpackage:Vendor\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    file = tmp_path / "home.toml"
    file.write_text(small_market(source="vendor"))
    market = load_market_file(file)
    feed = OwnFeed(market, FeedCode.of(market.source, market))
    assert (feed.name, feed.symbols()) == ("vendor", [])
    assert feed.code.startswith("# vendorpackage 1.5, vendorpackage:Vendor\n")
    assert "class Vendor:" in feed.code


@pytest.fixture
def home(tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    symbols = json.dumps(sorted(set(BARS["symbol"]) - {"SIMX"}))
    more = f"[constituents]\nas_of = 2024-01-02\nsymbols = {symbols}"
    (tmp_path / "home.toml").write_text(small_market(source="mine.py", more=more))
    return tmp_path


@pytest.mark.soak
def test_commands_know_a_feed_as_the_markets_own_and_as_an_option(
    home: Path, command: Command
) -> None:
    code, said, complaint = command(
        "fetch", "--market-file", "home.toml", "--as-of", str(AS_OF), "--json"
    )
    assert code == 0, complaint
    assert json.loads(said)["stored"] > 0
    (listed,) = (
        row for row in json.loads(command("markets", "--json")[1]) if row["market"] == "home"
    )
    assert listed["source"] == "mine.py"
    (stored,) = json.loads(command("query", "select source from fetch_log", "--json")[1])
    assert stored == {"source": "mine.py"}
    found = doctor._feeds  # of a past that has no last week
    with pytest.raises(doctor.DtmlError, match=r"home: \S+ .*no bar.*\(no_data: "):
        found()
    other = home / "other.py"
    other.write_text(LYING)
    fetch = ("fetch", "--market-file", "home.toml", "--as-of", str(TARGET))
    code, _, complaint = command(*fetch, "--source", "other.py")
    assert code == 1
    assert re.search(r"error: other\.py.*silently: close of ", complaint)


def open_process(monkeypatch: pytest.MonkeyPatch, count: Callable[[], None]) -> None:
    ask = own_feed.ask

    def counted(*given: object, **details: object) -> object:
        count()
        return ask(*given, **details)  # type: ignore[arg-type]

    monkeypatch.setattr(own_feed, "ask", counted)


def test_a_feed_is_asked_once_about_itself(
    context: MarketContext, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    open_process(monkeypatch, lambda: asked.append(None))
    feed = feed_of(context, mine)
    assert (feed.symbols(), feed.last_session(), feed.code) == (None, None, HONEST)
    assert len(asked) == 1


def test_the_frame_of_an_answer_is_that_of_the_feed(context: MarketContext, mine: Path) -> None:
    first = {"L01": date(2024, 6, 3), "SIMX": date(2024, 6, 28), "ZZZ": AS_OF}
    fetched = feed_of(context, mine).fetch(first, AS_OF)
    wanted = BARS[(BARS["session"] >= "2024-06-03") & (BARS["session"] <= str(AS_OF))]
    for symbol in ("L01", "SIMX"):
        own = wanted[(wanted["symbol"] == symbol) & (wanted["session"] >= str(first[symbol]))]
        given = fetched.bars[fetched.bars["symbol"] == symbol]
        pd.testing.assert_frame_equal(
            given.reset_index(drop=True), own.reset_index(drop=True), check_exact=True
        )
    assert fetched.outcomes["status"].tolist() == ["ok", "ok", "no_data"]
