"""Laws of the charts of a backtest's page, and of lines over sessions."""

import json

import numpy as np
import pandas as pd

from dtml.pages.backtest import rolling_chart
from dtml.pages.charts import LIVE_POINTS, POINTS, Panel, over_sessions, thinned
from tests.support.bounds import in_float64


def test_rolling_figures_are_those_of_the_last_63_sessions_alone() -> None:
    generator = np.random.default_rng(23)
    sessions = pd.bdate_range("2018-01-02", periods=130)
    index = pd.Series(0.01 * generator.standard_normal(130), sessions)
    line = 0.5 * index + 0.001 * generator.standard_normal(130)
    chart = rolling_chart({"long, next open": line, "index": index}, 252)
    assert chart
    last = line.to_numpy()[-63:]
    # The definitions of quantstats: a sample deviation, a year of 252 sessions.
    volatility = last.std(ddof=1) * 252**0.5
    slope = np.polyfit(index.to_numpy()[-63:], last, 1)[0]
    newest = [chart.data[f"panel{number}"]["v0"].dropna().iloc[-1] for number in range(3)]
    assert newest == in_float64([last.mean() * 252 / volatility, volatility, slope])
    assert chart.data["panel0"]["v0"].count() == 130 - 62


def test_a_thinned_line_keeps_its_ends_and_the_extremes_of_every_stretch() -> None:
    values = np.random.default_rng(19).standard_normal(1801)
    frame = pd.DataFrame({"t": np.arange(1801), "v0": values})
    kept = thinned(frame).index
    assert len(kept) <= POINTS
    assert {0, 1800, values.argmin(), values.argmax()} <= set(kept)
    assert np.diff(kept).max() < 4 * 1801 / POINTS
    assert thinned(frame[:POINTS]).equals(frame[:POINTS])


def test_the_same_description_is_drawn_still_and_alive() -> None:
    days = pd.bdate_range("2018-01-01", periods=LIVE_POINTS)
    values = pd.Series(np.arange(float(LIVE_POINTS)), days)
    lines = {"dtml": values, "</script>": values % 7}
    chart = over_sessions("title", [Panel("upwards", lines)], hidden=["</script>"])
    assert chart
    assert "<" not in chart.json
    assert len(json.loads(chart.json)["datasets"]["panel0"]["rows"]) == LIVE_POINTS
    assert chart.svg.startswith("<svg aria-hidden")
    assert len(chart.svg) < 30_000
