"""Every page as people meet it: in a real browser, wide and narrow, light and dark, with nothing to
complain of.
"""

import pytest

from db.connection.locks import market_lock
from db.engine import open_engine, transaction, upgrade
from db.rows import nights, translations
from dtml.pages.ranking import Ranking, ranking_page
from flows.dashboard.app import dashboard, link
from flows.nightly.night import run_night
from tests.support.backtest_page import page as backtest_page
from tests.support.benchmark_rows import (
    ranking,
    ranking_differences,
    ranking_portfolios,
    ranking_scores,
)
from tests.support.browser import axe_source, browser, complaints, served
from tests.support.dashboard_store import (
    BARE,
    DAYS,
    EVIL,
    EVIL_STOCKS,
    FIRST_RUN,
    LEVEL,
    MARKET,
    fill,
    moment,
)
from tests.support.nights import AS_OF
from tests.support.ranked_nights import MARKET as RANKED
from tests.support.ranked_nights import fill_ranked_nights
from tests.support.recipe import SOURCES
from tests.support.tear_sheets import sheet

pytestmark = pytest.mark.soak

PAGES = {
    "markets": "/",
    "market": link(["market", MARKET], {"as_of": DAYS[15].date(), "level": LEVEL}),
    "ranking_of_nights": link(["market", RANKED, "ranking"]),
    "no_ranking": link(["market", MARKET, "ranking"]),
    "refused": link(["market", MARKET]),
    "stock": link(["market", MARKET, "stock", "S01"]),
    "run": link(["table", "run_log"], {"run_id": FIRST_RUN}),
    "evil": link(["market", EVIL, "stock", EVIL_STOCKS[0]]),
    "bare": link(["market", BARE]),
    "running": "/running",
    "terms": "/terms",
    "tables": "/tables",
    "table": link(
        ["table", "daily_score"],
        {"predictor": "dtml"},
    ),
    "sql": link(
        ["sql"],
        {"q": "select target, predictor, running_acc from daily_score where protocol = 'all'"},
    ),
}


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def axe():
    return axe_source()


@pytest.fixture(scope="module")
def site(chromium, tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('browser') / 'store.sqlite'}"
    owner = open_engine(url)
    upgrade(owner)
    fill(owner)
    fill_ranked_nights(owner)
    begin_night(owner)
    owner.dispose()
    reader = open_engine(url, read_only=True)
    with served(dashboard(reader), reader) as found:
        yield found


def begin_night(engine):
    """Begin a night of a market of its own, and queue a text."""
    night_of = ("busy market", AS_OF)
    with transaction(engine) as conn:
        nights.start_night(
            conn, *night_of, target=None, source="files", started_at=moment(AS_OF, 22)
        )
        for stage in ("fetch", "model"):
            nights.start_stage(conn, *night_of, stage, started_at=moment(AS_OF, 22))
        nights.finish_stage(conn, *night_of, "fetch", status="done", seconds=1.25)
        translations.queue_texts(conn, "en-de", ["A dog."])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_dashboard_has_nothing_wrong(site, chromium, axe, name):
    assert complaints(chromium, axe, site.url + PAGES[name]) == []


def test_the_report_of_a_backtest_has_nothing_wrong(chromium, axe, tmp_path):
    (file := tmp_path / "backtest.html").write_text(backtest_page(), encoding="utf-8")
    assert complaints(chromium, axe, file.as_uri()) == []


def test_the_report_of_a_ranking_has_nothing_wrong(chromium, axe, tmp_path):
    made = Ranking(
        ranking(), ranking_scores(), ranking_differences(), ranking_portfolios(), sheet(0.3)
    )
    (file := tmp_path / "ranking.html").write_text(ranking_page(made), encoding="utf-8")
    assert complaints(chromium, axe, file.as_uri()) == []


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_report_of_a_night_has_nothing_wrong(chromium, axe, context, tmp_path):
    assert complaints(chromium, axe, run_night(context, AS_OF).report.as_uri()) == []


def test_what_is_wrong_with_a_page_is_found(chromium, axe, tmp_path):
    """Else the tests above would hold of any page."""
    pale = "<h1 style='color:#999;width:2000px'>pale</h1><input>"
    failing = "<img src='none.png' alt=''><script>alert(1); x</script>"
    (file := tmp_path / "wrong.html").write_text(
        f"<title>t</title><html lang='en'><main>{pale}</main>{failing}"
    )
    found = " ".join(complaints(chromium, axe, file.as_uri()))
    for said in (
        "color-contrast",
        "label",
        "the page is",
        "request failed",
        "dialog: 1",
        "x is not",
    ):
        assert said in found


def test_the_keyboard_reaches_the_content_first(site, chromium):
    page = chromium.new_page()
    page.goto(site.url + PAGES["market"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").startswith("Skip to")
    page.keyboard.press("Enter")
    page.wait_for_url("**#main")
    page.keyboard.press("Tab")
    page.wait_for_function("document.querySelector('main').contains(document.activeElement)")
    page.close()


def test_a_page_follows_a_night_until_it_ends(chromium, tmp_path):
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    owner = open_engine(url)
    upgrade(owner)
    busy = ("busy market", AS_OF)
    counts = {"fetched": 9, "stored": 9, "rejected": 0, "predictions": 9}
    begun, ended = moment(AS_OF, 22), moment(AS_OF, 23)
    with transaction(owner) as conn:
        nights.start_night(conn, *busy, target=None, source="files", started_at=begun)
        nights.start_stage(conn, *busy, "model", started_at=begun)
    reader = open_engine(url, read_only=True)
    page = chromium.new_page()
    page.clock.install()
    state = page.locator('[data-live="details of busy market"]')
    with served(dashboard(reader), reader) as site:
        with market_lock(owner, "busy market"):
            page.goto(site.url)
            assert "running: model" in state.inner_text()
            with transaction(owner) as conn:
                nights.finish_stage(conn, *busy, "model", status="done", seconds=1.25)
                nights.start_stage(conn, *busy, "predict", started_at=begun)
            page.clock.run_for(6000)
            state.filter(has_text="running: predict").wait_for()
            finished = {"status": "complete", "finished_at": ended, "counts": counts, "gaps": []}
            with transaction(owner) as conn:
                nights.finish_night(conn, *busy, **finished)
        with page.expect_navigation():  # what ended has results, which the rest of the page shows
            page.clock.run_for(6000)
        assert "9 stocks predicted" in state.inner_text()
    page.close()
    owner.dispose()


def test_the_page_of_alignments_has_nothing_wrong(chromium, axe, home, translate):
    texts = [SOURCES[0], " ".join(SOURCES[:12]), "<b>Grüße</b> 🙂 日本 " + "x" * 90, ""]
    assert translate("text", *texts, "--attention-page", "seen.html")[0] == 0
    assert complaints(chromium, axe, (home / "seen.html").as_uri()) == []
