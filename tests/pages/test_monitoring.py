"""What monitoring and an operator read of the dashboard: /health, /metrics, the runs in hand."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, Engine, create_engine, text

from db import tables
from db.connection.locks import market_lock
from db.engine import transaction
from db.rows import nights, translations
from db.save import save
from dtml.markets import load_market
from dtml.prices.sessions import last_closed_session, previous_session
from flows.dashboard import running
from flows.dashboard.app import dashboard
from tests.support.browser import Page, Site, served
from tests.support.dashboard_store import MARKET, fill, run_row

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
LAST = last_closed_session(load_market("simulated").calendar, NOW)


@pytest.fixture(autouse=True)
def present_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test begin now: the pages that it reads count to their own moment."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", datetime.now(UTC))


COUNTS = {"fetched": 9, "stored": 9, "rejected": 0, "predictions": 9}
PASSWORD = "zebr4cut"

Samples = dict[tuple[str, ...], float]


@pytest.fixture
def site(engine: Engine, reader: Engine) -> Iterator[Site]:
    with served(dashboard(reader), reader) as found:
        yield found


def store_night(
    engine: Engine, as_of: date, status: str = "complete", market: str = "simulated"
) -> None:
    with transaction(engine) as conn:
        nights.start_night(
            conn, market, as_of, target=None, source="files", started_at=NOW - timedelta(minutes=5)
        )
        if status == "running":
            return
        nights.finish_night(
            conn, market, as_of, status=status, finished_at=NOW, counts=COUNTS, gaps=[]
        )


def store_stages(engine: Engine, as_of: date, seconds: dict[str, float | None]) -> None:
    """Store stages of a night of the simulated market; one without seconds is running."""
    with transaction(engine) as conn:
        for place, (stage, took) in enumerate(seconds.items()):
            begun = NOW - timedelta(minutes=4) + timedelta(seconds=place)
            nights.start_stage(conn, "simulated", as_of, stage, started_at=begun)
            if took is not None:
                nights.finish_stage(conn, "simulated", as_of, stage, status="done", seconds=took)


def sessions_ago(count: int) -> date:
    day = LAST
    for _ in range(count):
        day = previous_session("XNYS", day)
    return day


def health(site: Site, address: str = "/health") -> tuple[int, dict[str, Any]]:
    answer = site.get(address)
    assert answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(answer.body)


def metrics(site: Site) -> dict[str, Samples]:
    """Return what Prometheus's own parser reads: the values of each metric by its labels' values.

    They are in the order of the labels' names.
    """
    answer = site.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(answer.body):
        assert family.documentation.endswith("."), family.name
        values = {tuple(sample.labels.values()): sample.value for sample in family.samples}
        found[family.name] = values
    return found


@pytest.mark.on_postgresql
def test_a_store_whose_nights_come_in_time_is_well(site: Site, engine: Engine) -> None:
    store_night(engine, LAST)
    store_night(engine, date(2024, 1, 4), market="of_nobody")  # whose exchange is not known
    status, report = health(site)
    assert (status, report["status"], report["reasons"]) == (200, "ok", [])
    late = {row["market"]: row["late_seconds"] for row in report["markets"]}
    assert late == {"of_nobody": None, "simulated": 0.0}
    for address in ("/", "/running", "/market/simulated"):
        seen = Page(site.get(address).body).seen
        assert f"Night of {LAST}" in seen
        assert re.search("predicted, 0 left.* 0 ", seen)
        assert "next night is due" in seen


@pytest.mark.parametrize("status", ["refused", "running"])
def test_a_market_that_is_late_is_named_with_its_night_and_the_rest_can_be_asked_alone(
    site: Site, engine: Engine, status: str
) -> None:
    store_night(engine, sessions_ago(4))
    store_night(engine, sessions_ago(3), status)
    store_night(engine, date(2024, 1, 4), market="of_nobody")
    code, report = health(site)
    assert (code, report["status"]) == (503, "late")
    (reason,) = report["reasons"]
    assert reason.startswith(f"simulated: night of {sessions_ago(3)} ")
    last_night = f"last night, of {sessions_ago(3)}, is {status}; "
    assert re.search(f"{last_night}.*`dtml nightly simulated --catch-up`", reason)
    assert health(site, "/health?market=of_nobody")[0] == 200
    assert health(site, "/health?market=of_nobody&market=simulated")[0] == 503
    assert site.get("/health?market=nowhere").status == 404


def test_a_night_is_late_by_the_time_since_the_first_one_that_is_missing(
    site: Site, engine: Engine
) -> None:
    store_night(engine, sessions_ago(6))
    seconds = metrics(site)["dtml_night_late_seconds"]["simulated",]
    # five sessions are missing: the first of them was due a week ago, give or take a weekend
    assert timedelta(days=4).total_seconds() < seconds < timedelta(days=12).total_seconds()


def test_a_market_that_is_only_history_is_well_for_ever(site: Site, engine: Engine) -> None:
    store_night(engine, date(2016, 6, 30), market="kdd17")
    assert health(site)[:1] == (200,)
    assert metrics(site)["dtml_night_late_seconds"] == {("kdd17",): 0.0}
    first_page = Page(site.get("/").body).seen
    assert "Night of 2016-06-30" in first_page
    assert "next night is due" not in first_page


def test_a_store_that_does_not_answer_is_not_well_and_says_why(
    engine: Engine, reader: Engine
) -> None:
    with served(dashboard(reader), reader) as site:
        with transaction(engine) as conn:
            conn.execute(text("drop view night_log"))
        code, report = health(site)
        assert (code, report["status"], report["markets"]) == (503, "failed", [])
        assert "night_log" in report["reasons"][0]
        assert site.get("/metrics").status == 503
        assert (site.get("/alive").status, site.get("/alive").body) == (200, "ok")


def test_no_answer_holds_the_password_of_the_store() -> None:
    pytest.importorskip("psycopg")
    # not by open_engine, which connects: here the server is lost after that
    nowhere = create_engine(f"postgresql+psycopg://quant:{PASSWORD}@127.0.0.1:9/x")
    with served(dashboard(nowhere), nowhere) as site:
        for address in ("/health", "/metrics", "/running"):
            answer = site.get(address)
            assert answer.status == 503
            assert PASSWORD not in answer.body
        assert "127.0.0.1" in health(site)[1]["reasons"][0]


@pytest.mark.on_postgresql
def test_prometheus_reads_nights_stages_scores_and_the_queue(site: Site, engine: Engine) -> None:
    fill(engine)
    store_night(engine, sessions_ago(1))
    store_stages(engine, sessions_ago(1), {"fetch": 1.5, "model": 80.25})
    store_night(engine, LAST, "running")
    store_stages(engine, LAST, {"fetch": 0.5, "model": None})
    with transaction(engine) as conn:
        translations.queue_texts(conn, "en-de", ["a", "b"])
    found = metrics(site)
    assert found["dtml_nights"]["simulated", "complete"] == 1
    assert found["dtml_nights"]["simulated", "running"] == 1
    assert found["dtml_nights"][MARKET, "refused"] == 1
    assert found["dtml_night_stage_seconds"] == {
        ("simulated", "fetch"): 1.5,
        ("simulated", "model"): 80.25,
    }
    assert found["dtml_translation_texts"] == {("en-de", "queued"): 2}
    finished = found["dtml_night_finished_timestamp_seconds"]["simulated",]
    assert finished == pytest.approx(NOW.timestamp(), abs=1)
    figures = {
        figure
        for figure, market, predictor in found["dtml_score"]
        if (market, predictor) == (MARKET, "dtml")
    }
    assert figures == {"acc", "mcc"}
    assert all(-1 <= value <= 1 for value in found["dtml_score"].values())
    assert found["dtml_scored_nights"]["acc", MARKET] == 24


def test_an_empty_store_is_well_and_has_no_figure(site: Site) -> None:
    assert health(site) == (200, {"status": "ok", "reasons": [], "markets": []})
    assert {name for name, values in metrics(site).items() if values} == set()


@contextmanager
def working(engine: Engine) -> Iterator[None]:
    """Work on the simulated market, as a night does."""
    with market_lock(engine, "simulated"):
        yield


def cells(page: Page) -> list[list[str]]:
    """Return the rows of the page's first table as words."""
    body = page.source.split("<tbody>")[1].split("</tbody>")[0]
    marked_rows = body.replace("</t", " | </t").strip().split("\n")
    rows = [Page(row).seen.split(" | ") for row in marked_rows]
    return [[cell.removesuffix(" |") for cell in row if cell != "|"] for row in rows]


@pytest.mark.on_postgresql
def test_the_page_shows_the_stage_that_a_night_is_in_beside_the_night_before(
    site: Site, engine: Engine
) -> None:
    store_night(engine, sessions_ago(1))
    store_stages(engine, sessions_ago(1), {"fetch": 1.5, "model": 80.25, "predict": 2.0})
    store_night(engine, LAST, "running")
    store_stages(engine, LAST, {"fetch": 0.5, "model": None})
    with transaction(engine) as conn:
        translations.queue_texts(conn, "en-de", ["a", "b"])
    with working(engine):
        page = Page(site.get("/running").body)
    assert f"Night of {LAST}, begun" in page.seen
    assert "stage model since" in page.seen
    fetch, model, predict = cells(page)
    assert fetch == ["fetch", "✓ done", "0.5", "1.5"]
    assert (model[:2], model[3]) == (["model", "running"], "80.2")
    assert float(model[2]) > 200
    assert predict == ["predict", "not yet", "-", "2.0"]
    assert "en-de 2 0 0 0" in page.seen


@pytest.mark.soak
@pytest.mark.on_postgresql
def test_a_running_night_is_shown_on_every_page_of_it(site: Site, engine: Engine) -> None:
    store_night(engine, LAST, "running")
    store_stages(engine, LAST, {"fetch": 0.5, "model": None})
    with working(engine):
        for address in ("/", "/market/simulated", "/running", "/live"):
            body = site.get(address).body
            assert "running : model" in Page(body).seen, address
            assert "data-runs" in body, address
    assert "data-runs" not in site.get("/live").body


@pytest.mark.on_postgresql
def test_a_backtest_in_hand_tells_how_far_its_folds_are(site: Site, engine: Engine) -> None:
    first = date(2024, 1, 1)
    with transaction(engine) as conn:
        begin_backtest(conn, first, date(2024, 4, 9))  # a hundred days
        for number in range(2):
            made = NOW - timedelta(minutes=3 * (1 - number) + 1)
            save_fold(conn, number, first + timedelta(days=20 * number), made)
        (work,) = running.other_work(conn, NOW)
        (silent,) = running.other_work(conn, NOW + timedelta(hours=1))
    assert work.done == pytest.approx(0.4)
    assert (work.kind, work.market, work.is_alive) == ("backtest", "simulated", True)
    assert re.fullmatch("2 folds .*2024-02-09", work.stage)
    assert not silent.is_alive
    seen = Page(site.get("/running").body).seen
    assert re.search("2 folds.*2024-02-09, 40 %", seen)
    assert "2 folds done" in Page(site.get("/").body).seen


def begin_backtest(conn: Connection, first: date, last: date) -> None:
    begun = {
        "id": "simulated-in-hand",
        "market": "simulated",
        "first": first,
        "last": last,
        "retrain_every": 14,
        "config": {},
        "seeds": [1],
        "code_version": "0.1.0",
        "data_watermark": NOW,
        "list_is_snapshot": False,
        "list_as_of": None,
        "device": "cpu",
        "created_at": NOW - timedelta(minutes=10),
    }
    save(conn, "backtest", begun)


def save_fold(conn: Connection, number: int, first: date, made: datetime) -> None:
    """Store a fold of twenty days, whose model was made at that moment."""
    run_id = f"fold-{number}"
    save(conn, "run", run_row(run_id, "simulated", pd.Timestamp(first), "backtest", made))
    fold = {
        "number": number + 1,
        "run_id": run_id,
        "as_of": first - timedelta(days=1),
        "first": first,
        "last": first + timedelta(days=19),
        "predictions": 9,
        "refused": {},
        "seconds": 100.0,
    }
    save(conn, "backtest_fold", fold, backtest_id="simulated-in-hand")


@pytest.mark.on_postgresql
def test_a_queue_that_moves_is_worked_on(site: Site, engine: Engine) -> None:
    with transaction(engine) as conn:
        ids = translations.queue_texts(conn, "en-de", [f"Text {each}." for each in range(6)])
        (still,) = running.other_work(conn, NOW)
        for place, number in enumerate(ids[:3]):
            finished = NOW - timedelta(seconds=10 * (3 - place))
            done = {"status": "done", "finished_at": finished, "translation": "x", "score": -1.0}
            text_table = tables.translation_text
            conn.execute(text_table.update().where(text_table.c.id == number).values(done))
        (work,) = running.other_work(conn, NOW)
    assert (still.is_alive, still.stage) == (False, "6 texts to translate")
    assert work.is_alive
    assert "3 texts to translate" in Page(site.get("/").body).seen


def test_a_night_that_no_process_works_on_is_interrupted(site: Site, engine: Engine) -> None:
    store_night(engine, LAST, "running")
    store_stages(engine, LAST, {"fetch": 0.5, "model": None})
    page = Page(site.get("/running").body)
    assert "Interrupted : no process" in page.seen
    assert cells(page)[1] == ["model", "✗ interrupted", "-", "-"]


def test_the_page_is_loaded_again_only_where_its_reader_chose_to(
    site: Site, engine: Engine
) -> None:
    store_night(engine, LAST)
    quiet = Page(site.get("/running").body)
    assert "No night is running. " in f"{quiet.seen} "
    refreshes = [attrs for tag, attrs in quiet.tags if attrs.get("http-equiv")]
    assert refreshes == []
    assert "/running?every=15" in quiet.links
    again = Page(site.get("/running?every=15").body)
    refreshes = [attrs for tag, attrs in again.tags if attrs.get("http-equiv")]
    assert refreshes == [{"http-equiv": "refresh", "content": "15"}]
    assert site.get("/running?every=-1").status == 400


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_look_at_a_lock_makes_no_file_beside_the_store(
    site: Site, engine: Engine, tmp_path: Path
) -> None:
    store_night(engine, LAST, "running")
    assert "Interrupted" in Page(site.get("/running").body).seen
    assert list(tmp_path.glob("*.lock")) == []
