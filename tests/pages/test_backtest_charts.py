"""Laws of the charts of a backtest's page, and of lines over sessions."""

import json

import numpy as np
import pandas as pd
import pytest

from dtml.pages.backtest import extremes, rolling_chart, tracks_chart
from dtml.pages.charts import LIVE_POINTS, POINTS, Panel, colour, over_sessions, thinned
from tests.support.backtest_page import (
    NAN,
)
from tests.support.bounds import assert_arrays_close_in_float64


def test_a_portfolio_that_never_trades_is_drawn_without_a_sharpe_ratio() -> None:
    sessions = pd.bdate_range("2018-01-02", periods=300)
    swings = pd.Series(np.tile([0.01, -0.02, 0.03], 100), sessions)
    net = {"idle": 0 * swings, "index": swings}
    for chart in (tracks_chart(net, hidden=(), dashed=()), rolling_chart(net, 252)):
        assert chart
        assert {key.name for key in chart.keys} == {"idle", "index"}


def test_rolling_figures_are_those_of_the_last_63_sessions_alone() -> None:
    generator = np.random.default_rng(23)
    sessions = pd.bdate_range("2018-01-02", periods=130)
    index = pd.Series(0.01 * generator.standard_normal(130), sessions)
    line = 0.5 * index + 0.001 * generator.standard_normal(130)
    chart = rolling_chart({"long, next open": line, "index": index}, 252)
    assert chart
    last = line.to_numpy()[-63:]
    sharpe, volatility, beta = (
        chart.data[f"panel{number}"]["v0"].dropna().to_numpy() for number in range(3)
    )
    assert len(sharpe) == len(volatility) == len(beta) == 130 - 62
    # The definitions of quantstats: a sample deviation, a year of 252 sessions.
    assert volatility[-1] == pytest.approx(last.std(ddof=1) * 252**0.5)
    assert sharpe[-1] == pytest.approx(last.mean() / last.std(ddof=1) * 252**0.5)
    slope = np.polyfit(index.to_numpy()[-63:], last, 1)[0]
    assert beta[-1] == pytest.approx(slope)


def test_the_best_and_the_worst_sessions_and_months_are_those_of_the_returns() -> None:
    sessions = pd.bdate_range("2018-01-02", periods=400)
    line = pd.Series(0.01 * np.random.default_rng(29).standard_normal(400), sessions)
    rows = extremes(line)
    assert [row["place"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0]["best_day"] == str(line.idxmax().date())
    assert rows[0]["best_day_return"] == line.max()
    assert rows[0]["worst_day_return"] == line.min()
    months = (1 + line).resample("ME").prod() - 1
    assert rows[0]["best_month"] == f"{months.idxmax():%Y-%m}"
    assert rows[0]["best_month_return"] == pytest.approx(months.max())
    assert rows[4]["worst_month_return"] == pytest.approx(months.nsmallest(5).iloc[-1])
    few = extremes(line[:3])
    assert len(few) == 1
    assert pd.isna(few[0]["best_month"])
    assert extremes(line[:1]) == []


def test_drawdowns_are_shaded_from_the_value_up_to_the_highest_so_far() -> None:
    days = pd.bdate_range("2018-01-01", periods=4)
    net = {
        "long, next open": pd.Series([0.1, -0.5, 1.5, -0.1], days),
        "index": pd.Series(0.0, days),
    }
    chart = tracks_chart(net, hidden=(), dashed=(), shaded="long, next open")
    assert chart
    rows = chart.data["panel0"]
    assert_arrays_close_in_float64(rows["lowv0"], [1, 1.1, 0.55, 1.375, 1.2375])
    assert_arrays_close_in_float64(rows["highv0"], [1, 1.1, 1.1, 1.375, 1.375])
    assert "lowv1" not in rows


def kept_of(values: np.ndarray) -> list[int]:
    return thinned(pd.DataFrame({"t": np.arange(len(values)), "v0": values})).index.tolist()


def test_a_thinned_line_keeps_its_ends_and_the_extremes_of_every_stretch() -> None:
    values = np.random.default_rng(19).standard_normal(1801)
    kept = kept_of(values)
    assert len(kept) <= POINTS
    assert {0, 1800, values.argmin(), values.argmax()} <= set(kept)
    assert np.diff(kept).max() < 4 * 1801 / POINTS
    assert kept_of(values[:POINTS]) == list(range(POINTS))


def test_a_thinned_line_is_broken_where_a_stretch_lacks_all_values() -> None:
    values = np.arange(3000.0)
    values[7::500] = NAN
    assert {0, 2999} <= set(kept_of(values))
    values[1000:1200] = NAN
    assert np.isnan(values[kept_of(values)]).sum() >= 3


def test_a_chart_that_can_be_zoomed_keeps_more_of_each_line() -> None:
    drawn = np.random.default_rng(7).standard_normal((2, 3000))
    frame = pd.DataFrame({"t": np.arange(3000), "v0": drawn[0], "v1": drawn[1]})
    assert len(thinned(frame)) <= 2 * POINTS < len(thinned(frame, LIVE_POINTS)) <= 2 * LIVE_POINTS
    for line in ("v0", "v1"):
        assert {frame[line].idxmin(), frame[line].idxmax()} <= set(thinned(frame).index)


def test_lines_lie_on_one_axis_of_time_over_the_sessions_of_all() -> None:
    days = pd.bdate_range("2018-01-01", periods=3)
    lines = {"whole": pd.Series([0.0, 2.0, 4.0], days), "late": pd.Series([NAN, 4.0], days[1:])}
    chart = over_sessions(
        "title",
        [Panel("upwards", lines), Panel("below", {"late": -lines["late"]})],
        hidden=["late"],
    )
    assert chart
    assert [(key.name, key.is_shown, key.last) for key in chart.keys] == [
        ("whole", True, "4.000"),
        ("late", False, "4.000"),
    ]
    rows = chart.data["panel0"]
    assert rows["t"].tolist() == ["2018-01-01", "2018-01-02", "2018-01-03"]
    assert rows["v1"].tolist()[-1] == 4.0
    assert rows["v1"].isna().sum() == 2
    assert chart.data["panel1"]["v1"].tolist() == [-4.0]
    assert over_sessions("title", [Panel("upwards", {"one": lines["whole"][:1]})]) is None


def test_the_value_beside_a_line_is_that_of_its_newest_session() -> None:
    days = pd.bdate_range("2018-01-01", periods=3)
    line = pd.Series([3.0, 1.0, 2.0], [days[2], days[0], days[1]])
    chart = over_sessions("title", [Panel("upwards", {"one": line})])
    assert chart
    assert [key.last for key in chart.keys] == ["3.000"]
    assert "3.000 at the end" in chart.words


def test_the_same_description_is_drawn_still_and_alive() -> None:
    days = pd.bdate_range("2018-01-01", periods=LIVE_POINTS)
    lines = {
        "dtml": pd.Series(np.arange(float(LIVE_POINTS)), days),
        "</script>": pd.Series(np.arange(float(LIVE_POINTS)) % 7, days),
    }
    chart = over_sessions(
        "title", [Panel("upwards", lines, base=3.0)], hidden=["</script>"], dashed=["dtml"]
    )
    assert chart
    alive = json.loads(chart.json)
    assert "<" not in chart.json
    assert len(alive["datasets"]["panel0"]["rows"]) == LIVE_POINTS
    assert [each["name"] for each in alive["params"]] == ["hidden", "zoom"]
    assert alive["params"][0]["value"] == ["v1"]
    drawn = chart.svg
    assert drawn.startswith("<svg aria-hidden")
    assert "var(--s0)" in drawn  # the page's own colour, in the light and in the dark
    assert "tooltip" not in drawn
    assert len(drawn) < 30_000
    assert colour("dtml") == colour("long, next open") != colour("always_up")
