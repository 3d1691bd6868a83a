"""The first page is a morning briefing, and a market's page begins with tomorrow's ranking: what
they say is what the store holds.
"""

import gzip
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import text

from db.engine import reading
from db.read import read
from dtml.pages.charts import TEMPLATES as PAGE_TEMPLATES
from flows.dashboard.app import TEMPLATES, link
from flows.dashboard.market import night_of
from flows.dashboard.running import State, summary_of_states
from flows.dashboard.terms import TERMS
from flows.morning import Morning, orders_of_night
from flows.service.timeliness import Timeliness
from tests.support.browser import Page
from tests.support.dashboard_store import (
    BARE,
    DAYS,
    MARKET,
    NIGHTS,
    STOCKS,
    served_site,  # noqa: F401 - the fixture `site`
)

pytestmark = pytest.mark.slow

HEAVIEST = 400_000  # bytes of a page, packed
NIGHT_OF_RANKING = DAYS[NIGHTS - 1].date()
PAGES = {
    "first": "/",
    "newest": link(["market", MARKET]),
    "market": link(["market", MARKET], {"as_of": NIGHT_OF_RANKING}),
    "bare": link(["market", BARE]),
    "stock": link(["market", MARKET, "stock", "S01"]),
    "running": "/running",
    "terms": "/terms",
}


def asked(engine, sql):
    with engine.connect() as conn:
        result = conn.execute(text(sql))
        return pd.DataFrame(result.all(), columns=list(result.keys()))


def table_rows(body, label):
    """Return the cells of the table in the region whose label begins so, as words."""
    region = body.split(f'aria-label="{label}', maxsplit=1)[1].split("</table>", maxsplit=1)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", region.split("<tbody>")[1], re.DOTALL)
    return [
        [Page(cell).seen for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)]
        for row in rows
    ]


@pytest.mark.on_postgresql
def test_the_ranking_of_a_market_tells_how_each_place_changed(site):
    places = asked(
        site.engine,
        f"select symbol, target, place from ranking_history where market = '{MARKET}'",
    )
    places["target"] = places["target"].astype(str)
    by_target = places.pivot(index="symbol", columns="target", values="place")
    before, last = (str(DAYS[number].date()) for number in (NIGHTS - 1, NIGHTS))
    gained = by_target[before] - by_target[last]
    arrows = gained.map(lambda by: "=" if by == 0 else f"{'▲' if by > 0 else '▼'} {abs(by)}")
    rows = table_rows(site.get(PAGES["market"]).body, "The ranking of the")
    assert [row[:3] for row in rows] == [
        [str(place), symbol, arrows[symbol]]
        for symbol, place in by_target[last].sort_values().items()
    ]


WORDS = {"rise": "▲ rise", "fall": "▼ fall", "none": "no direction"}


def test_a_night_without_a_ranking_shows_that_of_the_last_complete_one(site):
    body = site.get(PAGES["newest"]).body
    rows = table_rows(body, "The ranking of the")
    assert rows == table_rows(site.get(PAGES["market"]).body, "The ranking of the")
    assert f"night of {NIGHT_OF_RANKING} , the last complete" in Page(body).seen


def test_orders_are_what_the_account_holds_less_what_it_held(site):
    with reading(site.engine) as conn:
        night = night_of(conn, MARKET, NIGHT_OF_RANKING)
        assert night
        orders = orders_of_night(night, night.ranking).set_index("symbol")
        night.__dict__["before"] = None
        first_orders = orders_of_night(night, night.ranking)
    assert orders["action"].to_dict() == {STOCKS[0]: "sell", STOCKS[1]: "keep", STOCKS[2]: "buy"}
    assert orders["weight"].to_dict() == {STOCKS[0]: 0.0, STOCKS[1]: 0.5, STOCKS[2]: 0.5}
    assert set(first_orders["action"]) == {"buy"}
    trades = f"Buy {STOCKS[2]} Sell {STOCKS[0]} Keep {STOCKS[1]} 50.0 % of its equity in each"
    for name in ("market", "first"):
        seen = Page(site.get(PAGES[name]).body).seen
        assert trades.replace(" ", "") in seen.replace(" ", "")


def test_the_ends_of_a_ranking_begin_with_its_best_and_its_worst_stock():
    for stocks, best, worst in (
        (12, [1, 2, 3, 4, 5], [12, 11, 10, 9, 8]),
        (5, [1, 2], [5, 4]),
    ):
        ranking = pd.DataFrame({"place": range(1, stocks + 1)})
        found = Morning(ranking, [], None, None, [], ranking, None, 0, 0)
        assert [row["place"] for row in found.best] == best
        assert [row["place"] for row in found.worst] == worst


def test_a_stock_s_page_gives_each_session_one_direction_the_one_that_counts(site):
    asked_for = {"market": MARKET, "symbol": "S01", "is_default": 1, "kind": "nightly"}
    with reading(site.engine) as conn:
        banded = read(conn, "band_direction", order="-target", **asked_for)
    rows = table_rows(site.get(PAGES["stock"]).body, "Predicted directions")
    assert len(rows) > 20
    expected = [WORDS[each] for each in banded["direction"][: len(rows)]]
    assert [row[2] for row in rows] == expected
    assert all(1 <= int(row[1]) <= len(STOCKS) for row in rows)


@pytest.mark.parametrize("name", PAGES)
def test_every_question_mark_leads_to_a_term_and_the_page_is_light(site, name):
    answer = site.get(PAGES[name])
    assert answer.status == 200
    assert len(gzip.compress(answer.body.encode())) < HEAVIEST
    marks = [attrs for tag, attrs in Page(answer.body).tags if attrs.get("class") == "what"]
    assert marks or name in ("bare", "running", "terms")
    assert {str(attrs["href"]).removeprefix("/terms#") for attrs in marks} <= set(TERMS)
    terms = {attrs["id"] for tag, attrs in Page(site.get("/terms").body).tags if tag == "dt"}
    assert terms == set(TERMS)


def test_each_term_has_a_question_mark_on_some_page():
    pages = [*PAGE_TEMPLATES.glob("*.html"), *TEMPLATES.glob("*.html")]
    asked = re.findall(r'what\("([\w-]+)"\)', "".join(map(Path.read_text, pages)))
    assert set(asked) == set(TERMS)


def test_the_first_heading_says_which_markets_are_not_well():
    def ended(after, status="complete"):
        """The state of a night that ended so long after it was due."""
        due, times = scheduled()
        times = replace(times, finished_at=due + after)
        return State({"status": status, "target": None}, None, times, due)

    well, late = ended(timedelta(minutes=9)), ended(timedelta(hours=16))
    refused = ended(timedelta(minutes=9), "refused")
    say = summary_of_states
    assert say({}) == say({"a": replace(well, night=None)}) == ""
    assert say({"a": well, "b": ended(timedelta(hours=3))}) == "all well"
    assert re.fullmatch("b late, c refused.*well", say({"a": well, "b": late, "c": refused}))
    assert say({**dict.fromkeys("abcd", late), "e": well}).startswith("4 of 5 not")


def scheduled():
    """Return when a night was due, and its times: its session opens 15 hours later."""
    due = datetime(2024, 7, 1, 22, 30, tzinfo=UTC)
    times = Timeliness(
        market=MARKET,
        as_of=due.date(),
        outcome="complete",
        is_nightly=True,
        late_seconds=0.0,
        scheduled_at=due,
        opens_at=due + timedelta(hours=15),
        next_run=due + timedelta(days=1),
    )
    return due, times
