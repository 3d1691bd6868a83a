"""Laws of the charts of a night's page: rolling scores, curves, and who looks at whom."""

import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

from dtml.attention import KEPT, Attention
from dtml.evaluation.breakdowns import ROLLING_SESSIONS, rolling_scores
from dtml.evaluation.calibration import (
    curve_with_intervals,
    recalibrated,
)
from dtml.evaluation.metrics import accuracy, mcc
from dtml.pages import night
from dtml.pages.charts import (
    COLUMNS,
    NARROWEST,
    Panel,
    over_sessions,
    probability_axis,
    stacked,
    stretches,
)
from dtml.pages.figures import percent
from dtml.pages.night import heat_map, sector_map
from tests.support.bounds import as_drawn, assert_arrays_close_in_float64, in_float64
from tests.support.night_page import (
    GENERATOR,
    LINE,
    NAN,
    bins,
    looks,
    page,
    region,
    settled,
    stocks,
)


def test_a_rolling_score_is_that_of_its_last_quarter_and_none_comes_before() -> None:
    counts = GENERATOR.integers(0, 9, (80, 4))
    days = pd.bdate_range("2024-01-02", periods=80)
    found = rolling_scores(counts, days).set_index("session")
    assert len(found) == 80 - ROLLING_SESSIONS + 1
    for day in (days[ROLLING_SESSIONS - 1], days[-1]):
        place = days.get_loc(day) + 1
        total = counts[place - ROLLING_SESSIONS : place].sum(axis=0)
        assert found.loc[day, "acc"] == accuracy(total)
        assert found.loc[day, "mcc"] == mcc(total)
        assert found.loc[day, "acc_low"] < found.loc[day, "acc"] < found.loc[day, "acc_high"]
    assert rolling_scores(counts[: ROLLING_SESSIONS - 1], days[: ROLLING_SESSIONS - 1]).empty
    assert "Rolling ACC" in page()
    assert "Running ACC" in page(rolling=rolling_scores(counts[:9], days[:9]))


def test_the_curves_hold_every_call_and_calibration_moves_only_what_was_said() -> None:
    said, directions = curve_with_intervals(bins()), settled()
    assert said["n"].sum() == len(directions)
    assert (said["share_risen_low"] < said["share_risen"]).all()
    assert (said["share_risen"] < said["share_risen_high"]).all()
    moved = recalibrated(bins(), {"first": LINE, "other": LINE})
    assert moved["rises"].sum() == directions["rise"].sum()
    assert moved["probability_sum"].sum() == as_drawn(directions["calibrated"].sum(), share=1e-4)
    assert recalibrated(bins(), {"other": LINE}).empty
    assert curve_with_intervals(bins().head(3))["share_risen_low"].isna().all()  # too few nights


def test_marks_stand_on_one_another_above_their_place() -> None:
    values = [0.5, 0.5, 0.61, NAN, 0.39]
    axis = probability_axis(values)
    assert axis.high - 0.5 == in_float64(0.5 - axis.low)
    rows = pd.DataFrame({"value": values, "kind": "none", "words": list("abcde")})
    marks = stacked("title", "words", rows, axis, None).data["rows"]
    assert marks["words"].tolist() == ["e", "a", "b", "c"]
    assert marks["row"].tolist() == [0.5, 0.5, 1.5, 0.5]
    assert marks["place"].between(axis.low, axis.high).all()
    assert marks["place"].iloc[1] == in_float64(0.5 + (axis.high - axis.low) / COLUMNS / 2)
    assert probability_axis([]).high - 0.5 == in_float64(1.08 * NARROWEST)
    assert (probability_axis([1.0]).low, probability_axis([1.0]).high) == (0.0, 1.0)


def test_the_legend_shows_the_newest_value_in_whatever_order_the_rows_come() -> None:
    days = pd.bdate_range("2024-01-02", periods=4)
    newest_first = pd.Series([0.42, 0.5, 0.55, 0.601], days[::-1])
    twice = pd.concat([newest_first.iloc[:1], newest_first.iloc[:1] + 0.1, newest_first.iloc[1:]])
    for line in (newest_first, newest_first.sort_index(), twice):
        chart = over_sessions("scores", [Panel("ACC", {"dtml": line})])
        assert chart
        assert chart.keys[0].last == ".420"


def test_a_line_is_broken_where_it_has_no_value_for_weeks_and_drawn_whole_elsewhere() -> None:
    days = pd.bdate_range("2024-01-02", periods=90)
    daily = pd.Series(np.arange(90.0), days)
    broken = daily.drop(days[30:70])  # two months
    holiday = daily.drop(days[30:40])
    monthly = pd.Series(np.arange(12.0), pd.date_range("2024-01-31", periods=12, freq="ME"))
    paths = {}
    for name, line in (("broken", broken), ("holiday", holiday), ("monthly", monthly)):
        chart = over_sessions("x", [Panel("x", {"dtml": line})])
        assert chart
        paths[name] = len(re.findall(r'd="M[^"]*L[^"]*"[^>]*stroke="var\(--s0\)"', str(chart.svg)))
        paths[name] += len(re.findall(r'stroke="var\(--s0\)"[^>]*d="M[^"]*L', str(chart.svg)))
    assert paths == {"broken": 2, "holiday": 1, "monthly": 1}
    assert stretches(broken.index).tolist() == [0] * 30 + [1] * 20
    assert stretches(broken.index[:1]).tolist() == [0]


def test_a_cell_of_the_map_is_how_much_its_row_looks_at_its_column() -> None:
    names = ["A", "B", "C", "D"]
    weights = np.full((4, 4), 0.2)
    weights[1, 3], weights[2, 0] = 0.9, 0.7  # B looks at D, C at A, and neither back
    weights[3, 1], weights[0, 2] = 0.01, 0.02
    frame = looks(names).assign(weight=weights.ravel()).sample(frac=1, random_state=7)
    drawn = heat_map(Attention.of(frame), pd.Series(dtype=object))
    assert drawn
    cells = drawn.data["rows"].pivot(index="y", columns="x", values="value")
    np.testing.assert_array_equal(cells.to_numpy(), weights)
    assert re.search(r"strongest: B.*D 90\.0.*C.*A 70\.0", drawn.words)
    text = page(stocks(4, sectors=1).assign(symbol=names), attention=frame)
    assert drawn.words in unescape(text)


def test_the_map_holds_the_stocks_looked_at_most_by_sector_and_blanks_what_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = looks(names := [f"S{i:03d}" for i in range(30)])
    sectors = {name: ("Tin", None, "Oil")[i % 3] for i, name in enumerate(names)}
    mean = frame[frame["symbol"] != frame["source"]].groupby("source")["weight"].mean()
    of_stocks = pd.Series(sectors)
    with monkeypatch.context() as few_drawn:
        few_drawn.setattr(night, "MOST", 10)
        drawn = heat_map(Attention.of(frame), of_stocks)
    assert drawn
    shown = list(dict.fromkeys(drawn.data["rows"]["y"]))
    assert set(shown) == set(drawn.data["rows"]["x"]) == set(mean.nlargest(10).index)
    placed = [sectors[name] or "" for name in shown]
    # those of no sector last
    assert placed == sorted(placed, key=lambda sector: (not sector, sector))
    few = frame.sort_values("weight").groupby("symbol").tail(3)
    partial = heat_map(Attention.of(few), of_stocks)
    assert partial
    assert len(partial.data["rows"]) == len(few)
    by_sector = sorted(names, key=lambda name: (sectors[name] is None, sectors[name] or "", name))
    assert partial.values["downwards"] == partial.values["across"] == by_sector
    assert sector_map(Attention.of(few), of_stocks) is None
    assert heat_map(Attention.of(frame.iloc[:0]), of_stocks) is None


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


def test_the_drivers_of_a_stock_are_its_strongest_sources_but_itself() -> None:
    frame = looks(names := [f"S{i:03d}" for i in range(11)])
    rows = region(page(stocks(11), attention=frame), 'Strongest sources[^"]*')[1:]
    assert [row[0] for row in rows] == names
    for name, own, *sources in rows:
        mine = frame[frame["symbol"] == name].set_index("source")["weight"]
        assert own == percent(mine[name])
        ordered = mine.drop(name).sort_values(ascending=False).head(KEPT)
        assert sources == [f"{source} {percent(weight)}" for source, weight in ordered.items()]
