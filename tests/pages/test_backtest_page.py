"""Laws of a backtest's page: its verdict, drawdowns, ratios and charts."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from dtml.pages.backtest import PAPER_SUFFIX, drawdowns, portfolio_rows, rolling_chart, verdict
from dtml.pages.charts import LIVE_POINTS, POINTS, Panel, over_sessions, thinned
from dtml.pages.figures import quoted
from tests.support.backtest_page import (
    BACKTEST,
    FREE_ONES,
    NAN,
    TRADED,
    held,
    random_performances,
    random_scores,
    score,
)
from tests.support.bounds import in_float64
from tests.support.facts import in_order

RULE = quoted("index_reversal")
SHARPE = ("sharpe", "sharpe_low", "sharpe_high")


@pytest.mark.parametrize(
    ("ends", "low_of_other", "said", "widened"),
    [
        ((0.006, 0.056), 0.03, "beats", "[+.002, +.060]"),
        # The interval of this difference alone is above 0, but not that of both rules at once.
        ((0.001, 0.061), 0.03, "does not differ", "[-.003, +.065]"),
        ((-0.09, -0.001), 0.03, "is beaten by", "[-.107, -.006]"),
        # The model gains more over the other rule, but less certainly.
        ((0.006, 0.056), -0.01, "not proven to beat", "[+.002, +.060]"),
        ((NAN, NAN), 0.03, "cannot be compared", ""),
    ],
)
def test_the_verdict_on_directions_follows_the_paired_difference(ends, low_of_other, said, widened):
    model = score(acc=0.52, mcc=0.0411, mcc_low=-0.01, mcc_high=0.09)
    best = score(
        "index_reversal",
        mcc=0.01,
        model_gain=0.0311,
        model_gain_low=ends[0],
        model_gain_high=ends[1],
    )
    gain = {"model_gain": 0.0411, "model_gain_low": low_of_other, "model_gain_high": 0.05}
    other = score("always_up", mcc=0.0, **gain)
    paper = score("always_up", protocol="published", mcc=0.9)
    whole = verdict(BACKTEST, pd.DataFrame([other, model, best, paper]), random_performances())
    assert re.search(in_order("DTML ", said, RULE, "2 naive rules", "sp500"), whole)
    assert ("widened for 2 rules" in whole) == bool(widened)
    assert widened in whole
    assert whole.endswith("Nothing here promises profit.")


SURE, UNSURE, LOW = (0.9, 0.1, 1.7), (0.2, -0.5, 0.9), (-5, -6, -4)


@pytest.mark.parametrize(
    ("first", "second", "gain", "said"),
    [
        (SURE, UNSURE, (-0.1, 0.3), ("1 of 2 ", '"long, next open"', "which does not")),
        (SURE, UNSURE, (0.1, 0.3), ("1 of 2 ", '"long, next open"', "beats the index")),
        (UNSURE, LOW, (0.0, 1), ("none of 2 ", '"long, next open"', "which does not")),
        (UNSURE, LOW, (-1, -0.1), ("none of 2 ", '"long, next open"', "which is beaten")),
        (SURE, (1.9, 1.1, 2.7), (-1, 1), ("2 of 2 ", '"weighted, next open"', "which does not")),
        (SURE, UNSURE, (NAN, NAN), ("1 of 2 ", "cannot be compared")),
        ((NAN,) * 3, (NAN,) * 3, (NAN, NAN), ("252 days are too",)),
    ],
)
def test_the_verdict_on_portfolios_follows_sharpe_ratios_and_their_paired_difference(
    first,
    second,
    gain,
    said,
):
    ratios = {TRADED[0]: first, TRADED[2]: second, FREE_ONES[0]: (9.0, 8.0, 10.0)}
    names = (*SHARPE, "index_gain", "index_gain_low", "index_gain_high")
    rows = [held(portfolio, (*each, 0.1, *gain), names) for portfolio, each in ratios.items()]
    rows.append(held("index", (0.8, -0.2, 1.8), SHARPE))
    words = verdict(BACKTEST, random_scores().iloc[:0], pd.DataFrame(rows))
    assert re.search(in_order(*said), words)
    assert PAPER_SUFFIX not in words  # nobody can trade it


def test_drawdowns_have_dates_and_ratios_are_those_of_their_definitions():
    days = pd.bdate_range("2018-01-01", periods=6)
    line = pd.Series([0.1, -0.5, 1.0, 0.2, -0.1, -0.1], days)
    columns = ["first", "lowest", "recovered", "depth", "sessions"]
    assert pd.DataFrame(drawdowns(line))[columns].to_numpy().tolist() == [
        [days[1], days[1], "2018-01-03", -0.5, 1],
        [days[4], days[5], "not yet", in_float64(0.81 - 1), 2],
    ]
    random = np.random.default_rng(3).normal(0, 0.01, 500)
    long = pd.Series(random, pd.bdate_range("2018-01-01", periods=500))
    lines = {"two": 2 * long, "index": long, "few": long.head(19)}
    tracks = pd.concat(
        pd.DataFrame({"portfolio": name, "session": each.index, "net": each.to_numpy()})
        for name, each in lines.items()
    ).assign(gross=0.0, cost=0.0, borrow=0.0)
    performances = pd.DataFrame({"portfolio": list(lines), "annual_return": 0.1})
    rows = portfolio_rows(performances.assign(max_drawdown=[-0.2, 0.0, -0.2]), tracks, 252)
    few, found, index = sorted(rows, key=lambda row: row["portfolio"] != "few")[:3]
    assert all(pd.isna(few[name]) for name in ("beta", "calmar", "sortino", "value_at_risk"))
    assert found["calmar"] == in_float64(0.5)
    assert pd.isna(index["calmar"])
    assert found["beta"] == in_float64(2)
    assert found["value_at_risk"] == in_float64(2 * long.quantile(0.05))
    assert found["expected_shortfall"] < found["value_at_risk"] < 0
    downside = np.sqrt((long.clip(upper=0) ** 2).mean())
    assert found["sortino"] == in_float64(long.mean() / downside * np.sqrt(252))


def test_rolling_figures_are_those_of_the_last_63_sessions_alone():
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


def test_a_thinned_line_keeps_its_ends_and_the_extremes_of_every_stretch():
    values = np.random.default_rng(19).standard_normal(1801)
    frame = pd.DataFrame({"t": np.arange(1801), "v0": values})
    kept = thinned(frame).index
    assert len(kept) <= POINTS
    assert {0, 1800, values.argmin(), values.argmax()} <= set(kept)
    assert np.diff(kept).max() < 4 * 1801 / POINTS
    assert thinned(frame[:POINTS]).equals(frame[:POINTS])


def test_the_same_description_is_drawn_still_and_alive():
    days = pd.bdate_range("2018-01-01", periods=LIVE_POINTS)
    values = pd.Series(np.arange(float(LIVE_POINTS)), days)
    lines = {"dtml": values, "</script>": values % 7}
    chart = over_sessions("title", [Panel("upwards", lines)], hidden=["</script>"])
    assert chart
    assert "<" not in chart.json
    assert len(json.loads(chart.json)["datasets"]["panel0"]["rows"]) == LIVE_POINTS
    assert chart.svg.startswith("<svg aria-hidden")
    assert len(chart.svg) < 30_000
