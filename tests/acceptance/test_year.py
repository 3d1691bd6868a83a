"""A year: nights of its months replay to the last bit, and many nights stay as they were frozen."""

import json
from datetime import date
from hashlib import sha256

import pytest
import sqlalchemy as sa

from benchmarks.ten_year_store import BACKTEST_MARKET, TenYears, write, write_helpers
from db import tables
from db.engine import open_engine, transaction, upgrade
from dtml.prices.sessions import sessions_between
from flows.freezing import begin, check
from flows.settings import chain_file
from tests.acceptance.life import HERE
from tests.support.commands import run_in

FIRST, LAST = date(2023, 7, 10), date(2024, 7, 5)


@pytest.mark.soak
@pytest.mark.slow
def test_a_night_of_every_second_month_of_a_year_is_frozen_and_replays_to_the_last_bit(
    tmp_path, prefect_api
):
    (tmp_path / "acc.toml").write_text((HERE / "acc.toml").read_text())
    folders = {"DTML_DATA": str(tmp_path / "data"), "DTML_REPORTS": str(tmp_path / "reports")}

    def dtml(line):
        code, said, complaint = run_in(tmp_path, folders, prefect_api, *line.split())
        assert code == 0, f"{line}: {complaint}"
        return json.loads(said)

    sessions = sessions_between("XNYS", FIRST, LAST)
    months = [days[-1].date() for _, days in sessions.groupby(sessions.to_period("M")).items()][::2]
    for day in months:
        dtml(f"nightly acc --market-file acc.toml --as-of {day} --json")
        if day == months[0]:
            dtml("freeze acc --json")
    checked = dtml("freeze acc --check --json")
    assert (checked["links"], checked["changes"]) == (len(months), [])
    replays = dtml("replay acc --all --json")
    assert [replay["as_of"] for replay in replays] == [str(day) for day in months]
    assert all(replay["equal"] and replay["inputs_equal"] for replay in replays)


@pytest.mark.soak
@pytest.mark.slow
def test_90_frozen_nights_are_equal_until_a_bit_of_one_close_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "reports"))
    weights = tmp_path / "data" / "models" / "made.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    checkpoint = {
        "checkpoint_path": "models/made.safetensors",
        "checkpoint_hash": sha256(b"weights").hexdigest(),
    }
    market, nights = BACKTEST_MARKET, 90
    days = TenYears.of(nights * 4000).days
    engine = open_engine(f"sqlite:///{tmp_path / 'store.sqlite'}")
    upgrade(engine)
    with engine.connect() as conn:
        write_helpers(conn, days)
        parts = "stocks, predictions, bars, rankings, log"
        write(conn, parts, market=market, run="made", kind="nightly", first=0, stop=nights)
        for table in (tables.run, tables.ranker):
            conn.execute(sa.update(table).values(checkpoint))
        conn.commit()
    begin(engine, market, days[0].date())
    assert len(chain_file(market).read_text().splitlines()) == nights
    links, changes = check(engine, market)
    assert (len(links), changes) == (nights, [])
    price = tables.price
    with transaction(engine) as conn:  # the last digits of one close
        is_changed = (price.c.session == days[45].date(), price.c.instrument_id == 7)
        conn.execute(sa.update(price).where(*is_changed).values(close=price.c.close * (1 + 2e-16)))
    _, (change,) = check(engine, market)
    assert f"{days[45]:%Y-%m-%d}" in str(change)
    engine.dispose()
