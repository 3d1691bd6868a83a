"""What the dashboard refuses, and how: one line on a page, and nothing that is not the
visitor's.
"""

import logging

import pytest
from sqlalchemy import create_engine, text

from flows.dashboard.app import HEADERS, dashboard
from tests.support.browser import Page, served
from tests.support.dashboard_store import (
    DAYS,
    MARKET,
    STOCKS,
    served_site,  # noqa: F401 - the fixture `site`
)

pytestmark = pytest.mark.slow

UNKNOWN = {
    "/nowhere": "no page has this",
    "/market/nowhere": "no market 'nowhere'",
    f"/market/nowhere/stock/{STOCKS[0]}": "no market 'nowhere'",
    f"/market/{MARKET}/stock/NOPE": f"'NOPE' in market {MARKET}",
    f"/market/{MARKET}/stock/%00": "contain a NUL",
    "/table/nowhere": "no view 'nowhere': /tables",
    "/market/nowhere/stock?symbol=S01": "no market 'nowhere'",
    f"/market/{MARKET}?as_of=2024-06-22": "nearest, 2024-06-21 or 2024-06-24",
    f"/market/{MARKET}?as_of=1999-01-01": f"choose the nearest, {DAYS[0].date()}",
}
MISTAKES = {
    f"/market/{MARKET}?as_of=yesterday": "as_of=yesterday: expected a date such",
    f"/market/{MARKET}?every=x": "every=x: expected a whole number",
    f"/market/{MARKET}?every=-1": "every=-1: expected 0 or more",
    f"/market/{MARKET}/night/{DAYS[0].date()}?level=0.81": "level=0.81: it is",
    f"/market/{MARKET}/night/{DAYS[0].date()}?level=high": "level=high: expected a number",
    f"/market/{MARKET}/night/{DAYS[0].date()}?level=nan": "level=nan: it is",
    "/table/run_log?size=1": "has no column 'size'",
    "/sql/rows.xml?q=select+1": "rows.xml: choose",
    "/sql/rows.csv?q=delete+from+run": "select",
    f"/market/{MARKET}/stock/S01?from=2024-13-01": "from=2024-13-01: expected a date such",
    f"/market/{MARKET}/stock/S01?from=2024-06-02T10:00": "expected a date without a time",
    "/sql/rows.csv": "q: missing; add",
    f"/market/{MARKET}/stock/S01?from=2024-06-02&to=2024-06-01": "ends before it begins",
    f"/market/{MARKET}/stock/S01?kind=daily": "kind 'daily' is",
}


@pytest.mark.slow
@pytest.mark.parametrize("address", [*UNKNOWN, *MISTAKES])
def test_what_is_not_there_and_what_is_mistaken_is_said_in_a_line(site, address):
    answer = site.get(address)
    assert answer.status == (404 if address in UNKNOWN else 400)
    said = Page(answer.body).seen
    assert (UNKNOWN | MISTAKES)[address] in said
    assert "Traceback" not in said


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_get_is_answered(site, method):
    for address in ("/", f"/market/{MARKET}", "/sql/rows.csv?q=select+1"):
        answer = site.get(address, method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("127.0.0.1", "localhost:8050", "LOCALHOST", "[::1]:8050")),
        *(
            (host, 400)
            for host in (
                "evil.example",
                "127.0.0.1.evil.example",
                "evil.example:8050",
                "[::2]",
                "a b",
            )
        ),
    ],
)
def test_a_page_of_elsewhere_cannot_have_its_name_lead_here(site, host, status):
    answer = site.get("/", host=host)
    assert answer.status == status
    assert status == 200 or MARKET not in answer.body


@pytest.mark.parametrize(
    "address",
    [
        "/",
        "/alive",
        "/health",
        "/metrics",
        "/nowhere",
        "/sql/rows.csv?q=select+1",
        f"/market/{MARKET}?every=x",
    ],
)
def test_every_answer_says_what_a_browser_may_do_with_it(site, address):
    for host in (None, "evil.example"):
        headers = site.get(address, host=host).headers
        assert {name: headers[name] for name in HEADERS} == HEADERS
    assert "default-src 'none'" in HEADERS["content-security-policy"]


@pytest.mark.slow
def test_an_empty_store_says_what_to_run(reader):
    with served(dashboard(reader), reader) as site:
        answer = site.get("/")
        assert answer.status == 200
        assert "dtml nightly simulated" in Page(answer.body).seen


@pytest.mark.slow
def test_a_store_that_breaks_is_said_in_a_line(engine, reader, caplog):
    with engine.begin() as conn:
        conn.execute(text("drop view night_log"))
    with caplog.at_level(logging.WARNING), served(dashboard(reader), reader) as site:
        answer = site.get("/")
        monitored = [site.get(address).status for address in ("/health", "/metrics", "/alive")]
    assert monitored == [503, 503, 200]
    assert answer.status == 503
    assert "night_log" in answer.body
    assert "Traceback" not in answer.body
    said = [each.getMessage() for each in caplog.records if each.name == "flows.dashboard.app"]
    assert said
    assert not any("\n" in each for each in said)


@pytest.mark.slow
def test_no_password_comes_out(caplog):
    pytest.importorskip("psycopg")
    # not by open_engine, which connects: here the server is lost after that
    gone = create_engine("postgresql+psycopg://quant:zebr4cut@127.0.0.1:9/x")
    with caplog.at_level(logging.DEBUG), served(dashboard(gone), gone) as site:
        answers = [site.get(each) for each in ("/", "/health", "/metrics", "/running")]
    assert {answer.status for answer in answers} == {503}
    assert "start the server" in answers[0].body
    assert "zebr4cut" not in "".join(each.body for each in answers) + caplog.text


def test_an_unforeseen_failure_shows_no_more_than_its_kind(site, monkeypatch, caplog):
    def fail(*_):
        raise KeyError("secret words")

    monkeypatch.setattr("flows.dashboard.app.markets_page", fail)
    with caplog.at_level(logging.WARNING):
        answer = site.get("/")
    assert answer.status == 500
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "unexpected KeyError" in answer.body
    assert "secret words" not in answer.body
    (said,) = [
        record.getMessage() for record in caplog.records if record.name == "flows.dashboard.app"
    ]
    assert "unexpected KeyError" in said
    assert f"{__file__}:" in said  # the line that failed
    assert "secret words" not in said
