"""A past night gives what it gave, to the last bit, whatever came after it; and
what was changed is found and named.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import Engine, text

from db.admin.copying import table_counts
from db.engine import reading, transaction
from dtml.errors import UsageError
from dtml.prices.sessions import next_session, sessions_up_to
from flows.nightly.context import MarketContext, Tonight
from flows.nightly.fetch import fetch_bars
from flows.nightly.night import NightRefusedError, run_night
from flows.nightly.train import train_model
from flows.replay import Archive, Receipt, Replay, replay_of, reproduce, restated_since, run_of
from flows.settings import data_folder
from tests.support.commands import Command
from tests.support.nights import AS_OF, BARS, FrameSource, after_nights, without

FOLLOWING = next_session("XNYS", AS_OF)
LATER = datetime(2124, 1, 1, tzinfo=UTC)


def replayed(archive: Archive, as_of: date = AS_OF, known_at: datetime | None = None) -> Replay:
    return replay_of(archive, archive.night(as_of), known_at)


def assert_equal(replay: Replay) -> None:
    assert replay.reasons == []
    assert replay.inputs_equal
    assert len(replay.differing) == 0


def change(engine: Engine, sql: str, **values: object) -> None:
    with transaction(engine) as conn:
        assert conn.execute(text(sql), values).rowcount > 0


def restated_bars() -> pd.DataFrame:
    """A dividend of every stock three sessions before the night, and a split of one."""
    bars = BARS.copy()
    ex = sessions_up_to("XNYS", AS_OF, 3)[0]
    bars.loc[bars["session"] < ex, "adj_close"] *= 0.98
    bars.loc[bars["symbol"] == "L01", ["open", "high", "low", "close", "adj_close"]] /= 2
    return bars


@pytest.mark.on_postgresql
def test_a_night_replays_equal_after_its_whole_history_was_restated(
    context: MarketContext, archive: Archive
) -> None:
    after_nights(context, AS_OF)
    fetch_result = fetch_bars(replace(context, source=FrameSource(restated_bars())), FOLLOWING)
    assert len(fetch_result.restated) >= 9
    assert_equal(replayed(archive))
    today = replayed(archive, known_at=LATER)
    assert today.inputs_equal is False
    assert restated_since(archive, today)["restated"] > 9 * 20


def test_a_night_replays_equal_after_later_nights_a_training_and_another_list(
    context: MarketContext, archive: Archive
) -> None:
    after_nights(context, AS_OF)
    others = [symbol for symbol in context.market.symbols if symbol not in ("L01", "F01A")]
    later = replace(context, market=context.market.with_symbols(others))
    run_night(later, FOLLOWING)
    train_model(Tonight(later, FOLLOWING))
    run_night(later, next_session("XNYS", FOLLOWING))
    gone = [replace(each, until=date(2020, 1, 2)) for each in later.market.constituents]
    archive.market = replace(archive.market, constituents=tuple(gone)).with_symbols(["L02", "NEW"])
    for night in archive.nights():
        assert_equal(replay_of(archive, night))
    assert [len(replay_of(archive, night).predictions) for night in archive.nights()] == [9, 7, 7]
    assert len(archive.models) == 2


@pytest.mark.soak
def test_a_night_with_gaps_leaves_out_the_same_stocks_again(
    context: MarketContext, archive: Archive
) -> None:
    broken = without(BARS, ["L02"])
    row = run_night(replace(context, source=FrameSource(broken)), AS_OF).row
    assert row["status"] == "complete_with_gaps"
    fetch_bars(context, FOLLOWING)  # brings the bar that was missing
    found = replayed(archive)
    assert_equal(found)
    assert found.left_out == found.left_out_again == ["L02"]
    assert "L02" in set(replayed(archive, known_at=LATER).predictions["symbol"])


@pytest.mark.soak
def test_a_fetch_that_began_before_a_night_and_ended_after_it_changes_nothing_of_it(
    context: MarketContext, archive: Archive
) -> None:
    @dataclass
    class Slow(FrameSource):
        """A source during whose answer the night is run by another."""

        def fetch(self, first: Any, last: date) -> Any:
            answer = super().fetch(first, last)
            run_night(context, AS_OF)
            return answer

    assert fetch_bars(replace(context, source=Slow(restated_bars())), AS_OF).stored > 9 * 20
    assert_equal(replayed(archive))
    assert replayed(archive, known_at=LATER).inputs_equal is False


@pytest.mark.soak
@pytest.mark.slow
def test_a_zone_and_threads_of_another_machine_change_nothing(
    context: MarketContext, engine: Engine
) -> None:
    after_nights(context, AS_OF)
    run_night(context, FOLLOWING)
    url = engine.url.render_as_string(hide_password=False)
    elsewhere = {"DTML_DATABASE_URL": url, "TZ": "Pacific/Kiritimati", "OMP_NUM_THREADS": "2"}
    ended = subprocess.run(
        [Path(sys.executable).with_name("dtml"), "replay", "simulated", "--all", "--device", "cpu"],
        env=os.environ | elsewhere,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "2 nights replayed" in ended.stdout
    assert "2 equal to the" in ended.stdout


TAKEN = (
    "delete from attention_weight",
    "delete from prediction where instrument_id = (select max(instrument_id) from prediction)",
)
CHANGED = {
    "a price": (
        (f"update price set close = close * 1.001 where session = '{AS_OF}'",),
        "^inputs: ",
    ),
    "a prediction taken away": (TAKEN, "made 9,.* 8 are"),
}


@pytest.mark.parametrize("changed", CHANGED)
def test_what_was_changed_is_found_and_named(
    context: MarketContext, engine: Engine, archive: Archive, changed: str
) -> None:
    after_nights(context, AS_OF)
    statements, said = CHANGED[changed]
    for statement in statements:
        change(engine, statement)
    assert any(re.search(said, reason) for reason in replayed(archive).reasons)


def test_a_changed_prediction_is_found_and_named(
    context: MarketContext, engine: Engine, archive: Archive
) -> None:
    after_nights(context, AS_OF)
    named = "instrument_id = (select id from instrument where symbol = 'L02')"
    change(engine, f"update prediction set probability = probability + 1e-15 where {named}")
    found = replayed(archive)
    assert found.inputs_equal
    assert found.differing["symbol"].tolist() == ["L02"]
    assert found.largest[0] == "L02"
    assert "predictions: 1 of 9" in found.reasons[0]


@pytest.mark.soak
def test_an_exchanged_checkpoint_is_found_and_the_other_nights_go_on(
    context: MarketContext, command: Command, archive: Archive
) -> None:
    first = run_night(context, AS_OF).row["run_id"]
    train_model(Tonight(context, FOLLOWING))
    second = run_night(context, FOLLOWING).row["run_id"]
    models = data_folder() / "models"
    shutil.copy(models / f"{second}.safetensors", models / f"{first}.safetensors")
    assert "changed or damaged" in str(replayed(archive).failure)
    code, said, error = command("replay", "simulated", "--all", "--device", "cpu")
    assert code == 1
    assert "2 nights replayed" in said
    assert "1 equal to the" in said
    assert "1 of 2 nights" in error
    assert f"not reproduced: {AS_OF}; `dtml replay" in error


def test_a_figure_that_is_gone_is_found(
    context: MarketContext, engine: Engine, archive: Archive
) -> None:
    after_nights(context, AS_OF)
    named = "instrument_id = (select id from instrument where symbol = 'L02')"
    change(engine, f"update prediction set lowest = null where {named}")
    assert replayed(archive).differing["symbol"].tolist() == ["L02"]
    night = archive.night(AS_OF)
    receipt = Receipt(night["run_id"], "L02", night["target"])
    assert reproduce(archive, receipt, run_of(engine, receipt)).reasons[0].startswith("lowest: ")


@pytest.mark.soak
def test_a_replay_at_another_moment_shows_both_predictions_and_what_was_restated(
    context: MarketContext, command: Command
) -> None:
    known = run_night(context, AS_OF).row["known_at"]
    fetch_bars(replace(context, source=FrameSource(restated_bars())), FOLLOWING)
    then = (known + timedelta(microseconds=1)).isoformat()
    code, said, _ = command("replay", "simulated", "--known-at", then, "--device", "cpu")
    assert code == 0
    assert re.search("0 restated, 0 new, 0 ", said)
    asked = ("--as-of", str(AS_OF), "--known-at", "2124-01-01", "--device", "cpu", "--json")
    code, said, _ = command("replay", "simulated", *asked)
    document = json.loads(said)
    assert code == 0
    assert document["equal"] is False
    assert document["bars_since"]["restated"] > 9 * 20
    assert {"symbol", "probability", "replayed_probability"} <= set(document["predictions"][0])


def test_nothing_is_written_by_a_replay(
    context: MarketContext, engine: Engine, command: Command
) -> None:
    after_nights(context, AS_OF)
    files = {
        path: path.stat().st_mtime_ns
        for path in data_folder().rglob("*")
        if path.suffix == ".safetensors"
    }
    with reading(engine) as conn:
        before = table_counts(conn)
    assert command("replay", "simulated", "--json")[0] == 0
    with reading(engine) as conn:
        assert table_counts(conn) == before
    assert {path: path.stat().st_mtime_ns for path in files} == files


@pytest.mark.soak
def test_what_is_no_complete_night_is_said_with_those_there_are(
    context: MarketContext, archive: Archive
) -> None:
    with pytest.raises(UsageError, match="no night of simulated"):
        archive.night(None)
    run_night(context, AS_OF)
    poor = replace(
        context, source=FrameSource(without(BARS, [context.market.index.symbol], FOLLOWING))
    )
    with pytest.raises(NightRefusedError):
        run_night(poor, FOLLOWING)
    with pytest.raises(
        UsageError,
        match=rf"simulated is refused \(.*\): .*{AS_OF} to {AS_OF}, 1 ",
    ):
        archive.night(FOLLOWING)
    with pytest.raises(UsageError, match="never run: "):
        archive.night(date(2024, 6, 3))
    assert archive.night(None)["as_of"] == AS_OF


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--known-at", "2024-07-02T10:00"), "with a time zone"),
        (("--known-at", "yesterday"), "neither a date nor a time"),
        (
            ("--all", "--as-of", "2024-07-01"),
            "--all .*leave out --as-of",
        ),
    ],
)
def test_a_wrong_moment_is_the_users_mistake(
    command: Command, asked: tuple[str, ...], said: str
) -> None:
    code, _, error = command("replay", "simulated", *asked)
    assert code == 2
    assert re.search(said, error)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("simulated", "--retrain"),
            "--retrain .*RUN/SYMBOL/TARGET",
        ),
        (
            ("run/L01/2024-07-02", "--all", "--as-of", "2024-07-01"),
            "is a receipt,.*--as-of and --all",
        ),
        (
            ("run/L01/2024-07-02", "--known-at", "2024-07-01"),
            "is a receipt, .*--known-at",
        ),
        (("run/L01",), "'run/L01' .*RUN/SYMBOL/TARGET"),
        ((), "give a market"),
    ],
)
def test_an_option_that_does_not_fit_what_is_replayed_is_refused(
    command: Command, asked: tuple[str, ...], said: str
) -> None:
    code, _, error = command("replay", *asked)
    assert code == 2
    assert re.search(said, error)
