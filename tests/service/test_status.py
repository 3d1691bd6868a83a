"""How each market stands: what is late, refused, running or interrupted, told
without writing anything.
"""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path

import pytest
import typer
from filelock import FileLock

from db.connection.locks import market_lock
from db.engine import reading, transaction
from db.read import read
from db.rows import nights as stored_nights
from db.save import save
from dtml.errors import UsageError
from dtml.markets import load_market
from dtml.prices.sessions import next_session
from flows.commands.status import commands
from flows.nightly.night import NightRefusedError, run_night
from flows.service.alerts import watch_markets
from flows.service.schedules import LOCK, write_serving
from flows.service.status import market_status, named_markets
from flows.service.timeliness import timeliness
from flows.settings import prefect_folder
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, without

NEXT_MIDNIGHT = datetime(2024, 7, 3, 4, tzinfo=UTC)

MARKET = replace(load_market("simulated"), retrain=63)
# of AS_OF, a quarter of an hour after its night is due
EVENING = datetime(2024, 7, 1, 22, 45, tzinfo=UTC)
NEXT_NOON = datetime(2024, 7, 2, 16, tzinfo=UTC)


@pytest.fixture
def dtml(store_url, command):
    """Run a command that knows `status` alone: exit code, standard output, standard error."""
    # with one command alone, typer would want no name of it
    app = typer.Typer(callback=lambda: None)
    app.add_typer(commands)
    return partial(command, "status", of=app)


def stands(engine, now):
    return market_status(engine, "simulated", MARKET, now)


def refuse(context, day):
    poor = replace(context, source=FrameSource(without(BARS, [context.market.index.symbol], day)))
    with pytest.raises(NightRefusedError):
        run_night(poor, day)


def begin(engine):
    with transaction(engine) as conn:
        after = next_session("XNYS", AS_OF)
        stored_nights.start_night(
            conn, "simulated", AS_OF, target=after, source="simulated", started_at=EVENING
        )


@pytest.mark.parametrize(
    ("now", "due", "since"),
    [
        ("2024-07-02T00:29", "2024-06-28", "2024-06-28T22:30"),
        ("2024-07-02T00:30", "2024-07-01", "2024-07-01T22:30"),
        (
            "2024-07-07T12:00",
            "2024-07-05",
            "2024-07-05T22:30",
        ),  # a weekend, after a holiday on Thursday
        (
            "2024-07-03T23:00",
            "2024-07-02",
            "2024-07-02T22:30",
        ),  # a half day's night has the usual hour
        ("2024-07-04T00:30", "2024-07-03", "2024-07-03T22:30"),
        (
            "2024-11-05T01:29",
            "2024-11-01",
            "2024-11-01T22:30",
        ),  # New York has left summer time on 3 November
        ("2024-11-05T01:30", "2024-11-04", "2024-11-04T23:30"),
    ],
)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_night_is_due_two_hours_after_its_moment(reader, now, due, since):
    with reading(reader) as conn:
        found = timeliness(conn, "simulated", MARKET, datetime.fromisoformat(f"{now}+00:00")).due
    assert found is not None
    assert (str(found.as_of), found.since) == (due, datetime.fromisoformat(f"{since}+00:00"))


def test_a_market_that_is_up_to_date_says_when_it_goes_on_and_by_which_model(context, reader):
    row = run_night(context, AS_OF).row
    found = stands(reader, NEXT_NOON)
    assert (found.as_of, found.outcome, found.age, found.is_late, found.problem) == (
        AS_OF,
        "complete",
        0,
        False,
        None,
    )
    assert found.next_run == datetime(2024, 7, 2, 22, 30, tzinfo=UTC)
    assert found.model is not None
    assert (found.model.run_id, found.model.age, found.model.due_in) == (row["run_id"], 0, 63)
    later = stands(reader, datetime(2024, 7, 12, 12, tzinfo=UTC)).model
    assert later is not None
    assert (later.age, later.due_in) == (7, 56)


def test_markets_are_those_asked_for_or_all_that_the_store_knows(engine, reader, tmp_path):
    begin(engine)
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'title = "Mine"\ncalendar = "XLON"\ntimezone = "Europe/London"\ncurrency = "GBP"\n'
        '[index]\nsymbol = "I"\nname = "An index"\n'
    )
    counts = {"fetched": 0, "stored": 0, "rejected": 0, "asked": 0}
    fetch = {
        "market": "mine",
        "known_at": EVENING,
        "as_of": AS_OF,
        "source": "files",
        "restated": [],
        "failures": [],
    }
    with transaction(engine) as conn:
        save(conn, "price_fetch", fetch | counts)
    everything = named_markets(reader, [], [mine])
    assert {name: market and market.calendar for name, market in everything.items()} == {
        "mine": "XLON",
        "simulated": "XNYS",
    }
    assert named_markets(reader, [], []) == {"mine": None, "simulated": load_market("simulated")}
    assert list(named_markets(reader, ["simulated"], [])) == ["simulated"]
    with pytest.raises(
        UsageError,
        match=r"no market 'sp500':.*mine, simulated, or",
    ):
        named_markets(reader, ["sp500"], [])


@contextmanager
def serving_simulated(cron=None):
    """As `dtml serve simulated --delay 300` does: nights are expected whenever the last one was."""
    folder = prefect_folder()
    write_serving(folder, ["simulated"], timedelta(minutes=300), cron)
    with FileLock(folder / LOCK):
        yield


def test_a_market_that_is_only_history_has_no_late_night_and_no_next_one(context, dtml):
    after_nights(context, AS_OF)
    refuse(context, next_session("XNYS", AS_OF))
    for day, is_nightly in ((date(2024, 8, 2), True), (date(2024, 8, 3), False)):
        now = datetime.combine(day, time(4), tzinfo=UTC)
        (found,) = watch_markets(context.engine, {"simulated": MARKET}, now)
        assert (found.is_nightly, found.is_late) == (is_nightly, is_nightly)
        assert (found.problem is not None) == is_nightly
        with reading(context.engine) as conn:
            times = timeliness(conn, "simulated", MARKET, now)
            assert len(read(conn, "alert")) == 2  # both of the first day: refused, late
        assert times.is_late == is_nightly
    assert times.late_seconds == 0
    assert dtml("--check")[0] == 0
    with serving_simulated():
        code, _, complaint = dtml("--check")
        assert (code, complaint.startswith("simulated: ")) == (1, True)


def test_the_command_prints_every_market_and_says_what_is_not_well_only_when_asked(context, dtml):
    refuse(context, AS_OF)
    code, said, complaint = dtml()
    assert (code, complaint) == (0, "")
    assert "refused: no good bar" in said
    assert re.search(r"\blast night\b", said)
    code, said, _ = dtml("simulated", "--json")
    (row,) = json.loads(said)
    assert (code, row["as_of"], row["outcome"], row["alerts_not_sent"]) == (
        0,
        "2024-07-01",
        "refused",
        0,
    )
    with serving_simulated():
        code, said, complaint = dtml("--check", "--json")
    assert code == 1
    assert re.match("simulated:.*2024-07-01 refused", complaint)
    with reading(context.engine) as conn:
        assert set(read(conn, "alert", order="raised_at, market, as_of, kind")["kind"]) == {
            "refused",
            "late",
        }
    assert json.loads(dtml("--json")[1])[0]["alerts_not_sent"] == 2


LIGHT = {  # by what is not loaded yet after each import
    "flows.cli": {"torch", "prefect", "pandas", "sqlalchemy", "yfinance"},
    "flows.commands.query": {"torch", "prefect", "pandas"},
    "flows.service.alerts, flows.commands.status": {"torch", "prefect"},
}


def test_asking_and_telling_load_nothing_heavy():
    code = "\n".join(
        f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
        for modules, heavy in LIGHT.items()
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n" * len(LIGHT)


@pytest.mark.soak
def test_a_night_that_nobody_is_at_was_interrupted(engine, reader, tmp_path):
    begin(engine)
    with market_lock(engine, "simulated"):
        assert stands(reader, EVENING).outcome == "running"
    assert stands(reader, EVENING).outcome == "interrupted"
    assert not list(Path.cwd().glob("file:*"))


def test_a_market_without_its_due_night_is_late(context, reader):
    after_nights(context, AS_OF)
    assert not stands(reader, datetime(2024, 7, 3, 0, 29, tzinfo=UTC)).is_late
    found = stands(reader, NEXT_MIDNIGHT)
    assert found.age == 1
    due, remedy = str(found.problem).split("; run ")
    assert re.match("simulated:.*2024-07-02 .*not complete.*due .*2024-07-02 22:30 UTC;", due)
    assert re.match("`dtml nightly simulated --catch-up`,.*--prices FILE ", remedy)
