"""The dashboard as it is served: every link leads somewhere, everything is escaped, a CSV is its view."""

import csv
import io
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from made_browser import Answer, Page, Site
from made_dashboard import (
    BACKTEST_RUN,
    BARE,
    DAYS,
    EVIL,
    EVIL_RUNS,
    EVIL_STOCKS,
    FIRST_RUN,
    LEVEL,
    MARKET,
    NIGHTS,
    STOCKS,
    served_site,  # noqa: F401 - the fixture `site`
)
from sqlalchemy import event, text

from db import tables as schema
from flows.dashboard.app import link

pytestmark = pytest.mark.slow

NIGHT, TARGET = (DAYS[day].date() for day in (15, 16))  # complete, of the first run
REFUSED = DAYS[NIGHTS].date()


@dataclass
class Visit:
    """What a visitor found who followed the links, and the SQL that was run for it."""

    answers: dict[str, Answer] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)

    @property
    def pages(self) -> dict[str, Page]:
        return {
            where: Page(found.body) for where, found in self.answers.items() if "html" in found.headers["content-type"]
        }


def kind_of(address: str) -> tuple[str, tuple[str, ...]]:
    """Addresses of one kind differ in names and values alone."""
    parts, fixed = urlsplit(address), ("market", "stock", "compare")
    path = [each if each in fixed or each.endswith(".csv") else "*" for each in parts.path.split("/")]
    return "/".join(path), tuple(sorted(name for name, _ in parse_qsl(parts.query)))


@pytest.fixture(scope="module")
def visit(site: Site) -> Visit:
    """All links and forms from the first page on, of those that differ in a name or a value alone the first ten."""
    found, waiting, counts = Visit(), ["/"], dict[tuple[str, tuple[str, ...]], int]()
    event.listen(site.engine, "before_cursor_execute", lambda *given: found.statements.append(given[2]))
    while waiting:
        address = waiting.pop(0)
        answer = found.answers[address] = site.get(address)
        page = Page(answer.body if "html" in answer.headers["content-type"] else "")
        for target in (*page.links, *page.sent):
            kind = kind_of(target)
            if target.startswith("/") and target not in (*found.answers, *waiting) and counts.get(kind, 0) < 10:
                counts[kind] = counts.get(kind, 0) + 1
                waiting.append(target)
    return found


def rows_of(answer: Answer) -> list[dict[str, str]]:
    assert (answer.status, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8"), answer.body
    return list(csv.DictReader(io.StringIO(answer.body)))


@pytest.mark.slow
def test_every_link_leads_somewhere(visit: Visit) -> None:
    assert {where: found.status for where, found in visit.answers.items() if found.status != 200} == {}
    for market in (MARKET, EVIL, BARE):
        assert link(["market", market]) in visit.answers
    for symbol in EVIL_STOCKS:
        assert link(["market", EVIL, "stock", symbol]) in visit.answers
    assert len({kind for kind, _ in map(kind_of, visit.answers) if kind.endswith(".csv")}) >= 14
    assert all(target.startswith(("/", "#")) for page in visit.pages.values() for target in page.links)


def test_what_is_asked_reads_views_alone_and_no_name_is_part_of_it(visit: Visit) -> None:
    tables = "|".join(each for each in schema.metadata.tables)
    names = (MARKET, *STOCKS, EVIL, *EVIL_STOCKS, FIRST_RUN, *EVIL_RUNS, str(NIGHT), str(LEVEL))
    assert len(visit.statements) > 100
    for statement in visit.statements:
        assert statement.startswith(("SELECT", "BEGIN", "begin", "select")), statement
        assert not re.search(rf"\b(from|join)\s+({tables})\b(?!_)", statement, re.IGNORECASE), statement
        assert not any(f"{name}" in statement for name in names), statement


def test_names_of_all_kinds_are_escaped(visit: Visit) -> None:
    drawn = "svg line path rect circle polyline polygon text title desc"
    laid_out = "html head meta style body header nav main div form h1 h2 h3 p ul li dl dt dd figure figcaption br"
    written = (
        "a span small strong code pre table caption thead tbody tr th td label input select option datalist button"
    )
    known = set(f"{drawn} {laid_out} {written}".split())
    for where, page in visit.pages.items():
        tags = {tag for tag, _ in page.tags}
        assert tags <= known, (where, tags - known)
        assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs), where
    evil = [page.seen for where, page in visit.pages.items() if where.startswith(link(["market", EVIL]))]
    words = (EVIL, "<Tin>", "too many bars refused: <b>9</b> of 10", "<nan>", f"{EVIL_STOCKS[3]} & Sons")
    for said in (*EVIL_STOCKS, *words):
        assert any(" ".join(said.split()) in seen for seen in evil), said


def test_a_page_is_whole_alone_and_can_be_used_without_seeing_it(visit: Visit) -> None:
    for where, page in visit.pages.items():
        body = visit.answers[where].body
        assert not re.search(r"<link|<script|@import|url\(|src\s*=", body), where
        assert not re.search(r"\b(nan|NaN|NaT|None|NA)\b", page.seen.replace("<nan>", "")), where
        ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
        assert len(ids) == len(set(ids)), where
        labels = {attrs.get("for") for tag, attrs in page.tags if tag == "label"}
        fields = [attrs for tag, attrs in page.tags if tag in ("input", "select") and attrs.get("type") != "hidden"]
        assert {each["id"] for each in fields} == labels, where
        assert [tag for tag, _ in page.tags].count("h1") == 1
        assert sum(attrs.get("aria-current") == "page" for _, attrs in page.tags) == 1, where
        regions = [attrs for _, attrs in page.tags if attrs.get("class", "").startswith("wide")]
        assert all(each["tabindex"] == "0" and each["aria-label"] for each in regions)


OF_NIGHT = f"run_id = '{FIRST_RUN}' and target = '{TARGET}'"
OF_STOCK = f"market = '{MARKET}' and symbol = 'S01'"
EVIL_DIRECTIONS = link(["market", EVIL, "stock", EVIL_STOCKS[1], "directions.csv"])
VIEWS = {  # a CSV's address, and the SQL of its rows
    f"/market/{MARKET}/directions.csv?as_of={NIGHT}": f"prediction_history where {OF_NIGHT}",
    f"/market/{MARKET}/directions.csv?as_of={NIGHT}&level={LEVEL}": "band_direction"
    f" where {OF_NIGHT} and level = {LEVEL}",
    f"/market/{MARKET}/scores.csv": f"daily_score where market = '{MARKET}'",
    f"/market/{MARKET}/nights.csv": f"night_log where market = '{MARKET}'",
    f"/market/{MARKET}/rejected.csv?as_of={REFUSED}": f"rejected where market = '{MARKET}'",
    f"/market/{MARKET}/models.csv": f"run_log where market = '{MARKET}'",
    f"/market/{MARKET}/stock/S01/directions.csv": f"prediction_history where {OF_STOCK} and kind = 'nightly'",
    f"/market/{MARKET}/stock/S01/directions.csv?kind=backtest&from={NIGHT}": "prediction_history"
    f" where {OF_STOCK} and kind = 'backtest' and target >= '{NIGHT}'",
    f"/market/{MARKET}/stock/S01/prices.csv?to={NIGHT}": f"price_latest where {OF_STOCK} and session <= '{NIGHT}'",
    f"/market/{MARKET}/stock/S01/scores.csv": f"symbol_score where {OF_STOCK}",
    EVIL_DIRECTIONS: f"prediction_history where symbol = '{EVIL_STOCKS[1]}'",
}


@pytest.mark.parametrize("address", VIEWS)
def test_a_csv_holds_the_rows_of_its_view(site: Site, address: str) -> None:
    with site.engine.connect() as conn:
        result = conn.execute(text(f"select * from {VIEWS[address]}"))
        names, expected = list(result.keys()), [[told(value) for value in row] for row in result]
    found = rows_of(site.get(address))
    assert list(found[0]) == names
    assert sorted([told(row[name]) for name in names] for row in found) == sorted(expected)


def told(value: Any) -> str:
    """A value of either engine, and a cell of a CSV, in the same words."""
    if value is None:
        return ""
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False)
    moment = re.fullmatch(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d+)?(\+00(:?00)?)?", str(value))
    if moment:
        return f"{moment[1]}T{moment[2]}"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"
    number = str(value)
    return repr(float(number)) if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", number) else number


def test_a_csv_of_many_batches_is_the_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"/market/{MARKET}/scores.csv"
    whole = site.get(address).body
    monkeypatch.setattr("db.connection.frames.BATCH", 7)
    assert site.get(address).body == whole


def test_a_stock_that_was_typed_is_found(site: Site) -> None:
    for symbol in (STOCKS[2], *EVIL_STOCKS):
        market = MARKET if symbol in STOCKS else EVIL
        asked = f"{link(['market', market, 'stock'])}?symbol={quote(symbol)}"
        answer = site.get(asked)
        assert (answer.status, answer.headers["location"]) == (303, link(["market", market, "stock", symbol]))
        assert site.get(answer.headers["location"]).status == 200
    assert site.get(f"/market/{MARKET}/stock?symbol=").headers["location"] == f"/market/{MARKET}"


def test_what_two_runs_have_in_common_is_what_their_rows_say(site: Site) -> None:
    days = rows_of(site.get(f"/compare/days.csv?a={FIRST_RUN}&b={BACKTEST_RUN}"))
    sql = """
        select a.target, count(*) as n, sum(case when a.direction = b.direction then 1 else 0 end) as same,
            sum(case when a.direction = 'rise' and a.correct = 1 then 1 else 0 end) as a_rises,
            sum(case when b.direction = 'fall' and b.correct = 0 then 1 else 0 end) as b_false_falls
        from prediction_history a
        join prediction_history b on b.symbol = a.symbol and b.target = a.target and b.market = a.market
        where a.run_id = :a and b.run_id = :b group by a.target order by a.target desc
    """
    with site.engine.connect() as conn:
        expected = conn.execute(text(sql), {"a": FIRST_RUN, "b": BACKTEST_RUN}).mappings().all()
    assert len(days) == len(expected) == 18
    for row, mine in zip(days, expected, strict=True):
        assert {name: row[name] for name in mine} == {name: str(value) for name, value in mine.items()}
