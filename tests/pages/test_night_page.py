"""Laws of a night's page: its directions, and the ranking of its stocks."""

from itertools import chain

import pytest

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
