"""Whole at every write: after a fault at a point of a command, and the command
again, all is as nobody disturbed it.
"""

import os
import sys

import pytest

from tests.support.chaos.nights import run
from tests.support.faults.runs import Bench, Work
from tests.support.faults.trials import Trials
from tests.support.faults.works import WORKS
from tests.support.kinds import of_this_quarter

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="files are told by /proc"),
]

# of the faults at every point one in so many; `python -m benchmarks.faults` tries them all
SHARES = {
    "night": 30,
    "training": 24,
    "backup": 6,
    "restore": 8,
    "service": 30,
    "translation training again": 12,
    "translated file": 10,
    "queue": 16,
}
SHARES_OF_POSTGRESQL = {"night": 48, "restore": 14}


def _tried(bench, name, share):
    trials = Trials(bench, WORKS[name])
    tally = trials.try_each(trials.faults()[::share])
    assert sum(tally.tried.values()) == -(-len(trials.faults()) // share) > 0
    assert tally.broken == []


@pytest.mark.by_quarters
@pytest.mark.parametrize("name", SHARES)
def test_after_a_fault_the_same_command_leaves_what_nobody_disturbed(name, tmp_path):
    _tried(Bench(tmp_path), name, SHARES[name])


@pytest.mark.by_quarters
@pytest.mark.parametrize("name", SHARES_OF_POSTGRESQL)
def test_so_it_does_where_a_connection_is_lost(name, tmp_path, postgresql_server):
    _tried(Bench(tmp_path, postgresql_server), name, SHARES_OF_POSTGRESQL[name])


def test_no_kill_of_a_night_leaves_a_trace(tmp_path):
    """Killed at a statement, a night leaves what it leaves at the commit after it: nothing.

    The shares above have kills at statements too.
    """
    trials = Trials(Bench(tmp_path), WORKS["night"])
    points = trials.points
    kills = of_this_quarter(
        [fault for fault in trials.faults(["kill"]) if points[fault.point - 1].kind != "statement"]
    )
    tally = trials.try_each(kills)
    assert tally.tried["kill"] == len(kills) > 0
    assert tally.broken == []


def _step(write):
    return Work("planted", prepare=lambda _: None, step=write)


def _not_atomic(home):
    if not (home / "card.json").exists():  # as if it were whole whenever it is there
        (home / "card.json").write_text("whole")


def _in_two_steps(home):
    """A row, then its file: killed in between, the row says that there is nothing left to do."""
    import sqlite3

    conn = sqlite3.connect(home / "store.sqlite")
    conn.execute("create table if not exists run (id text primary key)")
    conn.execute("insert into run values ('a') on conflict do nothing")
    new = conn.total_changes > 0
    conn.commit()
    if new:
        (home / "weights").write_bytes(b"1234")


def _leaves_a_partial(home):
    partial = home / f"page.{os.getpid()}.partial"
    partial.write_text("page")
    partial.replace(home / "page")


def _not_synced(home):
    if not (home / "page").exists():
        (home / "page.partial").write_text("page")
        (home / "page.partial").replace(home / "page")


PLANTED = {
    "a file that is not whole": (_not_atomic, "kill in a write", "1 other: card.json"),
    "a commit apart from its file": (_in_two_steps, "kill", "1 other: weights"),
    "a partial file under a new name each time": (_leaves_a_partial, "kill", "1 left: page."),
    "a file put into its place before it is on the disk": (
        _not_synced,
        "power cut",
        "1 other: page",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found(planted, tmp_path):
    step, kind, said = PLANTED[planted]
    trials = Trials(Bench(tmp_path), _step(step))
    tally = trials.try_each(trials.faults([kind]))
    assert any(f" {kind} at " in each and said in each for each in tally.broken), tally.broken


NIGHTS, SEED = 6, 1


@pytest.mark.soak
def test_a_store_stays_whole_through_nights_of_chaos(tmp_path, prefect_api):
    """On SQLite; `python -m benchmarks.chaos --engine postgresql` does it on a server."""
    tally = run(tmp_path, NIGHTS, SEED, server=prefect_api)
    assert tally.broken == []
    assert tally.rows_lost == tally.duplicates == tally.mismatches == 0
    assert sum(tally.nights.values()) == NIGHTS
