"""What a night tells Prefect: artifacts and events, with alerts sent beside
them; none of it ends a night.
"""

import re
import time
from dataclasses import replace
from datetime import date

import pytest
from filelock import FileLock

from db.engine import open_engine, reading
from db.read import read
from dtml.prices.sessions import next_session
from flows.markets.opened import RunRequest
from flows.nightly.night import NightRefusedError
from flows.service.schedules import DELAY, LOCK, write_serving
from flows.settings import prefect_folder
from tests.support.nights import AS_OF, BARS, SMALL
from tests.support.webhook import webhook

pytestmark = pytest.mark.soak

MARKET_FILE = """
title = "A small market"
calendar = "XNYS"
timezone = "America/New_York"
currency = "USD"
source = "simulated"
[index]
symbol = "SIMX"
name = "An index"
"""


@pytest.fixture
def run_request(served, tmp_path, monkeypatch):
    monkeypatch.setenv("DTML_DATABASE_URL", f"sqlite:///{tmp_path}/store.sqlite")
    monkeypatch.delenv("DTML_ALERTS", raising=False)
    file = tmp_path / "small_one.toml"
    file.write_text(MARKET_FILE)
    return RunRequest(str(file), file, overrides=SMALL, device="cpu")


def asked(path, body):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return client._client.post(path, json=body).json()


def artifacts():
    """The newest artifact of each key."""
    return {each["key"]: each["data"] for each in asked("/artifacts/latest/filter", {})}


def events(name):
    """The events of a name and of this market, once they have come to the server."""
    deadline = time.monotonic() + 550
    while time.monotonic() < deadline:
        of_all = asked("/events/filter", {"filter": {"event": {"name": [name]}}})["events"]
        resource = "dtml.market.small_one"
        if found := [
            each for each in of_all if each["resource"]["prefect.resource.id"] == resource
        ]:
            return found
        time.sleep(0.2)
    return []


def test_a_night_leaves_its_scores_who_was_left_out_and_where_its_page_lies(run_request):
    from flows.service.flows import nightly

    nightly(run_request, AS_OF)
    assert "No prediction" in artifacts()["night-small-one"]
    target = next_session("XNYS", next_session("XNYS", AS_OF))
    night = nightly(run_request, next_session("XNYS", AS_OF))
    page = artifacts()["night-small-one"]
    assert re.match(f"## small_one, .*{night.row['as_of']}: 30 .*{target}\n", page)
    assert "left out" not in page
    assert re.search(r"every stock rises.* 30", page)
    assert f"Report: `{night.report}`" in page


def test_a_refused_night_of_a_flow_is_an_event_and_is_sent(run_request, tmp_path, monkeypatch):
    from flows.service.flows import nightly

    early = BARS[BARS["session"] < "2024-06-03"].drop(columns=["dividend", "split"])
    early.to_csv(tmp_path / "early.csv", index=False)
    refused = replace(run_request, source="files", prices=tmp_path / "early.csv")
    with webhook() as hook:
        monkeypatch.setenv("DTML_ALERTS", hook.url)
        with pytest.raises(NightRefusedError):
            nightly(refused, date(2024, 6, 4))
        with pytest.raises(NightRefusedError):
            nightly(refused, date(2024, 6, 5))
    assert [said["title"] for said in hook.taken] == [
        "small_one 2024-06-04 refused",
        "small_one 2024-06-05 refused",
    ]
    found = events("dtml.night.refused")
    assert found[0]["payload"]["kind"] == "refused"
    assert found[0]["payload"]["message"].startswith("night of 2024-06-0")
    with reading(open_engine(read_only=True)) as conn:
        assert read(conn, "alert", order="raised_at, market, as_of, kind")["sent_at"].notna().all()


def test_a_watch_is_a_flow_that_says_what_is_late(run_request):
    from flows.service.flows import nightly, watch

    nightly(run_request, AS_OF)
    assert watch(market_files=[run_request.market_file]) == []  # its last night is history
    folder = prefect_folder()
    write_serving(folder, ["small_one"], DELAY, None)
    with FileLock(folder / LOCK):
        (said,) = watch(market_files=[run_request.market_file])
    assert said.startswith("small_one: night of ")
    assert [event["payload"]["kind"] for event in events("dtml.night.late")] == ["late"]
