"""Laws of a night's page: its directions, and the ranking of its stocks."""

import re
from html import unescape
from itertools import chain

import pandas as pd
import pytest

from dtml.pages.figures import records
from dtml.pages.night import ends, ranking_words
from tests.support.facts import in_order
from tests.support.night_page import THRESHOLD, direction, page, region, stocks
from tests.support.pages import Reader


@pytest.mark.slow
def test_every_stock_is_called_once_the_surest_first_and_no_call_is_set_apart() -> None:
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
def test_without_a_band_every_stock_is_called_and_at_the_largest_none(
    threshold: float | None,
) -> None:
    directions = stocks()
    found = direction(text := page(directions, threshold=threshold))
    # By the probability that is shown, which is the calibrated one.
    rises = set(directions.loc[directions["calibrated"] > 0.5, "symbol"])
    assert set(found["rise"]) == (rises if threshold is None else set())
    assert len(found["no direction"]) == (0 if threshold is None else len(directions))
    said = "no abstention band" if threshold is None else "Of the 23 stocks, none"
    assert said in Reader(text).seen


@pytest.mark.slow
def test_the_order_of_the_stocks_is_shown_with_what_such_orders_were_worth() -> None:
    ranking = pd.DataFrame(
        {"place": [1, 2], "symbol": ["S002", "S001"], "name": None, "probability": [0.6, 0.4]}
    ).assign(predictor="blend", leg="open_to_open")
    scored = pd.DataFrame(
        {
            "predictor": ["blend", "volume_shock", "day_losers"],
            "is_rule": [False, True, True],
            "rank_ic": [0.08, 0.01, 0.03],
        }
    ).assign(leg="open_to_open", days=40, rank_ic_low=0.005, rank_ic_high=0.095)
    champion = {"predictor": "blend", "since": "2026-03-02", "replaced": "ridge", "nights": 41}
    champion |= {"gain": 0.012, "stake": 71.4, "needed": 60.0}
    text = page(
        ranking=ends(ranking), ranking_words=ranking_words(ranking, records(scored), champion)
    )
    assert region(text, 'The ranking[^"]*')[1:] == [
        ["S002", "1", "60.0 %"],
        ["S001", "2", "40.0 %"],
    ]
    best_rule = ("40 nights", ".080 [.005, .095]; ", "the day's losers", ".030 [.005, .095].")
    assert re.search(in_order(*best_rule), unescape(text))
    assert re.search(
        in_order("blend ", "since 2026-03-02", "ridge: ", "41 nights", " +.012 "), text
    )
    of_another_leg = scored.assign(leg="next_close")
    assert "No ranking has" in ranking_words(ranking, records(of_another_leg))
