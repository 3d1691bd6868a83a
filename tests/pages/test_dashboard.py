"""The dashboard as it is served: every link leads somewhere, everything is
escaped, a CSV is its view.
"""

import csv
import io
import json
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest
from sqlalchemy import event, text

from db import tables as schema
from db.engine import reading
from db.read import read
from db.rows import attention
from dtml.pages.figures import Table, records
from flows.dashboard.app import link
from tests.support.bounds import in_float64
from tests.support.browser import Answer, Page
from tests.support.dashboard_store import (
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
from tests.support.night_page import region
from tests.support.pages import assert_whole_and_accessible, follow

pytestmark = pytest.mark.slow

NIGHT = DAYS[15].date()  # complete, of the first run


@dataclass
class Visit:
    """What a visitor found who followed the links, and the SQL that was run for it."""

    answers: dict[str, Answer] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def visit(site):
    """All links and forms from the first page on, of those that are alike a few."""
    found = Visit()
    event.listen(
        site.engine, "before_cursor_execute", lambda *given: found.statements.append(given[2])
    )

    def ask(address):
        before = len(found.statements)
        answer = site.get(address)
        if address.startswith(("/sql", "/table/")):  # run what a visitor writes
            del found.statements[before:]
        return answer

    for address, answer, page in follow(ask, ["/"], plain=40, asked=6):
        found.answers[address] = answer
        if page.source:
            found.pages[address] = page
    return found


def every_link_leads_somewhere(visit):
    assert {
        where: found.status
        for where, found in visit.answers.items()
        if found.status not in (200, 303)
    } == {}
    for market in (MARKET, EVIL, BARE):
        assert link(["market", market]) in visit.answers
    for symbol in EVIL_STOCKS:
        assert link(["market", EVIL, "stock", symbol]) in visit.answers
    assert len({where.split("?")[0] for where in visit.answers if where.startswith("/table/")}) > 25
    assert all(
        target.startswith(("/", "#", "data:text/csv"))
        for page in visit.pages.values()
        for target in page.links
    )


def what_is_asked_reads_views_alone_and_no_name_is_part_of_it(visit):
    # A role of `dtml db grant-reader` may read these tables too. The file of a user's own
    # market is read for its costs, and the pages do without where a role may not read it.
    is_read = {*schema.READABLE, "market_file"}
    tables = "|".join(each for each in schema.metadata.tables if each not in is_read)
    names = (MARKET, *STOCKS, EVIL, *EVIL_STOCKS, FIRST_RUN, *EVIL_RUNS, str(NIGHT), str(LEVEL))
    assert len(visit.statements) > 100
    for statement in visit.statements:
        assert statement.startswith(("SELECT", "BEGIN", "begin", "select", "with")), statement
        assert not re.search(rf"\b(from|join)\s+({tables})\b(?!_)", statement, re.IGNORECASE), (
            statement
        )
        assert not any(f"{name}" in statement for name in names), statement


def names_of_all_kinds_are_escaped(visit):
    known = (
        "a article body br button caption circle clippath code datalist dd defs details div dl dt "
        "figcaption figure footer form g h1 h2 h3 head header html input label li line main meta "
        "nav ol option p path pre progress rect script section select small span strong style "
        "summary svg table tbody td text textarea th thead title tr ul"
    )
    for where, page in visit.pages.items():
        tags = {tag for tag, _ in page.tags}
        assert tags <= set(known.split()), where
        assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs), where
    of_evil = (link(["market", EVIL]), "/table/")
    evil = [page.seen for where, page in visit.pages.items() if where.startswith(of_evil)]
    words = (EVIL, "<Tin>", "refused: <b>9</b> of 10", "<nan>", f"{EVIL_STOCKS[3]} & Sons")
    for said in (*EVIL_STOCKS, *words):
        assert any(" ".join(said.split()) in seen for seen in evil), said


def a_page_is_whole_alone_and_can_be_used_without_seeing_it(visit):
    for where, page in visit.pages.items():
        assert_whole_and_accessible(page)
        body = re.sub(r'<script src="/(live|charts).js">', "", page.source)
        assert not re.search(r"<link|@import|url\((?!#)|src\s*=", body), where
        assert not re.search(r"<script(?! type=.application/json.>)", body), where
        assert sum(attrs.get("aria-current") == "page" for _, attrs in page.tags) == 1, where


@pytest.mark.soak
def test_a_visitor_who_follows_every_link_finds_nothing_wrong(visit):
    """One visit for all of these laws: it takes far longer than to judge what it found."""
    every_link_leads_somewhere(visit)
    what_is_asked_reads_views_alone_and_no_name_is_part_of_it(visit)
    names_of_all_kinds_are_escaped(visit)
    a_page_is_whole_alone_and_can_be_used_without_seeing_it(visit)


ROWS = {  # an address, and the SQL of its rows
    link(
        ["table", "prediction_history"], {"symbol": "S01"}
    ): "prediction_history where symbol = 'S01'",
    link(["table", "band_direction"], {"level": LEVEL}): f"band_direction where level = {LEVEL}",
    link(["table", "night_log"], {"market": EVIL}): "night_log where market <> 'toy'",
    link(
        ["table", "prediction_history"], {"symbol": EVIL_STOCKS[1]}
    ): f"prediction_history where symbol = '{EVIL_STOCKS[1]}'",
}


@pytest.mark.soak
@pytest.mark.parametrize("address", ROWS)
def test_a_table_and_its_files_hold_the_rows_of_its_view(site, address):
    with site.engine.connect() as conn:
        expected = conn.execute(text(f"select * from {ROWS[address]}")).mappings().all()
    page = Page(site.get(address).body)
    assert f"{len(expected)} rows" in page.seen
    files = [each for each in page.links if each.startswith("/sql/rows.")]
    read = {each.split("?")[0].rpartition(".")[2]: site.get(each).body for each in files}
    found = json.loads(read["json"])
    assert [list(row) for row in found] == [list(row) for row in expected]
    symbols = [sorted(str(row.get("symbol")) for row in rows) for rows in (found, expected)]
    assert symbols[0] == symbols[1]
    assert len(list(csv.DictReader(io.StringIO(read["csv"])))) == len(expected)
    assert read["parquet"].startswith("PAR1")


def directions_of(site, symbol):
    with reading(site.engine) as conn:
        return read(
            conn,
            "prediction_history",
            market=MARKET,
            symbol=symbol,
            kind="nightly",
            order="-target, -made_at",
        )


def test_the_scores_of_a_stock_are_each_below_their_heading(site):
    with reading(site.engine) as conn:
        stored = read(conn, "symbol_score", market=MARKET, symbol="S01", order="kind")
    assert (stored["acc"] != stored["up_acc"]).any()
    columns = ("kind:text", "n", "first", "last", "acc", "up_acc", "mcc")
    body = site.get(f"/market/{MARKET}/stock/S01").body
    shown = region(body, "Scores over all sessions")[1:]
    assert shown == Table(records(stored), dict(zip(columns, columns, strict=True))).cells


def test_a_table_is_cut_and_says_so_while_the_rows_behind_it_are_whole(site, monkeypatch):
    monkeypatch.setattr("flows.dashboard.stock.SHOWN", 7)
    page = Page(site.get(f"/market/{MARKET}/stock/S01?from={DAYS[0].date()}").body)
    assert f"newest 7 of {NIGHTS}" in page.seen
    file = next(each for each in page.links if each.startswith("/sql/rows.csv"))
    rows = pd.read_csv(io.StringIO(site.get(file).body))
    # They are those of the span and the kind asked for, at the level of the table.
    whole = directions_of(site, "S01")
    assert rows["target"].tolist() == whole["target"].dt.strftime("%Y-%m-%d").tolist()
    assert rows["decision"].tolist() == whole["decision"].tolist()
    if site.engine.dialect.name == "sqlite":
        statement = dict(parse_qsl(urlsplit(file).query))["q"]
        with site.engine.connect() as conn:
            plan = conn.exec_driver_sql(f"explain query plan {statement}").all()
        # it reads no predictions of other stocks
        assert not [step for step in plan if str(step[-1]).startswith("SCAN")]


def test_a_stock_with_prices_alone_has_a_page(site):
    page = Page(site.get(f"/market/{MARKET}/stock/INDEX").body)
    assert "No nightly model predicted" in page.seen
    assert "Prices, directions and probabilities" in page.seen


def test_attention_is_the_mean_over_nights_either_way_round(site):
    with reading(site.engine) as conn:
        kept = attention.attended(conn, MARKET, 3)
        every = read(conn, "attention", market=MARKET)
        for mine, other in (("symbol", "source"), ("source", "symbol")):
            found = attention.mean_weights(
                conn, MARKET, "S01", kept, looks_at_others=mine == "symbol", row_limit=100
            )
            rows = every[(every[mine] == "S01") & (every[other] != "S01")]
            rows = rows[rows["target"].dt.date.isin([target for _, target in kept])]
            expected = rows.groupby(other)["weight"].sum() / 3
            weights = found.set_index("symbol")["weight"]
            assert weights.is_monotonic_decreasing
            assert weights.to_dict() == in_float64(expected.to_dict())
