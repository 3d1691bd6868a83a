"""Laws of a night's page: its directions, and who looks at whom."""

import re
from itertools import chain

import numpy as np
import pandas as pd
import pytest

from dtml.attention import Attention
from dtml.pages.night import heat_map, ranking_words, sector_map
from flows.commands.nightly import first_and_last
from tests.support.bounds import assert_arrays_close_in_float64
from tests.support.night_page import THRESHOLD, direction, looks, page, region, stocks
from tests.support.pages import Reader


@pytest.mark.slow
def test_every_stock_is_called_once_the_surest_first_and_no_call_is_set_apart():
    directions = stocks()
    found = direction(page(directions))
    ordered = directions.sort_values("calibrated", ascending=False)
    assert found["rise"] == ordered.loc[ordered["calibrated"] > THRESHOLD, "symbol"].tolist()
    assert (
        found["fall"] == ordered.loc[ordered["calibrated"] < 1 - THRESHOLD, "symbol"].tolist()[::-1]
    )
    silent = ordered["calibrated"].between(1 - THRESHOLD, THRESHOLD)
    assert found["no direction"] == ordered.loc[silent, "symbol"].tolist()
    assert sorted(chain(*found.values())) == directions["symbol"].tolist()
    assert min(map(len, found.values())) > 0
    assert not {row[1] for row in region(page(directions), "Directions")[1:]} & {"no direction"}


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_without_a_band_every_stock_is_called_and_at_the_largest_none(threshold):
    directions = stocks()
    found = direction(text := page(directions, threshold=threshold))
    # By the probability that is shown, which is the calibrated one.
    rises = set(directions.loc[directions["calibrated"] > 0.5, "symbol"])
    assert set(found["rise"]) == (rises if threshold is None else set())
    assert len(found["no direction"]) == (0 if threshold is None else len(directions))
    said = "no abstention band" if threshold is None else "Of the 23 stocks, none"
    assert said in Reader(text).seen


@pytest.mark.parametrize(
    ("symbols", "words", "lines"),
    [
        ("A", "1 stock is ranked by", "  first A"),
        ("ABC", "3 stocks are ranked by", "  first A, B\n  last  C"),
    ],
)
def test_a_short_ranking_is_told_whole(symbols, words, lines):
    ranking = pd.DataFrame({"symbol": [*symbols], "predictor": "blend", "leg": "next_close"})
    assert ranking_words(ranking, []).startswith(words)
    assert first_and_last(ranking) == lines


def test_a_cell_of_the_map_is_how_much_its_row_looks_at_its_column():
    weights = np.full((4, 4), 0.2)
    weights[1, 3], weights[2, 0] = 0.9, 0.7  # B looks at D, C at A, and neither back
    frame = looks([*"ABCD"]).assign(weight=weights.ravel()).sample(frac=1, random_state=7)
    drawn = heat_map(Attention.of(frame), pd.Series(dtype=object))
    assert drawn
    cells = drawn.data["rows"].pivot(index="y", columns="x", values="value")
    np.testing.assert_array_equal(cells.to_numpy(), weights)
    assert re.search(r"strongest: B.*D 90\.0.*C.*A 70\.0", drawn.words)


def test_without_preference_no_sector_gets_more_than_its_stocks():
    frame = looks(names := [f"S{i:03d}" for i in range(17)])
    sectors = pd.Series({name: f"Sector {i % 3}" for i, name in enumerate(names)})
    found = sector_map(Attention.of(frame), sectors)
    assert found
    side = frame.assign(s=frame["symbol"].map(sectors), t=frame["source"].map(sectors))
    share = side.groupby(["s", "symbol", "t"])["weight"].sum().groupby(["s", "t"]).mean().unstack()
    part = sectors.value_counts(normalize=True).sort_index().to_numpy()
    times = found.data["rows"].pivot(index="y", columns="x", values="value")
    assert_arrays_close_in_float64(times, share.to_numpy() / part)
    even = sector_map(Attention.of(frame.assign(weight=1 / 17)), sectors)
    assert even
    assert_arrays_close_in_float64(even.data["rows"]["value"], 1)
