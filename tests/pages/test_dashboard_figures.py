"""The figures on the dashboard's pages are those of the rows that they are made of."""

import io
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest

from db.engine import reading
from db.read import read
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


def test_a_stock_with_prices_alone_has_a_page(site: Site) -> None:
    page = Page(site.get(f"/market/{MARKET}/stock/INDEX").body)
    assert "No nightly model predicted" in page.seen
    assert "Prices, directions and probabilities" in page.seen
