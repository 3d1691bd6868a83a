"""The first page is a morning briefing, and a market's page begins with tomorrow's ranking: what
they say is what the store holds.
"""

import gzip
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import Engine, select, text

from db import tables
from db.connection.frames import frame
from db.engine import open_engine, reading, transaction, upgrade
from db.read import query
from db.rows import nights
from db.save import save
from dtml.pages.charts import TEMPLATES as PAGE_TEMPLATES
from dtml.pages.charts import sparkline
from dtml.prices.sessions import next_session
from flows.dashboard.app import TEMPLATES, dashboard, link
from flows.dashboard.market import market_page, night_of
from flows.dashboard.running import State, state_of_night, summary_of_states
from flows.dashboard.terms import TERMS
from flows.morning import END_STOCKS, caveats, orders_of_night
from flows.nightly.context import MarketContext
from flows.service.timeliness import Timeliness
from tests.support.browser import Page, Site, served
from tests.support.dashboard_store import (
    BARE,
    DAYS,
    MARKET,
    NIGHTS,
    RANKER,
    STOCKS,
    served_site,  # noqa: F401 - the fixture `site`
)
from tests.support.nights import AS_OF, after_nights

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


def asked(engine: Engine, sql: str) -> pd.DataFrame:
    with engine.connect() as conn:
        result = conn.execute(text(sql))
        return pd.DataFrame(result.all(), columns=list(result.keys()))


def section_of(body: str, market: str) -> str:
    """Return the part of the first page that is about a market."""
    parts = re.findall(r"<article.*?</article>", body, re.DOTALL)
    (own,) = [part for part in parts if f">{market}</a></h2>" in part]
    return own


def table_rows(body: str, label: str) -> list[list[str]]:
    """Return the cells of the table in the region whose label begins so, as words."""
    region = body.split(f'aria-label="{label}', maxsplit=1)[1].split("</table>", maxsplit=1)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", region.split("<tbody>")[1], re.DOTALL)
    return [
        [Page(cell).seen for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)]
        for row in rows
    ]


@pytest.mark.soak
def test_the_first_page_names_the_best_and_the_worst_stocks_of_tomorrow(site: Site) -> None:
    newest = asked(
        site.engine,
        f"select place, symbol from latest_ranking where market = '{MARKET}' order by place",
    )
    symbols = newest["symbol"].tolist()
    number = min(END_STOCKS, len(symbols) // 2)
    own = section_of(site.get("/").body, MARKET)
    lists = re.findall(r"<ol.*?</ol>", own, re.DOTALL)
    named = [re.findall(r">(S\d\d)</a>", each) for each in lists]
    assert named == [symbols[:number], symbols[::-1][:number]]
    assert f"by {RANKER}" in Page(own).seen


def test_the_first_page_says_why_a_night_was_refused_and_what_is_missing(site: Site) -> None:
    body = site.get("/").body
    assert "refused : too many bars refused: <b>9</b> of 10" in Page(section_of(body, MARKET)).seen
    bare = Page(section_of(body, BARE)).seen
    assert "No night yet." in bare
    assert re.search(rf"ranking .*dtml nightly {BARE} \.", bare)


@pytest.mark.on_postgresql
def test_the_ranking_of_a_market_tells_how_each_place_changed(site: Site) -> None:
    places = asked(
        site.engine,
        f"select symbol, target, place from ranking_history where market = '{MARKET}'",
    )
    places["target"] = places["target"].astype(str)
    by_target = places.pivot(index="symbol", columns="target", values="place")
    last, before = (str(DAYS[number].date()) for number in (NIGHTS, NIGHTS - 1))
    gained = (by_target[before] - by_target[last]).to_dict()
    body = site.get(PAGES["market"]).body
    rows = table_rows(body, "The ranking of the")
    assert [row[1] for row in rows] == by_target[last].sort_values().index.tolist()
    for place, (number, symbol, moved, *_) in enumerate(rows, start=1):
        assert number == str(place)
        change = gained[symbol]
        arrow = "=" if change == 0 else f"{'▲' if change > 0 else '▼'} {abs(change)}"
        assert moved == arrow


def test_the_directions_of_a_market_are_those_that_count(site: Site) -> None:
    last = DAYS[NIGHTS].date()
    stored = asked(
        site.engine,
        "select symbol, target, decision from prediction_history "
        f"where market = '{MARKET}' and kind = 'nightly'",
    )
    counted = stored[stored["target"].astype(str) == str(last)].set_index("symbol")["decision"]
    words = {"rise": "▲ rise", "fall": "▼ fall", "none": "no direction"}
    body = site.get(PAGES["market"]).body
    rows = table_rows(body, "The ranking of the")
    assert len(counted) == len(rows)
    assert all(words[counted[row[1]]] in row for row in rows)
    numbers = counted.value_counts().reindex(["rise", "fall", "none"]).fillna(0).astype(int)
    risen = f"▲ {numbers['rise']} ▼ {numbers['fall']}"
    assert risen in Page(body.split('id="directions"')[1]).seen


def test_a_night_without_a_ranking_shows_that_of_the_last_complete_one(site: Site) -> None:
    body = site.get(PAGES["newest"]).body
    rows = table_rows(body, "The ranking of the")
    assert rows == table_rows(site.get(PAGES["market"]).body, "The ranking of the")
    assert f"night of {NIGHT_OF_RANKING} , the last complete" in Page(body).seen


def test_a_market_s_page_begins_with_its_ranking_then_orders_then_directions(site: Site) -> None:
    body = site.get(PAGES["market"]).body
    marks = ['id="ranking"', 'id="orders"', 'id="account"', 'id="directions"', 'id="sure"']
    places = [body.index(mark) for mark in marks]
    assert places == sorted(places)
    assert Page(body).source.split("<h1>")[1].startswith(f"{MARKET}: ranking for ")


def test_orders_are_what_the_account_holds_less_what_it_held(site: Site) -> None:
    with reading(site.engine) as conn:
        night = night_of(conn, MARKET, NIGHT_OF_RANKING)
        assert night
        orders = orders_of_night(night, night.ranking).set_index("symbol")
        night.__dict__["before"] = None
        first_orders = orders_of_night(night, night.ranking)
    assert orders["action"].to_dict() == {STOCKS[0]: "sell", STOCKS[1]: "keep", STOCKS[2]: "buy"}
    assert orders["weight"].to_dict() == {STOCKS[0]: 0.0, STOCKS[1]: 0.5, STOCKS[2]: 0.5}
    assert set(first_orders["action"]) == {"buy"}
    seen = Page(site.get(PAGES["market"]).body).seen
    assert re.search(r"trades 2 .*keeps 1\.", seen)
    trades = f"Sell {STOCKS[0]} Keep {STOCKS[1]}"
    for address, words in (
        (PAGES["market"], f"Buy {STOCKS[2]} {trades} 50.0 % of its equity in each"),
        (PAGES["first"], f"Buy {STOCKS[2]} {trades} 50.0 % of its equity in each"),
    ):
        seen = Page(site.get(address).body).seen
        assert words.replace(" ", "") in re.sub(r"\s", "", seen)


def test_the_page_says_which_model_counts_where_two_disagree(site: Site) -> None:
    body = site.get(PAGES["market"]).body
    rows = table_rows(body, "The ranking of the")
    half = (len(rows) + 1) / 2
    opposite = [
        row[1]
        for place, row in enumerate(rows, start=1)
        if ("▼ fall" if place <= half else "▲ rise") in row
    ]
    assert opposite
    seen = Page(body).seen
    said = seen.split("ranking is the answer:")[1].split(".")[0]
    assert re.findall(r"S\d\d", said) == opposite


def test_a_stock_s_page_gives_each_session_one_direction_the_one_that_counts(site: Site) -> None:
    banded = asked(
        site.engine,
        "select target, direction from band_direction where symbol = 'S01' and is_default = 1 "
        f"and kind = 'nightly' and market = '{MARKET}'",
    )
    counts = dict(zip(banded["target"].astype(str), banded["direction"], strict=True))
    words = {"rise": "▲ rise", "fall": "▼ fall", "none": "no direction"}
    rows = table_rows(site.get(PAGES["stock"]).body, "Predicted directions")
    assert len(rows) > 20
    for session, place, direction, *_ in rows:
        assert direction == words[counts[session]]
        assert 1 <= int(place) <= len(STOCKS)
    assert len({row[0] for row in rows}) == len(rows)


def test_a_stock_s_page_says_whether_the_paper_account_trades_it(site: Site) -> None:
    wanted = asked(
        site.engine,
        f"select symbol, weight from paper_order where market = '{MARKET}' and target = "
        f"(select max(target) from latest_prediction where market = '{MARKET}')",
    ).set_index("symbol")["weight"]
    assert 0 < wanted.gt(0).sum() < len(STOCKS)
    actions = {STOCKS[0]: "sells", STOCKS[1]: "holds", STOCKS[2]: "buys"}
    for symbol in STOCKS:
        seen = Page(site.get(link(["market", MARKET, "stock", symbol])).body).seen
        said = "does not hold it." if symbol not in actions else f"{actions[symbol]} it"
        assert f"The paper account {said}" in seen
        if wanted.get(symbol):
            assert f" it, for {100 * wanted[symbol]:.1f} % of" in seen


def test_a_stock_s_chart_begins_where_its_predictions_do(site: Site) -> None:
    first = asked(
        site.engine,
        "select min(as_of) as day from prediction_history where symbol = 'S01' "
        f"and kind = 'nightly' and market = '{MARKET}'",
    )["day"].iloc[0]
    seen = Page(site.get(PAGES["stock"]).body).seen
    assert f"{first} to " in seen
    whole = Page(site.get(f"{PAGES['stock']}?from=2024-01-01").body).seen
    assert f"{first} to " in whole  # the prices of this store begin with its nights


@pytest.mark.parametrize("name", PAGES)
def test_every_question_mark_leads_to_a_term_and_the_page_is_light(site: Site, name: str) -> None:
    answer = site.get(PAGES[name])
    assert answer.status == 200
    assert len(gzip.compress(answer.body.encode())) < HEAVIEST
    terms = Page(site.get("/terms").body)
    anchors = {attrs["id"] for tag, attrs in terms.tags if tag == "dt"}
    assert anchors == set(TERMS)
    tags = Page(answer.body).tags
    marks = [attrs for tag, attrs in tags if tag == "a" and attrs.get("class") == "what"]
    assert marks or name in ("bare", "running", "terms")
    for attrs in marks:
        term = str(attrs["href"]).removeprefix("/terms#")
        assert attrs["title"] == TERMS[term].meaning
        assert TERMS[term].word in str(attrs["aria-label"])


def test_each_term_has_a_question_mark_on_some_page() -> None:
    pages = [*PAGE_TEMPLATES.glob("*.html"), *TEMPLATES.glob("*.html")]
    asked = re.findall(r'what\("([\w-]+)"\)', "".join(map(Path.read_text, pages)))
    assert set(asked) == set(TERMS)


def test_the_definitions_are_on_the_page_of_terms_alone(site: Site) -> None:
    words = Page(site.get("/").body).seen
    terms = unescape(Page(site.get("/terms").body).seen)
    for term in TERMS.values():
        assert " ".join(term.meaning.split()) in terms
        assert term.meaning not in words


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_market_s_first_nights_say_what_will_be_here(
    context: MarketContext, reader: Engine
) -> None:
    after_nights(context, AS_OF)
    with served(dashboard(reader), reader) as site:
        first = Page(site.get("/").body).seen
        page = Page(site.get(f"/market/{context.name}").body)
    assert re.search("ranking .*can train", first)
    assert re.search("paper account.*two more", first)
    assert re.search(f"ranking .*dtml nightly {context.name} ,", page.seen)
    assert re.search("chart .*account.*two more", page.seen)
    assert re.search(f"Backtests .*dtml backtest {context.name}", page.seen)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_an_older_night_is_not_told_of_the_alerts_of_a_later_one(
    context: MarketContext, reader: Engine
) -> None:
    following = next_session("XNYS", AS_OF)
    after_nights(context, AS_OF, following)
    with transaction(context.engine) as conn:
        save(
            conn,
            "alert",
            {
                "market": context.name,
                "as_of": following,
                "kind": "below_rule",
                "message": "a rule",
                "raised_at": datetime.now(UTC),
            },
        )
    with reading(reader) as conn:
        newest, older = (
            market_page(
                conn,
                context.name,
                as_of,
                0,
                datetime.now(UTC),
                {},
            )
            for as_of in (None, AS_OF)
        )
    assert "below rule: a rule" in newest["morning"].changes
    assert "below rule: a rule" not in older["morning"].changes


def test_a_small_line_is_broken_where_a_value_is_missing() -> None:
    values = {"blend": [0.0, 1.0, np.nan, 1.0, 2.0], "none": np.full(5, np.nan)}
    chart = sparkline("rank IC", pd.DataFrame(values), base=0.0)
    (path,) = re.findall(r' d="(M[^"]*M[^"]*)"', chart.svg)
    assert path.count("M") == path.count("L") == 2


def test_nights_that_were_run_after_their_session_are_counted(site: Site) -> None:
    with reading(site.engine) as conn:
        complete, late = query(conn, "hindsight", market=MARKET, last=date.max).iloc[0]
        words = caveats(conn, MARKET)
        stored = frame(conn, select(tables.night).where(tables.night.c.market == MARKET))
    done = stored[stored["status"].isin(nights.COMPLETE)]
    ended = pd.to_datetime(done["finished_at"], utc=True).dt.strftime("%Y-%m-%d")
    assert complete == len(done) > 0
    assert late == (ended > done["target"].astype(str).str[:10]).sum()
    assert words.startswith(f"{late} of {complete} nights" if late else "")


def ended(status: str, after: timedelta) -> State:
    """Return the state of a night that ended so long after it was due."""
    due, times = scheduled()
    row = {"status": status, "target": None}
    return State(row, None, replace(times, finished_at=due + after), due)


def test_the_first_heading_says_which_markets_are_not_well() -> None:
    well = ended("complete", timedelta(minutes=9))
    in_time = ended("complete", timedelta(hours=3))
    late = ended("complete", timedelta(hours=16))
    refused = ended("refused", timedelta(minutes=9))
    none = replace(well, night=None)
    say = summary_of_states
    assert say({}) == say({"a": none}) == ""
    assert say({"a": well, "b": in_time, "c": none}) == "all well"
    assert say({"a": late}) == ""
    assert re.fullmatch("b late, c refused.*well", say({"a": well, "b": late, "c": refused}))
    assert say({**dict.fromkeys("abcd", late), "e": well}).startswith("4 of 5 not")


def scheduled() -> tuple[datetime, Timeliness]:
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


@pytest.mark.parametrize(
    ("after", "delay", "side"),
    [
        (timedelta(minutes=-5), "before it was due", ""),
        (timedelta(minutes=11, seconds=4), "on time, 11 min", ""),
        (timedelta(hours=3), "3 h 00 ", "before the open"),
        (timedelta(hours=15), "15 h 00 ", "after the open"),
        (timedelta(days=41, hours=2), "41 days late", "after the open"),
    ],
)
def test_a_night_says_how_long_after_its_scheduled_moment_it_ended(
    after: timedelta, delay: str, side: str
) -> None:
    due, times = scheduled()
    times = replace(times, finished_at=due + after)
    without_open = replace(times, opens_at=None).ended
    assert times.ended.startswith(delay)
    assert times.ended.endswith(side)
    assert ("the open" in times.ended) is bool(side)
    assert without_open.startswith(delay)
    assert "the open" not in without_open
    assert replace(times, finished_at=None).ended == ""


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_night_whose_session_has_opened_says_so(store_url: str) -> None:
    due, times = scheduled()
    opens_at = due + timedelta(hours=15)
    night = {
        "market": MARKET,
        "as_of": due.date(),
        "target": opens_at.date(),
        "status": "complete",
        "finished_at": due,
    }
    engine = open_engine(store_url)
    upgrade(engine)
    with reading(engine) as conn:
        before = state_of_night(conn, MARKET, night, opens_at - timedelta(seconds=1), times)
        after = state_of_night(conn, MARKET, night, opens_at, times)
        unknown = state_of_night(conn, MARKET, night, opens_at, None)
    assert (before.has_opened, after.has_opened, unknown.has_opened) == (False, True, False)
    engine.dispose()
