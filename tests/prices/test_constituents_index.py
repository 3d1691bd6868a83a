"""An index that is the equal-weight mean of its constituents, for a market
whose own has no usable bars.
"""

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from db.engine import reading
from db.rows import prices
from dtml import Study
from dtml.errors import UsageError
from dtml.markets import load_market_file
from dtml.prices.bars import BAR_COLUMNS
from dtml.prices.returns import index_of_constituents
from dtml.sources import open_source
from flows.nightly import fetch
from flows.nightly.fetch import fetch_bars
from tests.support.bounds import in_float64
from tests.support.nights import AS_OF, BARS, FrameSource, small_market

INDEX = "SIMX"
STOCKS = BARS[(BARS["symbol"] != INDEX) & (BARS["session"] <= pd.Timestamp(AS_OF))].reset_index(
    drop=True
)


@pytest.fixture
def made(context):
    """The small market, its source without an index."""
    market = replace(context.market, index=replace(context.market.index, of_constituents=True))
    return replace(context, market=market, source=FrameSource(BARS[BARS["symbol"] != INDEX]))


def stored_index(context):
    with reading(context.engine) as conn:
        found = prices.prices(conn, context.name, date.min, date.max)
    return found[found["symbol"] == INDEX].sort_values("session").reset_index(drop=True)


def test_it_changes_by_the_mean_return_of_its_stocks(made):
    index = index_of_constituents(made.market, STOCKS)
    assert tuple(index.columns) == BAR_COLUMNS
    adjusted = STOCKS.pivot(index="session", columns="symbol", values="adj_close")
    expected = adjusted.pct_change(fill_method=None).mean(axis=1)
    assert index["close"].iloc[0] == in_float64(100)
    assert index["close"].pct_change().to_numpy()[1:] == in_float64(expected.to_numpy()[1:])
    assert (index["low"] <= index[["open", "close"]].min(axis=1) + 1e-9).all()
    assert (index["high"] >= index[["open", "close"]].max(axis=1) - 1e-9).all()
    # of the simulated market itself
    theirs = BARS[BARS["symbol"] == INDEX].set_index("session")["close"].pct_change()
    assert (
        np.corrcoef(theirs.reindex(index["session"])[1:], index["close"].pct_change()[1:])[0, 1]
        > 0.97
    )


def test_a_stock_counts_while_it_is_a_constituent(made):
    joined, left = date(2023, 3, 1), date(2023, 9, 1)
    stays = tuple(replace(each, since=joined, until=left) for each in made.market.constituents[:1])
    market = replace(made.market, constituents=(*stays, *made.market.constituents[1:3]))
    change = index_of_constituents(market, STOCKS).set_index("session")["close"].pct_change()
    returns = STOCKS.pivot(index="session", columns="symbol", values="adj_close").pct_change(
        fill_method=None
    )
    symbols = [each.symbol for each in market.constituents]
    for day, counted in (
        (date(2023, 2, 1), symbols[1:]),
        (date(2023, 6, 1), symbols),
        (date(2023, 9, 5), symbols[1:]),
    ):
        moment = pd.Timestamp(day)
        assert change[moment] == in_float64(returns.loc[moment, counted].mean())


def test_fetched_by_days_and_by_stocks_it_is_the_same_as_fetched_at_once(made, monkeypatch):
    monkeypatch.setattr(fetch, "SYMBOLS_AT_ONCE", 4)
    source = made.source
    assert isinstance(source, FrameSource)
    for bars in (source.bars, halted := STOCKS.copy()):
        bars.loc[bars["session"] == pd.Timestamp(2024, 5, 10), "volume"] = 0
    fetch_bars(made, date(2024, 5, 1))
    assert INDEX not in made.source.asked[0]
    first = stored_index(made)
    for day in (date(2024, 5, 2), date(2024, 5, 16), AS_OF):
        fetch_bars(made, day)
    found = stored_index(made)
    whole = index_of_constituents(
        made.market, halted[halted["session"] >= found["session"].iloc[0]]
    )
    assert found["close"].to_numpy() == in_float64(whole["close"].to_numpy())
    assert found["open"].to_numpy() == in_float64(whole["open"].to_numpy())
    assert found["known_at"].iloc[0] == first["known_at"].iloc[0]  # what was known stands
    assert fetch_bars(made, AS_OF).stored == 0


def test_the_file_of_a_market_says_so(tmp_path):
    file = tmp_path / "own.toml"
    text = small_market(source="files").replace(
        'name = "An index"', 'name = "Equal weights"\nof_constituents = true'
    )
    file.write_text(text)
    market = load_market_file(file)
    assert market.index.of_constituents
    STOCKS.rename(columns={"session": "date"}).to_csv(tmp_path / "prices.csv", index=False)
    with pytest.raises(UsageError, match=r"own .*constituents.*--index"):
        open_source("files", market, prices=tmp_path / "prices.csv", index=tmp_path / "prices.csv")
    study = Study(file, "2024-01-02", "2024-06-28", prices=tmp_path / "prices.csv")
    assert (study.bars["symbol"] == INDEX).sum() == study.bars["session"].nunique()
