"""Laws of the charts of a night's page: calibration, gaps of lines, and who looks at whom."""

import re

import numpy as np
import pandas as pd

from dtml.attention import Attention
from dtml.pages.night import heat_map, sector_map
from tests.support.bounds import assert_arrays_close_in_float64
from tests.support.night_page import looks


def test_a_cell_of_the_map_is_how_much_its_row_looks_at_its_column() -> None:
    weights = np.full((4, 4), 0.2)
    weights[1, 3], weights[2, 0] = 0.9, 0.7  # B looks at D, C at A, and neither back
    frame = looks([*"ABCD"]).assign(weight=weights.ravel()).sample(frac=1, random_state=7)
    drawn = heat_map(Attention.of(frame), pd.Series(dtype=object))
    assert drawn
    cells = drawn.data["rows"].pivot(index="y", columns="x", values="value")
    np.testing.assert_array_equal(cells.to_numpy(), weights)
    assert re.search(r"strongest: B.*D 90\.0.*C.*A 70\.0", drawn.words)


def test_without_preference_no_sector_gets_more_than_its_stocks() -> None:
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
