"""The figures on the dashboard's pages are those of the rows that they are made of."""

import io
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, matthews_corrcoef
from sqlalchemy import Engine, text

from db.engine import reading
from db.read import read
from db.rows import attention
from dtml.baselines.naive_rules import NAIVE_RULES
from flows.dashboard.app import dashboard
from flows.dashboard.stock import span_scores, stock_chart, stock_page
from flows.nightly.context import MarketContext
from tests.support.bounds import assert_arrays_close_in_float64, in_float64
from tests.support.browser import Page, Site, served
from tests.support.dashboard_store import (
    DAYS,
    MARKET,
    NIGHTS,
    served_site,  # noqa: F401 - the fixture `site`
)
from tests.support.nights import AS_OF, after_nights

pytestmark = pytest.mark.slow


def asked(site: Site, sql: str) -> pd.DataFrame:
    with site.engine.connect() as conn:
        result = conn.execute(text(sql))
        return pd.DataFrame(result.all(), columns=list(result.keys()))


def directions_of(site: Site, symbol: str) -> pd.DataFrame:
    with reading(site.engine) as conn:
        return read(
            conn,
            "prediction_history",
            market=MARKET,
            symbol=symbol,
            kind="nightly",
            order="-target, -made_at",
        )


def test_a_stock_is_scored_beside_the_rules_on_the_same_sessions(site: Site) -> None:
    directions = directions_of(site, "S01")
    used = directions.dropna(subset=["realised_return", *NAIVE_RULES])
    assert 5 < len(used) < len(directions.dropna(subset=["realised_return"]))
    rose = used["realised_return"] > 0
    rows = pd.DataFrame(span_scores(directions)).set_index("predictor")
    assert list(rows.index) == ["dtml", *NAIVE_RULES]
    for predictor, direction in (
        ("dtml", used["direction"]),
        *((rule, used[rule]) for rule in NAIVE_RULES),
    ):
        assert rows.loc[predictor, "n"] == len(used)
        assert rows.loc[predictor, "acc"] == accuracy_score(rose, direction == "rise")
        assert rows.loc[predictor, "mcc"] == in_float64(
            matthews_corrcoef(rose, direction == "rise")
        )
    assert span_scores(directions.iloc[:1]) == [], "the newest prediction has no outcome"
    (alone,) = span_scores(directions.assign(**dict.fromkeys(NAIVE_RULES)))
    assert alone["n"] == directions["realised_return"].notna().sum()


def test_every_direction_with_an_outcome_is_marked_at_its_session(site: Site) -> None:
    directions = directions_of(site, "S01")
    with reading(site.engine) as conn:
        bars = read(conn, "price_latest", market=MARKET, symbol="S01", order="-session")
        counts = stock_page(conn, MARKET, "S01", "nightly", None, None)["marks"]
    chart = stock_chart("S01", directions, bars)
    assert chart
    marked = chart.data["panel1"].set_index("t")
    ids = {key.name: key.id for key in chart.keys}
    for way, number in counts.items():
        direction, correct = way.split(", ")
        of = (directions["decision"] == direction) & (
            directions["decision_correct"] == (correct == "correct")
        )
        days = sorted(f"{each:%Y-%m-%d}" for each in directions.loc[of, "target"])
        assert number == len(days) == len(set(days))
        assert (marked[ids[way]].dropna().index.tolist() if days else []) == days
    assert sum(counts.values()) == directions["decision_correct"].notna().sum()


def test_a_table_is_cut_and_says_so_while_the_rows_behind_it_are_whole(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.dashboard.stock.SHOWN", 7)
    page = Page(site.get(f"/market/{MARKET}/stock/S01?from={DAYS[0].date()}").body)
    assert f"newest 7 of {NIGHTS}" in page.seen
    file = next(each for each in page.links if each.startswith("/sql/rows.csv"))
    rows = pd.read_csv(io.StringIO(site.get(file).body))
    assert len(rows) == NIGHTS
    # They are those of the span and the kind asked for, at the level of the table.
    assert rows["target"].min() >= str(DAYS[0].date())
    with reading(site.engine) as conn:
        banded = read(
            conn,
            "band_direction",
            columns="run_id, target, direction",
            symbol="S01",
            market=MARKET,
            kind="nightly",
            is_default=1,
        )
    at_level = banded.assign(target=banded["target"].dt.strftime("%Y-%m-%d"))
    both = rows.merge(at_level, on=["run_id", "target"])
    assert len(both) > 0
    assert both["decision"].tolist() == both["direction"].tolist()
    decided = rows[rows["decision"].isin(["rise", "fall"]) & rows["realised_return"].notna()]
    came = (decided["decision"] == "rise") == (decided["realised_return"] > 0)
    assert len(decided) > 0
    assert decided["decision_correct"].astype(bool).tolist() == came.tolist()
    assert rows.drop(decided.index)["decision_correct"].isna().all()
    months = [each for each in page.links if "to=" in each and "stock/S01" in each]
    assert len(months) == rows["target"].head(7).str[:7].nunique()
    if site.engine.dialect.name == "sqlite":
        statement = dict(parse_qsl(urlsplit(file).query))["q"]
        plan = asked(site, f"explain query plan {statement}")["detail"]
        assert len(plan) > 0
        assert not plan.str.startswith("SCAN").any()  # it reads no predictions of other stocks


def test_attention_is_the_mean_over_nights_either_way_round(site: Site) -> None:
    with reading(site.engine) as conn:
        kept = attention.attended(conn, MARKET, 3)
        looks, looked = (
            attention.mean_weights(conn, MARKET, "S01", kept, looks_at_others=way, row_limit=100)
            for way in (True, False)
        )
    every = asked(site, f"select * from attention where market = '{MARKET}'")
    every = every[every["target"].astype(str).isin([str(target) for _, target in kept])]
    assert len(kept) == 3
    for found, mine, other in ((looks, "symbol", "source"), (looked, "source", "symbol")):
        rows = every[(every[mine] == "S01") & (every[other] != "S01")]
        expected = (rows.groupby(other)["weight"].sum() / 3).sort_values(ascending=False)
        assert found["symbol"].tolist() == expected.index.tolist()
        assert_arrays_close_in_float64(found["weight"], expected)


@pytest.mark.soak
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_market_s_first_night_has_directions_and_no_scores(
    context: MarketContext, reader: Engine
) -> None:
    after_nights(context, AS_OF)
    with served(dashboard(reader), reader) as site:
        page = Page(site.get(f"/market/{context.name}").body)
        assert site.get("/").status == site.get(f"/market/{context.name}/stock/L01").status == 200
    options = {attrs["value"] for tag, attrs in page.tags if tag == "option"}
    assert options == set(context.market.symbols)
    assert "There is no ranking yet" in page.seen


def test_a_stock_with_prices_alone_has_a_page(site: Site) -> None:
    page = Page(site.get(f"/market/{MARKET}/stock/INDEX").body)
    assert "No nightly model predicted" in page.seen
    assert "Prices, directions and probabilities" in page.seen
