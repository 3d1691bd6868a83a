"""A pruned store is smaller and says the same: every night replays, and nothing that a prediction
leads to is gone.
"""

import os
import re
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from db import tables
from db.admin.checks import check_store
from db.admin.pruning import (
    compact,
    old_rows,
    remove_rows,
)
from db.connection.locks import market_lock
from db.engine import reading, transaction
from db.errors import StoreBusyError
from db.save import save
from dtml.errors import UsageError
from dtml.prices.sessions import next_session
from flows.nightly.context import Tonight
from flows.nightly.train import train_model
from flows.replay import Archive, replay_of
from flows.settings import data_folder, reports_folder
from flows.upkeep import pruning
from flows.upkeep.pruning import FEWEST_NIGHTS, plan, prune
from tests.support.benchmark_rows import ranker
from tests.support.kinds import sqlite_alone
from tests.support.nights import AS_OF, after_nights
from tests.support.prediction_rows import STOCKS, TARGET, run
from tests.support.stores import add_predictions, contents, fill, keep_weights, url_of

NIGHTS, KEPT = 5, 2
# What a pruning takes rows from.
PRUNED = {"attention_weight", "run", "abstention_band", "ranker"}
UNUSED_RANKERS = "models/unused-rankers.safetensors"
LONG_AGO = datetime(2024, 1, 2, tzinfo=UTC)


@pytest.fixture(autouse=True)
def few_nights(monkeypatch):
    """Let a store of a handful of nights have old ones."""
    monkeypatch.setattr(pruning, "FEWEST_NIGHTS", 1)


def days():
    found = [AS_OF]
    while len(found) < NIGHTS:
        found.append(next_session("XNYS", found[-1]))
    return found


def with_an_unused_model(context):
    """A market's nights, and a model and rankers that no night worked with."""
    after_nights(context, *days())
    varied = replace(context, experiment=replace(context.experiment, seeds=1))
    train_model(Tonight(varied, date(2024, 6, 3)))
    weights = data_folder() / UNUSED_RANKERS
    weights.write_bytes(b"weights of rankers")
    unused = {"id": "unused", "market": "simulated", "checkpoint_path": UNUSED_RANKERS}
    with transaction(context.engine) as conn:
        save(conn, "ranker", ranker(checkpoint_hash="a hash") | unused)
        newest = {"id": "newest", "checkpoint_path": f"{UNUSED_RANKERS}-newest"}
        save(
            conn,
            "ranker",
            ranker(checkpoint_hash="a hash") | unused | newest | {"train_last": AS_OF},
        )
        for table in (tables.run, tables.ranker):
            conn.execute(sa.update(table).values(created_at=LONG_AGO))
    return context


def rows_of(engine):
    found = {}
    with reading(engine) as conn:
        for table in tables.metadata.sorted_tables:
            statement = sa.select(table).order_by(*table.primary_key)
            found[table.name] = [tuple(row) for row in conn.execute(statement)]
    return found


def replays(archive):
    found = []
    for night in archive.nights():
        replay = replay_of(archive, night)
        figures = replay.predictions.to_csv(index=False)
        found.append((night["as_of"], replay.reasons, replay.inputs_hash, figures))
    return found


def removed(planned):
    return {removal.what: removal.count for removal in planned.removals}


def age(path, days):
    """Make a file, or a folder with all that it holds, look untouched for so many days."""
    moment = time.time() - days * 24 * 3600
    for file in (*path.rglob("*"), path):
        os.utime(file, (moment, moment))


@pytest.mark.soak
def test_a_pruned_store_replays_every_night_as_before(context, archive):
    with_an_unused_model(context)
    engine = context.engine
    before, said = rows_of(engine), replays(archive)
    assert [reasons for _, reasons, _, _ in said] == [[]] * NIGHTS
    pages = sorted(file.name for file in (reports_folder() / "simulated").glob("*.html"))
    files = {file.name for file in (data_folder() / "models").iterdir()}

    planned = prune(engine, KEPT)

    after = rows_of(engine)
    assert {name for name in before if before[name] != after[name]} == PRUNED
    targets = {target for _, target, *_ in after["attention_weight"]}
    assert targets == {next_session("XNYS", day) for day in days()[-KEPT:]}
    gone = len(before["attention_weight"]) - len(after["attention_weight"])
    assert removed(planned) == {
        "rows of attention, of old nights": gone,
        "pages of old nights": NIGHTS - KEPT,
        "models that nothing leads to": 2,
        "files of such models": 2,
        "states of interrupted work": 0,
    }
    left = {file.name for file in (data_folder() / "models").iterdir()}
    assert len(files - left) == 2
    left_pages = sorted(file.name for file in (reports_folder() / "simulated").glob("*.html"))
    assert left_pages == pages[-KEPT:]
    assert replays(Archive(archive.engine, archive.market, "cpu")) == said
    assert {finding.state for finding in check_store(engine)} == {"ok"}
    assert plan(engine, KEPT).is_empty


class Killed(BaseException):
    """The process ends here."""


def dying(at, work):
    """A function that ends its process at a call."""
    calls = []

    def die(*arguments, **named):
        calls.append(arguments)
        if len(calls) > at:
            raise Killed
        return work(*arguments, **named)

    return die


def prune_and_die(engine, dies_at):
    with pytest.MonkeyPatch.context() as patch:
        if dies_at == "rows":
            patch.setattr(pruning, "remove_rows", dying(0, remove_rows))
        else:
            patch.setattr(Path, "unlink", dying(int(dies_at == "second file"), Path.unlink))
        prune(engine, KEPT)


@pytest.mark.soak
@pytest.mark.parametrize("dies_at", ["rows", "second file"])
def test_an_interrupted_pruning_leaves_a_sound_store_and_the_next_one_ends_it(
    context, archive, dies_at
):
    with_an_unused_model(context)
    planned = plan(context.engine, KEPT)
    with pytest.raises(Killed):
        prune_and_die(context.engine, dies_at)
    assert {finding.state for finding in check_store(context.engine)} == {"ok"}
    assert {tuple(reasons) for _, reasons, _, _ in replays(archive)} == {()}
    prune(context.engine, KEPT)
    assert [file for file in (*planned.files, *planned.pages) if file.exists()] == []
    assert plan(context.engine, KEPT).is_empty


def test_a_model_that_anything_leads_to_is_not_old(engine):
    """The model of the night, and the one of a benchmark alone."""
    fill(engine)
    add_predictions(engine, 3 * len(STOCKS))
    later = {"id": "later", "train_last": TARGET.date() + timedelta(days=400)}
    unused = {"id": "unused", "train_last": date(2023, 12, 1)}
    with transaction(engine) as conn:
        save(conn, "run", run(**later))
        save(conn, "run", run(**unused))
        conn.execute(sa.update(tables.run).values(created_at=LONG_AGO))
        first_kept = {"toy": TARGET.date() + timedelta(days=365)}
        assert set(old_rows(conn, first_kept, datetime.now(UTC)).models["run"]) == {"unused"}
        assert old_rows(conn, first_kept, LONG_AGO).models["run"] == {}
        assert old_rows(conn, {}, datetime.now(UTC)).attention == 0


def test_too_few_nights_are_refused(filled, monkeypatch):
    monkeypatch.setattr(pruning, "FEWEST_NIGHTS", FEWEST_NIGHTS)
    with pytest.raises(UsageError, match=f"keep {FEWEST_NIGHTS} nights"):
        plan(filled, FEWEST_NIGHTS - 1)


def test_files_that_no_row_of_the_store_ever_named_stay(filled):
    other = data_folder() / "models" / "of-another-store.safetensors"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(b"weights")
    age(other, days=4000)
    prune(filled, 1)
    assert other.exists()
    assert (data_folder() / "models" / "first.safetensors").exists()


def test_states_of_work_that_nobody_resumed_for_a_month_go(filled):
    training = data_folder() / "training"
    folders = {
        "old": training / "toy-2024-01-04-1a2b3c4d",
        "of a backtest": training / "backtests" / "toy-2023-01-04-1a2b3c4d",
        "half removed": training / "toy-2024-01-05-1a2b3c4d.over",
        "fresh": training / "toy-2024-01-08-1a2b3c4d",
        "of a translator": training / "translation" / "en-de",
    }
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        (folder / "0-cpu.safetensors").write_bytes(b"state")
        age(folder, days=31 if name != "fresh" else 29)
    planned = prune(filled, 1)
    assert set(planned.states) == {folders[name] for name in list(folders)[:3]}
    left = {name for name, folder in folders.items() if folder.exists()}
    assert left == {"fresh", "of a translator"}


@pytest.mark.soak
def test_a_market_at_which_a_process_works_keeps_the_store_from_being_pruned(filled):
    with market_lock(filled, "toy"), pytest.raises(StoreBusyError, match="working on toy"):
        prune(filled, 1)


@sqlite_alone  # PostgreSQL reuses the space
def test_the_file_of_a_store_gets_as_small_as_its_rows(engine):
    fill(engine)
    add_predictions(engine, 30_000)
    with transaction(engine) as conn:
        conn.execute(sa.delete(tables.prediction).where(tables.prediction.c.target > TARGET))
    sizes = compact(engine)
    assert sizes is not None
    before, after = sizes
    assert after < 0.5 * before
    assert compact(engine) is None
    contents(engine)


def test_nothing_goes_before_it_was_listed_and_asked_for(filled, dtml):
    keep_weights(data_folder())
    before = contents(filled)
    with transaction(filled) as conn:
        conn.execute(sa.update(tables.night).values(as_of=TARGET, target=None))
    code, said, complaint = dtml(url_of(filled), "prune", "--keep", "1")
    attention = len(before["attention_weight"])
    assert (code, complaint) == (0, "")
    assert "nothing was removed: " in said
    assert "--apply" in said
    assert f"{attention}" in said
    assert contents(filled)["attention_weight"] == before["attention_weight"]
    code, said, complaint = dtml(url_of(filled), "prune", "--keep", "1", "--apply")
    assert (code, complaint) == (0, "")
    assert re.search("toy:.* 1 nights .*2024-01-05", said)
    assert "nothing was removed" not in said
    assert rows_of(filled)["attention_weight"] == []
