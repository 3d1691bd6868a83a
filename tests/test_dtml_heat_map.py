"""Laws of the maps of who looks at whom: rows look, columns are looked at."""

import re

import numpy as np
from test_dtml_benchmark_report import Reader
from test_dtml_report import looks, page, region, stocks

from dtml.pages.attention_map import KEPT, SHADES, Attention, heat_map, sector_map
from dtml.pages.figures import figure


def test_a_cell_of_the_map_is_how_much_its_row_looks_at_its_column() -> None:
    names = ["A", "B", "C", "D"]
    weights = np.full((4, 4), 0.2)
    weights[1, 3], weights[2, 0] = 0.9, 0.7  # B looks at D, C at A, and neither back
    weights[3, 1], weights[0, 2] = 0.01, 0.02
    frame = looks(names).assign(weight=weights.ravel()).sample(frac=1, random_state=7)
    drawn = heat_map(Attention.of(frame), {})
    assert drawn
    assert drawn.strongest[:2] == (("B", "D", 0.9), ("C", "A", 0.7))
    assert np.argwhere(drawn.shade == SHADES - 1).tolist() == [[1, 3]]
    assert drawn.paths[-1] == "M3 1h1v1H3z"  # across 3: column D; down 1: row B
    cells = np.zeros((4, 4), dtype=int)
    for path in drawn.paths:
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1H\d+z", path):
            cells[int(y), int(x) : int(x) + int(width)] += 1
    assert (cells == 1).all()
    text = page(stocks(4, sectors=1).assign(symbol=names), attention=frame)
    assert f'<path class="q{SHADES - 1}" d="M3 1h1v1H3z"/>' in text
    assert "a row looks, a column is looked at. The strongest: B at D .9000; C at A .7000" in Reader(text).seen


def test_the_map_holds_the_stocks_looked_at_most_by_sector_and_blanks_what_is_not_known() -> None:
    frame = looks(names := [f"S{i:03d}" for i in range(30)])
    sectors = {name: ("Tin", None, "Oil")[i % 3] for i, name in enumerate(names)}
    mean = frame[frame["symbol"] != frame["source"]].groupby("source")["weight"].mean()
    drawn = heat_map(Attention.of(frame), sectors, most=10)
    assert drawn
    assert set(drawn.symbols) == set(mean.nlargest(10).index)
    assert [name for name, _, _ in drawn.blocks] == ["Oil", "Tin", "no sector"]
    assert sum(count for _, _, count in drawn.blocks) == 10
    few = frame.sort_values("weight").groupby("symbol").tail(3)
    partial = heat_map(Attention.of(few), sectors)
    assert partial
    assert (partial.shade >= 0).sum() == len(few)
    assert sector_map(Attention.of(few), sectors) is None
    assert heat_map(Attention.of(frame.iloc[:0]), sectors) is None


def test_the_sectors_share_all_attention_and_without_preference_none_gets_more_than_its_stocks() -> None:
    frame = looks(names := [f"S{i:03d}" for i in range(17)])
    sectors = {name: f"Sector {i % 3}" for i, name in enumerate(names)}
    found = sector_map(Attention.of(frame), sectors)
    assert found
    np.testing.assert_allclose(found.share.sum(axis=1), 1)
    side = frame.assign(s=frame["symbol"].map(sectors), t=frame["source"].map(sectors))
    expected = side.groupby(["s", "symbol", "t"])["weight"].sum().groupby(["s", "t"]).mean().unstack()
    np.testing.assert_allclose(found.share, expected)
    even = sector_map(Attention.of(frame.assign(weight=1 / 17)), sectors)
    assert even
    np.testing.assert_allclose(even.times, 1)


def test_the_drivers_of_a_stock_are_its_strongest_sources_but_itself() -> None:
    frame = looks(names := [f"S{i:03d}" for i in range(11)])
    rows = region(page(stocks(11), attention=frame), "Strongest sources of each stock")[1:]
    assert [row[0] for row in rows] == names
    for name, own, *sources in rows:
        mine = frame[frame["symbol"] == name].set_index("source")["weight"]
        assert own == figure(mine[name])
        ordered = mine.drop(name).sort_values(ascending=False).head(KEPT)
        assert sources == [f"{source} {figure(weight)}" for source, weight in ordered.items()]
