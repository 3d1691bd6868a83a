"""The figures on the dashboard's pages are those of the rows that they are made of."""

import io
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, matthews_corrcoef

from db.engine import reading
from db.read import read
from db.rows import attention
from dtml.baselines.naive_rules import NAIVE_RULES
from flows.dashboard.stock import span_scores
from tests.support.bounds import in_float64
from tests.support.browser import Page, Site
from tests.support.dashboard_store import (
    DAYS,
    MARKET,
    NIGHTS,
    served_site,  # noqa: F401 - the fixture `site`
)

pytestmark = pytest.mark.slow


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
    known = directions.dropna(subset=["realised_return"])
    used = known.dropna(subset=[*NAIVE_RULES])
    assert 5 < len(used) < len(known)
    rose = used["realised_return"] > 0
    rows = pd.DataFrame(span_scores(directions)).set_index("predictor")
    assert list(rows.index) == ["dtml", *NAIVE_RULES]
    for predictor in rows.index:
        said = used["direction" if predictor == "dtml" else predictor] == "rise"
        expected = [len(used), accuracy_score(rose, said), matthews_corrcoef(rose, said)]
        assert rows.loc[predictor, ["n", "acc", "mcc"]].tolist() == in_float64(expected)
    assert span_scores(directions.iloc[:1]) == [], "the newest prediction has no outcome"
    (alone,) = span_scores(directions.assign(**dict.fromkeys(NAIVE_RULES)))
    assert alone["n"] == len(known)


def test_a_table_is_cut_and_says_so_while_the_rows_behind_it_are_whole(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_attention_is_the_mean_over_nights_either_way_round(site: Site) -> None:
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


def test_a_stock_with_prices_alone_has_a_page(site: Site) -> None:
    page = Page(site.get(f"/market/{MARKET}/stock/INDEX").body)
    assert "No nightly model predicted" in page.seen
    assert "Prices, directions and probabilities" in page.seen
