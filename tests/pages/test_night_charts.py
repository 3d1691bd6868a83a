"""Laws of the charts of a night's page: calibration, gaps of lines, and who looks at whom."""

import re

import numpy as np
import pandas as pd

from dtml.attention import Attention
from dtml.evaluation.calibration import curve_with_intervals, recalibrated
from dtml.pages.charts import stretches
from dtml.pages.night import FIGURES, direction_rows, heat_map, sector_map
from tests.support.bounds import as_drawn, assert_arrays_close_in_float64
from tests.support.night_page import LINE, bins, looks, settled


def test_the_curves_hold_every_call_and_calibration_moves_only_what_was_said() -> None:
    said, directions = curve_with_intervals(bins()), settled()
    assert said["n"].sum() == len(directions)
    assert said["share_risen"].between(said["share_risen_low"], said["share_risen_high"]).all()
    moved = recalibrated(bins(), {"first": LINE, "other": LINE})
    assert moved["rises"].sum() == directions["rise"].sum()
    assert moved["probability_sum"].sum() == as_drawn(directions["calibrated"].sum(), share=1e-4)
    assert recalibrated(bins(), {"other": LINE}).empty
    assert curve_with_intervals(bins().head(3))["share_risen_low"].isna().all()  # too few nights


def test_a_line_is_broken_where_it_has_no_value_for_weeks_and_drawn_whole_elsewhere() -> None:
    days = pd.bdate_range("2024-01-02", periods=90)
    of_a_holiday, of_two_months = days.delete(range(30, 40)), days.delete(range(30, 70))
    monthly = pd.date_range("2024-01-31", periods=12, freq="ME")
    for whole in (of_a_holiday, monthly):
        assert not stretches(whole).any()
    assert stretches(of_two_months).tolist() == [0] * 30 + [1] * 20


def test_without_a_band_only_a_probability_above_one_half_is_a_rise() -> None:
    nothing = dict.fromkeys(FIGURES, np.nan)
    stocks = {"A": 0.51, "B": 0.5, "C": np.nan}
    rows = [{**nothing, "symbol": name, "probability": each} for name, each in stocks.items()]
    found = direction_rows(pd.DataFrame(rows), None, Attention.of(looks([*stocks])))
    assert found.set_index("symbol")["direction"].to_dict() == {
        "A": "rise",
        "B": "fall",
        "C": "none",
    }


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
