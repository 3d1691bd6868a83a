"""The tear sheet of a ranking on its pages: what it says, draws and hands out, and how much it
weighs.
"""

import gzip
import re
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from db.engine import open_engine, reading, transaction, upgrade
from db.read import read
from db.rows.rankings import last_rank_scores
from db.save import save
from dtml.pages.figures import LEG_WORDS
from dtml.pages.ranking import Ranking, ranking_page
from flows.dashboard.app import dashboard, link
from flows.dashboard.ranking import market_ranking_page
from tests.support.benchmark_rows import (
    ranking,
    ranking_differences,
    ranking_portfolios,
    ranking_scores,
)
from tests.support.browser import Page, Site, served
from tests.support.dashboard_store import moment, served_to_a_reader
from tests.support.ranked_nights import LEG, MARKET, RULE, SECTORS, TRADED, fill_ranked_nights
from tests.support.tear_sheets import FOUR_YEARS, sheet

pytestmark = pytest.mark.slow

LARGEST = 400_000  # bytes of a page, packed
YOUNG, NEW = "young", "new"
CHARTS = (
    "Cumulative rank IC",
    "Rank IC by month",
    "Mean return of ten score groups",
    "Best less worst tenth, after costs",
    "Distribution of the daily rank IC",
    "Rank autocorrelation",
    "Turnover of the best tenth",
    "Rank IC by holding period",
    "Rank IC by sector",
    "Coverage of constituents",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('sheet') / 'store.sqlite'}"
    owner = open_engine(url)
    upgrade(owner)
    fill_ranked_nights(owner)
    fill_ranked_nights(owner, 7, YOUNG)
    fill_ranked_nights(owner, 1, NEW)
    owner.dispose()
    reader = open_engine(url, read_only=True)
    with served(dashboard(reader), reader) as found:
        yield found


@pytest.fixture(scope="module")
def text(site: Site) -> str:
    answer = site.get(link(["market", MARKET, "ranking"]))
    assert answer.status == 200
    return answer.body


def csv_of(text: str, name: str) -> pd.DataFrame:
    """The table that a page hands out under a name."""
    found = re.search(rf'href="data:text/csv;charset=utf-8,([^"]*)" download="{name}.csv"', text)
    assert found is not None
    return pd.read_csv(StringIO(unquote(found[1])))


def test_the_page_of_nights_has_each_chart_with_its_csv_and_its_sql(text: str) -> None:
    page = Page(text)
    for heading in CHARTS:
        assert f"<h2>{heading}</h2>" in text
        assert f'aria-label="CSV: {heading}"' in text
        assert f'aria-label="SQL: {heading}"' in text
    drawn = [attrs for tag, attrs in page.tags if attrs.get("role") == "img"]
    assert len(drawn) == len(CHARTS)
    assert all(attrs["aria-label"] for attrs in drawn)
    assert SECTORS[1] in page.seen


def test_the_page_begins_with_four_answers_and_a_chart_and_ends_with_tables(text: str) -> None:
    main = text[text.index("<main") :]
    answers = [main.index(f"<dt>{question}") for question in QUESTIONS]
    assert answers == sorted(answers)
    assert answers[-1] < main.index('role="img"') < main.index("<table")
    assert main.rindex('role="img"') < main.index("<table")
    assert "Skill Proven , " in Page(text).seen


DIGITS = 5e-5  # of a figure, relative: the CSV of a page has five digits
QUESTIONS = (
    "Skill",
    "Steady",
    "Spread after costs",
    "Beats the rules",
)


def test_the_figures_of_the_page_are_those_that_nights_store(site: Site, text: str) -> None:
    cumulative = csv_of(text, "cumulative")
    with reading(site.engine) as conn:
        scores = last_rank_scores(conn, MARKET).set_index("predictor")
        nights = read(conn, "rank_score", market=MARKET, span="night", leg=TRADED)
    for name in ("blend", RULE):
        rows = cumulative[cumulative["predictor"] == name]
        last = rows.iloc[-1]
        assert len(rows) == scores.loc[name, "days"]
        assert rows["rank_ic"].mean() == pytest.approx(scores.loc[name, "rank_ic"], rel=DIGITS)
        assert last["low"] / len(rows) == pytest.approx(scores.loc[name, "rank_ic_low"], rel=DIGITS)
    legs = csv_of(text, "legs").set_index("leg")
    for figure in ("rank_ic", "rank_ic_low", "rank_ic_high", "t"):
        assert legs.loc[LEG, figure] == pytest.approx(scores.loc["blend", figure], rel=DIGITS)
    spread = csv_of(text, "spread")
    stored = nights[nights["predictor"] == "blend"]["decile_spread"]
    assert spread["gross"].to_list() == pytest.approx(stored.to_list(), rel=DIGITS)
    assert LEG_WORDS[LEG] in text.partition("<table")[0]  # nights score on other returns, too
    assert spread["net"].isna().all()  # the store has no file of this market, and so no costs
    assert "costs of the market" in Page(text).seen


def test_the_outer_groups_differ_by_the_spread_that_nights_store(site: Site, text: str) -> None:
    groups = csv_of(text, "groups").set_index("group")["mean_return"]
    with reading(site.engine) as conn:
        nights = read(conn, "rank_score", market=MARKET, span="night", leg=LEG)
    stored = nights[nights["predictor"] == "blend"]["decile_spread"].mean()
    assert groups[10] - groups[1] == pytest.approx(stored, rel=DIGITS)


def test_coverage_counts_the_stocks_that_a_night_left_out(text: str) -> None:
    found = csv_of(text, "coverage")
    assert list(found["constituents"].unique()) == [24]
    assert list(found["ranked"][:3]) == [24, 23, 24]
    assert found["scored_share"].isna().to_list() == [False] * (len(found) - 1) + [True]


def test_the_sql_behind_a_chart_runs_and_has_its_rows(site: Site, text: str) -> None:
    addresses = [each for each in Page(text).links if each.startswith("/sql?q=select")]
    addresses += [each for each in Page(text).links if each.startswith("/sql?q=SELECT")]
    assert len(addresses) == len(CHARTS)
    answer = site.get(addresses[0].replace("/sql?", "/sql/rows.csv?"))
    assert answer.status == 200
    rows = pd.read_csv(StringIO(answer.body))
    blend = rows[rows["predictor"] == "blend"]["rank_ic"]
    cumulative = csv_of(text, "cumulative")
    shown = cumulative[cumulative["predictor"] == "blend"]["rank_ic"]
    assert shown.to_list() == pytest.approx(blend.to_list(), rel=DIGITS)


@pytest.mark.soak
def test_a_page_that_was_kept_is_made_again_when_a_night_scores_rankings(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    owner = open_engine(url)
    upgrade(owner)
    fill_ranked_nights(owner, 30)
    with reading(owner) as conn:
        first = market_ranking_page(conn, MARKET)
        assert market_ranking_page(conn, MARKET)["answers"] is first["answers"]
        scores = read(conn, "rank_score", market=MARKET, span="running", leg=LEG)
    last = scores[scores["target"] == scores["target"].max()]
    later = moment(pd.Timestamp("2025-01-02"))
    changed = last.drop(columns=["market", "scored_at"]).assign(rank_ic=0.125)
    with transaction(owner) as conn:
        save(conn, "rank_score", changed, market=MARKET, scored_at=later)
    with reading(owner) as conn:
        assert market_ranking_page(conn, MARKET)["answers"] is not first["answers"]
    owner.dispose()


@pytest.mark.soak
def test_a_reader_of_postgresql_sees_the_same_figures(text: str, postgresql_server: str) -> None:
    with served_to_a_reader(postgresql_server, "sheets", fill_ranked_nights) as site:
        answer = site.get(link(["market", MARKET, "ranking"]))
        statements = [each for each in Page(answer.body).links if each.startswith("/sql?q=")]
        rows = [site.get(each.replace("/sql?", "/sql/rows.csv?")).status for each in statements]
    assert answer.status == 200
    assert rows == [200] * len(CHARTS)
    for name in ("cumulative", "groups", "horizons", "legs", "sectors", "coverage"):
        pd.testing.assert_frame_equal(csv_of(answer.body, name), csv_of(text, name), rtol=DIGITS)


def test_few_nights_have_figures_and_no_interval(site: Site) -> None:
    young = site.get(link(["market", YOUNG, "ranking"]))
    assert young.status == 200
    assert "20 nights; 6 so" in Page(young.body).seen
    assert csv_of(young.body, "groups")["excess_low"].isna().all()


def test_a_first_night_without_an_outcome_has_a_page_that_says_what_is_missing(site: Site) -> None:
    answer = site.get(link(["market", NEW, "ranking"]))
    assert answer.status == 200
    seen = Page(answer.body).seen
    assert "20 nights; 0 so" in seen
    assert "It needs two days" in seen


def test_the_page_of_an_unknown_market_is_not_there(site: Site) -> None:
    assert site.get(link(["market", "none", "ranking"])).status == 404


def test_a_page_weighs_less_than_400_kilobytes_packed(text: str) -> None:
    assert len(gzip.compress(text.encode())) < LARGEST


def made(*, with_sheet: bool = True) -> Ranking:
    return Ranking(
        ranking(),
        ranking_scores(),
        ranking_differences(),
        ranking_portfolios(),
        sheet(0.3) if with_sheet else None,
    )


@pytest.mark.soak
def test_the_page_of_a_walk_has_the_sheet_before_its_tables(tmp_path: Path) -> None:
    statements = {"legs": "select 1 from ranking_score", "sectors": "select 2 from ranking_score"}
    text = ranking_page(made(), served=True, sql=statements)
    main = text[text.index("<main") :]
    assert main.index("Skill") < main.index('role="img"') < main.index("<table")
    for heading in CHARTS:
        assert f"<h2>{heading}</h2>" in text
    # A walk stores scores by holding period and by sector, and no rows of single days.
    sql = [each for each in Page(text).links if each.startswith("/sql?")]
    assert len(sql) == 2
    assert all("ranking_score" in each for each in sql)
    assert len(gzip.compress(text.encode())) < LARGEST
    rows = csv_of(text, "groups")
    assert rows["excess"].to_list() == pytest.approx(
        sheet(0.3).groups["excess"].to_list(), rel=DIGITS
    )


@pytest.mark.soak
def test_the_page_of_a_walk_of_four_years_weighs_less_than_400_kilobytes_packed() -> None:
    """With the program of its charts, as it is kept in a file."""
    four_years = sheet(0.3, days=FOUR_YEARS)
    of_rule = sheet(-0.1, days=FOUR_YEARS).cumulative.assign(predictor=RULE)
    both = pd.concat([four_years.cumulative, of_rule], ignore_index=True)
    walk = replace(made(), sheet=replace(four_years, cumulative=both, rule=RULE))
    text = ranking_page(walk)
    assert "<script>" in text
    assert len(gzip.compress(text.encode())) < LARGEST


def test_the_page_of_a_walk_without_its_file_says_so() -> None:
    text = ranking_page(made(with_sheet=False))
    assert "missing here" in Page(text).seen
    assert "Skill" not in text


def test_the_best_predictor_of_a_walk_comes_first() -> None:
    scores = ranking_scores().assign(rank_ic=[0.01, 0.02, 0.03])
    text = ranking_page(Ranking(ranking(), scores, ranking_differences(), ranking_portfolios()))
    table = text[text.index("the best predictor first") :]
    places = [
        table.index(f'<th scope="row">{name}')
        for name in ("blend", "ridge", "the day&#39;s losers")
    ]
    assert places == sorted(places)
