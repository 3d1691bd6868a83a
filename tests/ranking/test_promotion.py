"""A challenger is promoted when it is better, hardly ever when it is not,
however often one looks.
"""

import numpy as np
import pytest
from jaxtyping import Float
from numpy import ndarray

from dtml.evaluation.evidence import RESTART, TENURE, YEAR, Evidence, evidence, promoted
from tests.support.bounds import in_float64


def promoted_after(gains: Float[ndarray, " nights"], challengers: int = 1) -> int | None:
    """The nights after which the evidence suffices, asked every night."""
    for night in range(TENURE, len(gains) + 1):
        if evidence("b", gains[:night], challengers=challengers).suffices:
            return night
    return None


@pytest.mark.soak
@pytest.mark.parametrize("deviation", [0.1, 0.25, 0.5])
def test_equals_are_exchanged_in_fewer_than_one_year_in_twenty(deviation: float) -> None:
    random = np.random.default_rng(5)
    years = [promoted_after(random.normal(0, deviation, YEAR).clip(-2, 2)) for _ in range(100)]
    assert np.mean([each is not None for each in years]) < 0.05


@pytest.mark.slow
def test_equals_whose_outcomes_overlap_are_not_exchanged_by_one_lucky_outcome() -> None:
    random = np.random.default_rng(8)
    overlap, nights = 20, 2 * YEAR
    stakes = []
    for _ in range(25):
        daily = random.normal(0, 0.15, nights + overlap - 1)
        gains = np.convolve(daily, np.ones(overlap) / np.sqrt(overlap), "valid").clip(-2, 2)
        stakes.append([evidence("b", gains[:k], overlap=overlap) for k in range(20, nights, 20)])
    assert sum(any(each.suffices for each in of_nights) for of_nights in stakes) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 97, 400])
def test_a_champion_whose_edge_goes_to_a_challenger_is_replaced_within_sixty_nights(
    before: int,
) -> None:
    """The edge is that of the simulated market: a rank IC of .45 against 0,
    whatever the nights before said.
    """
    random = np.random.default_rng(6)
    delays = []
    for _ in range(20):
        gains = np.concatenate(
            [random.normal(-0.02, 0.25, before), random.normal(0.45, 0.25, 70)]
        ).clip(-2, 2)
        delays.append((promoted_after(gains, challengers=3) or np.inf) - before)
    assert min(delays) > 0
    assert np.mean(np.array(delays) <= 60) >= 0.8


def test_the_stake_by_hand() -> None:
    """After one night: half was bet from the start; of the year's restarts one
    has begun before the night.
    """
    starts = -(-YEAR // RESTART)
    grown = (1.05 + 1.225) / 2
    made = evidence("b", np.array([0.5]))
    assert made.stake == in_float64((grown + (grown + starts - 1) / starts) / 2)
    assert (made.needed, made.nights, made.gain) == (20.0, 1, 0.5)
    assert evidence("b", np.array([])).stake == 1.0


def test_unknown_nights_are_left_out_and_several_challengers_share_the_error() -> None:
    gains = np.array([0.3, np.nan, -0.2])
    assert evidence("b", gains) == evidence("b", gains[[0, 2]])
    assert evidence("b", gains, challengers=3).needed == in_float64(60)


def test_a_new_champion_speaks_for_a_while_and_the_best_challenger_comes_next() -> None:
    early, sure, surer = (
        Evidence(name, stake, 20.0, nights, 0.5)
        for name, stake, nights in (
            ("early", 1e9, TENURE - 1),
            ("sure", 21.0, TENURE),
            ("surer", 22.0, TENURE),
        )
    )
    assert promoted([early, sure, surer]) == surer
    assert promoted([early]) is None
