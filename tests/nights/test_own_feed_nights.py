"""A feed of a user's own in its process and in nights: what it may, how it fails, what is kept."""

import logging
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from db import where
from db.engine import reading
from db.read import read_row, read_value
from dtml.errors import UsageError
from dtml.markets import load_market_file
from dtml.markets.definition import FeedAccess
from dtml.prices.sessions import next_session
from dtml.sources.own_feed.source import FeedCode, FeedError, OwnFeed
from flows.markets import opened
from flows.markets.opened import CheckedFeed
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import NightRefusedError, run_night
from flows.replay import replay_of
from tests.support.nights import AS_OF, BARS, small_market

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
def mine(tmp_path):
    BARS.to_parquet(tmp_path / "bars.parquet")
    file = tmp_path / "mine.py"
    file.write_text(HONEST)
    return file


def feed_of(context, file, *environment):
    market = replace(context.market, feed=FeedAccess(environment=environment))
    return OwnFeed(market, FeedCode.of(str(file), market))


def with_feed(context, file):
    """The market of the nights with a feed, as a new command opens it."""
    return replace(context, source=CheckedFeed(feed_of(context, file), context.engine))


def rows(context, query):
    with reading(context.engine) as conn:
        return [tuple(row) for row in conn.execute(text(query))]


@pytest.fixture
def checks(monkeypatch):
    """The feeds that were checked."""
    checked = []
    admit = opened.admit

    def counted(feed, first, last):
        checked.append(feed.code)
        return admit(feed, first, last)

    monkeypatch.setattr(opened, "admit", counted)
    return checked


def test_a_night_with_an_own_feed_is_stored_with_its_code_and_replays_byte_for_byte(
    context, archive, mine, checks
):
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
    context, mine, checks
):
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


BAD = {
    "while True:\n        pass": "more than 4 s: ",
    "import numpy\n    numpy.ones((10**5, 10**6))": "may use 4 GiB: ",
    "import os\n    os.kill(os.getpid(), 9)": "was killed by SIGKILL",
    "import os\n    os.environ['DTML_DATA']": "line 12: KeyError: 'DTML_DATA'",
    "Path(__file__).with_name('kept').write_text('')": "in its working folder",
    "return None": "mine.py: fetch returned nothing: ",
}


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.one_case("pass")
@pytest.mark.parametrize("bad", BAD, ids=[each.splitlines()[-1].strip() for each in BAD])
def test_what_fails_ends_its_fetch_with_one_line_and_stores_nothing(
    context, mine, bad, monkeypatch
):
    mine.write_text(HONEST.replace("    return BARS[", f"    {bad}\n    return BARS["))
    if "while True" in bad:
        monkeypatch.setenv("DTML_FEED_SECONDS", "4")
    with pytest.raises(FeedError) as error:
        fetch_bars(with_feed(context, mine), AS_OF)
    assert BAD[bad] in str(error.value)
    assert "\n" not in str(error.value)
    assert rows(context, "select count(*) from price") == [(0,)]
    assert not mine.with_name("kept").exists()


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
def test_a_secret_of_a_feed_comes_out_nowhere(context, mine, error, monkeypatch, capfd, caplog):
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


def test_a_variable_that_is_not_set_is_named_before_anything_runs(context, mine):
    mine.write_text("1 / 0")
    with pytest.raises(UsageError, match=r"mine\.py needs VENDOR_KEY"):
        feed_of(context, mine, "VENDOR_KEY").symbols()


def test_a_feed_sees_the_variables_that_are_named_and_no_others(context, mine, monkeypatch):
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


def test_an_installed_feed_is_named_by_its_entry_point_and_kept_with_its_version(
    tmp_path, monkeypatch
):
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
