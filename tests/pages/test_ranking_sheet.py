"""The tear sheet of a ranking on its pages: what it says, draws and hands out, and how much it
weighs.
"""

import re
from io import StringIO
from urllib.parse import unquote

import pandas as pd
import pytest

from db.engine import open_engine, reading, upgrade
from db.read import read
from db.rows.rankings import last_rank_scores
from flows.dashboard.app import dashboard, link
from tests.support.browser import Page, served
from tests.support.dashboard_store import served_to_a_reader
from tests.support.ranked_nights import LEG, MARKET, RULE, TRADED, fill_ranked_nights

pytestmark = pytest.mark.slow

YOUNG, NEW = "young", "new"
CHARTS = 10


@pytest.fixture(scope="module")
def site(tmp_path_factory):
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
def text(site):
    answer = site.get(link(["market", MARKET, "ranking"]))
    assert answer.status == 200
    return answer.body


def csv_of(text, name):
    """The table that a page hands out under a name."""
    found = re.search(rf'href="data:text/csv;charset=utf-8,([^"]*)" download="{name}.csv"', text)
    assert found is not None
    return pd.read_csv(StringIO(unquote(found[1])))


DIGITS = 5e-5  # of a figure, relative: the CSV of a page has five digits


def test_the_figures_of_the_page_are_those_that_nights_store(site, text):
    cumulative = csv_of(text, "cumulative")
    with reading(site.engine) as conn:
        scores = last_rank_scores(conn, MARKET).set_index("predictor")
        nights = read(conn, "rank_score", market=MARKET, span="night", predictor="blend")
    for name in ("blend", RULE):
        rows, stored = cumulative[cumulative["predictor"] == name], scores.loc[name]
        assert len(rows) == stored["days"]
        found = [rows["rank_ic"].mean(), rows["low"].iloc[-1] / len(rows)]
        assert found == pytest.approx(stored[["rank_ic", "rank_ic_low"]].tolist(), rel=DIGITS)
    columns = ["rank_ic", "t"]
    of_leg, of_blend = csv_of(text, "legs").set_index("leg").loc[LEG], scores.loc["blend"]
    assert of_leg[columns].tolist() == pytest.approx(of_blend[columns].tolist(), rel=DIGITS)
    spreads = nights.set_index("leg")["decile_spread"]
    spread = csv_of(text, "spread")
    assert spread["gross"].to_list() == pytest.approx(spreads[TRADED].to_list(), rel=DIGITS)
    assert spread["net"].isna().all()  # the store has no file of this market, and so no costs
    groups = csv_of(text, "groups").set_index("group")["mean_return"]
    assert groups[10] - groups[1] == pytest.approx(spreads[LEG].mean(), rel=DIGITS)
    counted = csv_of(text, "coverage")
    assert counted["constituents"].unique().tolist() == [24]
    assert list(counted["ranked"][:3]) == [24, 23, 24]  # a night left one out


def test_the_sql_behind_a_chart_runs_and_has_its_rows(site, text):
    addresses = [each for each in Page(text).links if each.lower().startswith("/sql?q=select")]
    assert len(addresses) == CHARTS
    answer = site.get(addresses[0].replace("/sql?", "/sql/rows.csv?"))
    rows, shown = pd.read_csv(StringIO(answer.body)), csv_of(text, "cumulative")
    found, expected = (each.loc[each["predictor"] == "blend", "rank_ic"] for each in (shown, rows))
    assert found.to_list() == pytest.approx(expected.to_list(), rel=DIGITS)


@pytest.mark.parametrize(("market", "known"), [(YOUNG, 6), (NEW, 0)])
def test_few_nights_have_a_page_without_an_interval(site, market, known):
    answer = site.get(link(["market", market, "ranking"]))
    assert answer.status == 200
    assert f"20 nights; {known} so" in Page(answer.body).seen
    assert known == 0 or csv_of(answer.body, "groups")["excess_low"].isna().all()


@pytest.mark.soak
def test_a_reader_of_postgresql_sees_the_same_figures(text, postgresql_server):
    with served_to_a_reader(postgresql_server, "sheets", fill_ranked_nights) as site:
        answer = site.get(link(["market", MARKET, "ranking"]))
        statements = [each for each in Page(answer.body).links if each.startswith("/sql?q=")]
        rows = [site.get(each.replace("/sql?", "/sql/rows.csv?")).status for each in statements]
    assert answer.status == 200
    assert rows == [200] * CHARTS
    for name in ("cumulative", "groups", "horizons", "legs", "sectors", "coverage"):
        pd.testing.assert_frame_equal(csv_of(answer.body, name), csv_of(text, name), rtol=DIGITS)
