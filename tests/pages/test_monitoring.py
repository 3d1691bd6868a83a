"""What monitoring and an operator read of the dashboard: /health, /metrics, the runs in hand."""

import json
import re
import sys
from datetime import UTC, date, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from db.connection.locks import market_lock
from db.engine import transaction
from db.rows import nights, translations
from dtml.markets import load_market
from dtml.prices.sessions import last_closed_session, previous_session
from flows.dashboard.app import dashboard
from tests.support.browser import Page, served
from tests.support.dashboard_store import MARKET, fill

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
LAST = last_closed_session(load_market("simulated").calendar, NOW)


@pytest.fixture(autouse=True)
def present_moment(monkeypatch):
    """Let each test begin now: the pages that it reads count to their own moment."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", datetime.now(UTC))


COUNTS = {"fetched": 9, "stored": 9, "rejected": 0, "predictions": 9}


@pytest.fixture
def site(engine, reader):
    with served(dashboard(reader), reader) as found:
        yield found


def store_night(engine, as_of, status="complete", market="simulated"):
    with transaction(engine) as conn:
        nights.start_night(
            conn, market, as_of, target=None, source="files", started_at=NOW - timedelta(minutes=5)
        )
        if status == "running":
            return
        nights.finish_night(
            conn, market, as_of, status=status, finished_at=NOW, counts=COUNTS, gaps=[]
        )


def store_stages(engine, as_of, seconds):
    """Store stages of a night of the simulated market; one without seconds is running."""
    with transaction(engine) as conn:
        for place, (stage, took) in enumerate(seconds.items()):
            begun = NOW - timedelta(minutes=4) + timedelta(seconds=place)
            nights.start_stage(conn, "simulated", as_of, stage, started_at=begun)
            if took is not None:
                nights.finish_stage(conn, "simulated", as_of, stage, status="done", seconds=took)


def sessions_ago(count):
    day = LAST
    for _ in range(count):
        day = previous_session("XNYS", day)
    return day


def health(site, address="/health"):
    answer = site.get(address)
    assert answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(answer.body)


def metrics(site):
    """Return what Prometheus's own parser reads: the values of each metric by its labels' values.

    They are in the order of the labels' names.
    """
    answer = site.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.body):
        assert family.documentation.endswith("."), family.name
        values = {tuple(sample.labels.values()): sample.value for sample in family.samples}
        found[family.name] = values
    return found


def test_a_store_whose_nights_come_in_time_is_well(site, engine):
    store_night(engine, LAST)
    store_night(engine, date(2024, 1, 4), market="of_nobody")  # whose exchange is not known
    status, report = health(site)
    assert (status, report["status"], report["reasons"]) == (200, "ok", [])
    late = {row["market"]: row["late_seconds"] for row in report["markets"]}
    assert late == {"of_nobody": None, "simulated": 0.0}
    for address in ("/", "/running", "/market/simulated"):
        assert "next night is due" in Page(site.get(address).body).seen


@pytest.mark.parametrize("status", ["refused", "running"])
def test_a_market_that_is_late_is_named_with_its_night_and_the_rest_can_be_asked_alone(
    site, engine, status
):
    store_night(engine, sessions_ago(4))
    store_night(engine, sessions_ago(3), status)
    store_night(engine, date(2024, 1, 4), market="of_nobody")
    code, report = health(site)
    assert (code, report["status"]) == (503, "late")
    (reason,) = report["reasons"]
    night = f"simulated: night of {sessions_ago(3)} "
    assert re.match(rf"{night}.* is {status}; .*`dtml nightly simulated --catch-up`", reason)
    # two sessions after it are missing, and perhaps a weekend
    late = metrics(site)["dtml_night_late_seconds"]["simulated",]
    assert timedelta(days=1).total_seconds() < late < timedelta(days=8).total_seconds()
    for market, answer in (("of_nobody", 200), ("of_nobody&market=simulated", 503)):
        assert health(site, f"/health?market={market}")[0] == answer
    assert site.get("/health?market=nowhere").status == 404


@pytest.mark.on_postgresql
def test_prometheus_reads_nights_stages_scores_and_the_queue(site, engine):
    fill(engine)
    store_night(engine, sessions_ago(1))
    store_stages(engine, sessions_ago(1), {"fetch": 1.5, "model": 80.25})
    store_night(engine, LAST, "running")
    with transaction(engine) as conn:
        translations.queue_texts(conn, "en-de", ["a", "b"])
    found = metrics(site)
    nights_of = found["dtml_nights"]
    assert nights_of["simulated", "complete"] == nights_of["simulated", "running"] == 1
    assert found["dtml_night_stage_seconds"] == {
        ("simulated", "fetch"): 1.5,
        ("simulated", "model"): 80.25,
    }
    assert found["dtml_translation_texts"] == {("en-de", "queued"): 2}
    finished = found["dtml_night_finished_timestamp_seconds"]["simulated",]
    assert finished == pytest.approx(NOW.timestamp(), abs=1)
    assert {("acc", MARKET, "dtml"), ("mcc", MARKET, "dtml")} <= set(found["dtml_score"])
    assert all(-1 <= value <= 1 for value in found["dtml_score"].values())
    assert found["dtml_scored_nights"]["acc", MARKET] == 24


def test_an_empty_store_is_well_and_has_no_figure(site):
    assert health(site) == (200, {"status": "ok", "reasons": [], "markets": []})
    assert {name for name, values in metrics(site).items() if values} == set()


def cells(page):
    """Return the rows of the page's first table as words."""
    body = page.source.split("<tbody>")[1].split("</tbody>")[0]
    marked_rows = body.replace("</t", " | </t").strip().split("\n")
    rows = [Page(row).seen.split(" | ") for row in marked_rows]
    return [[cell.removesuffix(" |") for cell in row if cell != "|"] for row in rows]


def test_the_page_shows_the_stage_that_a_night_is_in_beside_the_night_before(site, engine):
    store_night(engine, sessions_ago(1))
    store_stages(engine, sessions_ago(1), {"fetch": 1.5, "model": 80.25, "predict": 2.0})
    store_night(engine, LAST, "running")
    store_stages(engine, LAST, {"fetch": 0.5, "model": None})
    with market_lock(engine, "simulated"):
        page = Page(site.get("/running").body)
    assert f"Night of {LAST}, begun" in page.seen
    fetch, model, predict = cells(page)
    assert fetch == ["fetch", "✓ done", "0.5", "1.5"]
    assert (model[:2], model[3]) == (["model", "running"], "80.2")
    assert float(model[2]) > 200
    assert predict == ["predict", "not yet", "-", "2.0"]


def test_a_night_that_no_process_works_on_is_interrupted(site, engine, tmp_path):
    store_night(engine, LAST, "running")
    store_stages(engine, LAST, {"fetch": 0.5, "model": None})
    page = Page(site.get("/running").body)
    assert "Interrupted : no process" in page.seen
    assert cells(page)[1] == ["model", "✗ interrupted", "-", "-"]
    assert list(tmp_path.glob("*.lock")) == []  # a look at a lock makes no file
