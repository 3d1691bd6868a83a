"""Charts answer in a real browser: what is under the cursor, linked zoom, lines
switched off; and a box for SQL.
"""

import pytest

from flows.dashboard.app import link
from tests.support import stores as made_stores
from tests.support.backtest_page import page as backtest_page
from tests.support.browser import Page, browser
from tests.support.dashboard_store import (
    MARKET,
    served_kept_store,
    served_store,
    served_to_a_reader,
)

pytestmark = pytest.mark.soak

STOCK = link(["market", MARKET, "stock", "S01"])


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def site(chromium):
    with served_kept_store() as found:
        yield found


def opened(chromium, address, chart="figure.chart"):
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(address)
    page.locator(chart).first.scroll_into_view_if_needed()
    page.wait_for_selector(f"{chart}.live canvas")
    return page


def test_the_session_and_the_values_under_the_cursor_are_said(site, chromium):
    page = opened(chromium, site.url + STOCK)
    box = page.locator("figure.chart canvas").bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.move(box["x"] + 505, box["y"] + 60)
    said = page.locator("#vg-tooltip-element.visible").inner_text()
    session = said.split()[1]
    with site.engine.connect() as conn:
        sql = "select close from price_latest where market = ? and symbol = 'S01' and session = ?"
        close = conn.exec_driver_sql(sql, (MARKET, session)).scalar()
    assert f"{close:.2f}" in said
    page.close()


def test_a_line_is_switched_off_and_on_by_the_keyboard_too(site, chromium):
    page = opened(chromium, site.url + STOCK)
    hidden = "document.querySelector('figure.chart').view.signal('hidden').length"
    before = page.evaluate(hidden)
    calibrated = page.get_by_role("checkbox", name="calibrated")
    calibrated.focus()
    page.keyboard.press("Space")
    page.wait_for_function(f"{hidden} == {before + 1}")
    calibrated.check()
    page.wait_for_function(f"{hidden} == {before}")
    page.close()


def test_the_box_for_sql_answers_with_a_chart_and_refuses_to_write(site, chromium):
    page = chromium.new_page()
    page.goto(f"{site.url}/sql")
    asked = "select target, predictor, running_acc from daily_score where protocol = 'all'"
    page.get_by_label("Statement").fill(f"{asked} and market = '{MARKET}'")
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("figure.live canvas")
    assert page.locator("tbody tr").count() > 50
    newest = [float(value) for value in page.locator("dl.newest dd").all_inner_texts()]
    assert newest == sorted(newest, reverse=True)
    assert len(newest) == page.locator("figure.chart input[type=checkbox]").count() > 1
    page.get_by_label("Statement").fill("delete from run")
    page.get_by_role("button", name="Run").click()
    assert page.get_by_role("alert").inner_text()
    with site.engine.connect() as conn:
        assert conn.exec_driver_sql("select count(*) from run").scalar()
    page.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_stored_study_has_a_page(engine, tmp_path, request):
    if engine == "sqlite":
        serving = served_store(f"sqlite:///{tmp_path / 'studies.sqlite'}", None, made_stores.fill)
    else:
        serving = served_to_a_reader(
            request.getfixturevalue("postgresql_server"), "studies", made_stores.fill
        )
    with serving as site:
        assert site.get("/").status == site.get("/market/toy").status == 200
        studies = {
            "backtest": "backtest_summary",
            "benchmark": "run_score",
            "ranking": "ranking_summary",
        }
        for kind, view in studies.items():
            listed = Page(site.get(f"/table/{view}").body).links
            answer = site.get(next(each for each in listed if each.startswith(f"/{kind}/")))
            assert answer.status == 200
            assert "/" in Page(answer.body).links  # a way back
            assert '<script src="/charts.js"></script>' in answer.body
            assert site.get(f"/{kind}/nowhere").status == 404


def test_a_backtest_s_file_is_alive_and_without_a_script_still_readable(chromium, tmp_path):
    (file := tmp_path / "backtest.html").write_text(backtest_page(), encoding="utf-8")
    page = opened(chromium, file.as_uri())
    assert page.locator("figure.chart input:not(:checked)").count() > 3  # few lines at first
    page.close()
    context = chromium.new_context(
        java_script_enabled=False, viewport={"width": 390, "height": 900}
    )
    page = context.new_page()
    page.goto(file.as_uri())
    drawn = page.locator("figure.chart svg[aria-hidden]").first.bounding_box()
    assert drawn["width"] > 300
    assert drawn["height"] > 200
    assert not page.locator("p.zoom").first.is_visible()
    context.close()
